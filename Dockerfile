# Two images: `docker build --target cpu -t tandem:cpu .` and `docker build --target cuda -t tandem:cuda .` (run with --gpus all).
# Both are built by the lines that developers use: scripts/setup and the presets.

FROM debian:12 AS source
ENV TANDEM_HOME=/opt/tandem/home
WORKDIR /opt/tandem/src
# Set-up first: its layer stays as long as the versions do.
COPY scripts/setup scripts/versions.env scripts/

FROM source AS build-cpu
RUN scripts/setup
COPY . .
RUN scripts/setup && scripts/build release tandem-server tandem

FROM source AS build-cuda
RUN scripts/setup --cuda
COPY . .
RUN scripts/setup --cuda && scripts/build cuda tandem-server tandem

# What runs: Debian's libraries, LibTorch where the binaries look for it, the binaries, the demo's models.
FROM debian:12-slim AS runtime
RUN apt-get update -q \
 && apt-get install -yq --no-install-recommends ca-certificates libgrpc++1.51 libprotobuf32 \
      libprometheus-cpp-core1.0 libabsl20220623 libhwy1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --home-dir /srv/tandem --create-home tandem
COPY deploy/ /srv/tandem/deploy/
COPY models/ /srv/tandem/models/
WORKDIR /srv/tandem
EXPOSE 50051 9400
ENV TANDEM_SERVER=127.0.0.1:50051
# Asks the HTTP port, which knows of gRPC's health and needs no certificate. TANDEM_HTTP: that port, where it is another one.
ENV TANDEM_HTTP=127.0.0.1:9400
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["deploy/healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tandem-server"]
# Other machines reach nothing until somebody says how: with server.tls in a configuration, or behind a proxy that has TLS with
# `--listen 0.0.0.0:50051 --insecure` (deploy/compose).
CMD ["--config", "deploy/demo.textproto"]

FROM runtime AS cuda
ARG packages=lib/python3.11/site-packages
COPY --from=build-cuda /opt/tandem/home/py-full/${packages}/torch/lib /opt/tandem/home/py-full/${packages}/torch/lib
COPY --from=build-cuda /opt/tandem/home/py-full/${packages}/nvidia /opt/tandem/home/py-full/${packages}/nvidia
COPY --from=build-cuda /opt/tandem/home/cuda/lib /opt/tandem/home/cuda/lib
RUN ln -s py-full /opt/tandem/home/python
COPY --from=build-cuda /opt/tandem/src/build/cuda/bin/tandem-server /opt/tandem/src/build/cuda/bin/tandem /usr/local/bin/
# Asked for by the container toolkit of the GPU's vendor.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001

# The last stage is what `docker build .` makes. Of LibTorch it takes what a CPU build loads.
FROM runtime AS cpu
ARG packages=lib/python3.11/site-packages
COPY --from=build-cpu /opt/tandem/home/py-cpu/${packages}/torch/lib/libtorch_cpu.so \
     /opt/tandem/home/py-cpu/${packages}/torch/lib/libc10.so \
     /opt/tandem/home/py-cpu/${packages}/torch/lib/libgomp.so.1 /opt/tandem/home/py-cpu/${packages}/torch/lib/
COPY --from=build-cpu /opt/tandem/home/py-cpu/${packages}/nvidia /opt/tandem/home/py-cpu/${packages}/nvidia
RUN ln -s py-cpu /opt/tandem/home/python
COPY --from=build-cpu /opt/tandem/src/build/release/bin/tandem-server /opt/tandem/src/build/release/bin/tandem /usr/local/bin/
USER 10001
