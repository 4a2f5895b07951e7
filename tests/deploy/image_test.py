"""The container's health check, what the image is made of, and the unit for systemd."""

import http.server
import re
import shutil
import socket
import subprocess
import threading

import pytest

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(self.server.status if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


class V6(http.server.HTTPServer):
    address_family = socket.AF_INET6


def health(address):
    return subprocess.run(
        [DEPLOY / "healthcheck"], env={"TANDEM_HTTP": address}, timeout=30, capture_output=True
    ).returncode


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::]"])
def test_health_check_of_the_container(status, exit_code, host):
    with http.server.HTTPServer(("127.0.0.1", 0), Answering) as server:
        server.status = status
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f"{host}:{server.server_port}"
        assert health(address) == exit_code
    assert health(address) == 1, "no server listens"


def test_health_check_by_ipv6():
    try:
        server = V6(("::1", 0), Answering)
    except OSError:
        pytest.skip("no IPv6")
    with server:
        server.status = 200
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert health(f"[::1]:{server.server_port}") == 0


def test_health_check_of_a_server_with_tls_on_other_ports(start_server, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    make = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out crt"
    )
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True, timeout=60)
    server = start_server(
        f'models {{ name: "fake" fake {{}} }}\n'
        f'server {{ tls {{ certificate: "{tmp_path}/crt" key: "{tmp_path}/key" }} }}'
    )
    assert health(server.http) == 0


def stages():
    """Of the Dockerfile: name -> (base, text)."""
    found = {}
    for base, name, text in re.findall(
        r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    ):
        found[name] = base, re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    return found


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_the_image_is_built_from_the_runtime_stage_alone(name):
    base, text = stages()[name]
    assert base == "runtime"
    assert f"COPY --from=build-{name} /runtime /" in text
    assert "USER 10001" in text
    base, text = stages()["runtime"]
    assert base == "${DEBIAN_SLIM}"
    assert "-dev" not in text
    assert "clang" not in text
    for source in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for path in source.split():
            assert (ROOT / path).exists(), path
    assert "org.opencontainers.image.revision" in text


def named_images():
    """Every image that a file of the deployment names, with the file."""
    for line in re.findall(r"^ARG DEBIAN\w*=(\S+)$", DOCKERFILE, re.MULTILINE):
        yield "Dockerfile", line
    for path in sorted((ROOT / "deploy").rglob("*.yaml")):
        for image in re.findall(
            r"\b(?:i|\w+I)mage: *([\w./-]+:\S+)$", path.read_text(), re.MULTILINE
        ):
            yield str(path.relative_to(ROOT)), image


def test_images_of_others_are_pinned_by_digest():
    """A tag can come to mean something else. Our own are built by who uses them; the digests of
    Envoy and the endpoint picker are not known here. That a registry has these digests is not verified: `docker buildx imagetools inspect`."""
    seen = set()
    for path, image in named_images():
        name = image.split(":")[0]
        seen.add(name)
        picker = "registry.k8s.io/gateway-api-inference-extension/epp"
        if name not in ("tandem", "envoyproxy/envoy", picker):
            assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image), f"{path}: {image}"
    assert seen >= {"debian", "prom/prometheus", "grafana/grafana", "curlimages/curl"}


def test_an_image_has_one_digest_everywhere():
    digests = {}
    for path, image in named_images():
        tag, _, digest = image.partition("@")
        assert digests.setdefault(tag, digest) == digest, f"{path}: {image}"


def dependencies(packages):
    """The closure of installed Debian packages."""
    command = ["dpkg-query", "-W", "-f", "${Package} ${Depends}, ${Pre-Depends}\\n"]
    needs = {}
    listing = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    for line in listing.splitlines():
        name, _, listed = line.partition(" ")
        parts = (part.strip() for part in listed.split(","))
        needs.setdefault(name, []).extend(re.split(r"[ :(|]", part)[0] for part in parts if part)
    known = set()
    todo = list(packages)
    while todo:
        package = todo.pop()
        if package not in known:
            known.add(package)
            todo += needs.get(package, [])
    return known


def test_the_image_has_every_library_that_the_programs_load(binaries):
    if not shutil.which("dpkg-query"):
        pytest.skip("not Debian")
    programs = [binaries / "tandem-server", binaries / "tandem"]
    loaded = subprocess.run(["ldd", *programs], capture_output=True, text=True, timeout=60).stdout
    paths = set(re.findall(r"=> (/\S+)", loaded))
    copied = set(
        subprocess.run(
            [DEPLOY / "runtime_files", *programs],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.split()
    )
    assert any("libtorch_cpu" in path for path in copied)
    assert all(".so" in path for path in copied), copied

    installed = re.search(r"install -yq --no-install-recommends (.*?)&&", DOCKERFILE, re.DOTALL)
    packages = [
        re.sub(r"\$\{grpc:-(.+)\}", r"\1", word)
        for word in installed.group(1).split()
        if word != "\\"
    ]
    # Of a slim image: what each has.
    there = dependencies([*packages, "libc6", "libgcc-s1", "libstdc++6"])
    names = {path.rsplit("/", 1)[1] for path in copied}
    others = sorted(path for path in paths if path.rsplit("/", 1)[1] not in names)
    # /lib and /usr/lib are one, and dpkg knows either.
    spellings = {path: (path, path.removeprefix("/usr"), "/usr" + path) for path in others}
    every = [spelling for path in others for spelling in spellings[path]]
    found = subprocess.run(["dpkg", "-S", *every], capture_output=True, text=True, timeout=60)
    owners = {}
    for line in found.stdout.splitlines():
        owner, _, path = line.rpartition(": ")
        owners[path] = owner.split(":")[0]
    for path in others:
        owner = next((owners[s] for s in spellings[path] if s in owners), "")
        assert owner in there, f"{path} is in no package of the image: {owner}"


def test_the_unit_for_systemd(tmp_path):
    text = (DEPLOY / "systemd" / "tandem.service").read_text("utf-8")
    for line in re.findall(r"^Exec\w+=/usr/local/bin/(.*)$", text, re.MULTILINE):
        assert line.startswith("tandem-server --config /etc/tandem/deployment.textproto")
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE).group(1))
    assert stop >= 30 + 5, "the server's grace, and 5 s"
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "tandem.service"
    unit.write_text(text.replace("/usr/local/bin/tandem-server", "/bin/true"), "utf-8")
    run = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
