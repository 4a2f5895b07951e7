# Two images: `docker build --target cpu -t tandem:cpu .` and `docker build --target cuda -t tandem:cuda .` (run with --gpus all).
# Both use scripts/setup and the presets, as developers do.
#
# The base images are pinned by digest, so that builds are reproducible. For newer ones pass --build-arg DEBIAN=debian:12@sha256:...
# and DEBIAN_SLIM=debian:12-slim@sha256:... (printed by docker buildx imagetools inspect debian:12). The digests below are those that
# other projects pin; they were not verified against a registry. Other versions are pinned in scripts/versions.env and
# the Cargo.lock files.
#
# --build-arg NEWER_GRPC=1 compiles the server with a newer gRPC than Debian's (docs/security.md).
ARG DEBIAN=debian:12@sha256:8a8cd02c5912770b4980228a54d4aff9e4f986f1eb2525d2d371dec5232cefcc
ARG DEBIAN_SLIM=debian:12-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171

FROM ${DEBIAN} AS source
ENV TANDEM_HOME=/opt/tandem/home
WORKDIR /opt/tandem/src
# First, so that this layer is rebuilt only when versions change.
COPY scripts/setup scripts/versions.env scripts/

# /runtime has the files of the image: the programs, the libraries of LibTorch and CUDA that they load, licences, bill of materials.
FROM source AS build-cpu
ARG NEWER_GRPC=
RUN scripts/setup ${NEWER_GRPC:+--grpc}
COPY . .
RUN scripts/setup && TANDEM_CMAKE_FLAGS=${NEWER_GRPC:+-DTANDEM_NEWER_GRPC=ON} scripts/build release tandem-server tandem tandem-pull
RUN DESTDIR=/runtime $TANDEM_HOME/bin/cmake --install build/release --strip && rm models/*/*.tar.xz

FROM source AS build-cuda
ARG NEWER_GRPC=
RUN scripts/setup --cuda ${NEWER_GRPC:+--grpc}
COPY . .
RUN scripts/setup --cuda && TANDEM_CMAKE_FLAGS=${NEWER_GRPC:+-DTANDEM_NEWER_GRPC=ON} scripts/build cuda-image tandem-server tandem tandem-pull
RUN DESTDIR=/runtime $TANDEM_HOME/bin/cmake --install build/cuda-image --strip && rm models/*/*.tar.xz

# Debian libraries, the programs, the demo models. No compiler, no Python, no build tools.
FROM ${DEBIAN_SLIM} AS runtime
ARG NEWER_GRPC=
RUN grpc=${NEWER_GRPC:+libcares2} && apt-get update -q \
 && apt-get install -yq --no-install-recommends ca-certificates ${grpc:-libgrpc++1.51} libprotobuf32 \
      libprometheus-cpp-core1.0 libspdlog1.10 libfmt9 libabsl20220623 libhwy1 libre2-9 libssl3 libzmq5 zlib1g \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --home-dir /srv/tandem --create-home tandem
COPY deploy/demo.textproto deploy/healthcheck /srv/tandem/deploy/
WORKDIR /srv/tandem
# gRPC; metrics and health; the OpenAI-compatible HTTP API, with --openai.
EXPOSE 50051 9400 8000
ENV TANDEM_SERVER=127.0.0.1:50051
# Requests /readyz, which includes the gRPC health and needs no certificate. TANDEM_HTTP is its address.
ENV TANDEM_HTTP=127.0.0.1:9400
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["deploy/healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tandem-server"]
# Listens on loopback only. For other machines configure server.tls, or use a TLS proxy and `--listen 0.0.0.0:50051 --insecure`
# (deploy/compose).
CMD ["--config", "deploy/demo.textproto"]
# --build-arg REVISION=$(git rev-parse HEAD)
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="A gRPC and HTTP inference server with speculative decoding" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="debian:12-slim"

FROM runtime AS cuda
COPY --from=build-cuda /runtime /
COPY --from=build-cuda /opt/tandem/src/models/ /srv/tandem/models/
# Read by the NVIDIA container toolkit.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001

# The default of `docker build .`.
FROM runtime AS cpu
COPY --from=build-cpu /runtime /
COPY --from=build-cpu /opt/tandem/src/models/ /srv/tandem/models/
USER 10001
