"""Envoy of deploy/gateway/standalone with an endpoint picker in front of three servers.

The configuration is the shipped one; only addresses, ports and the certificate are this machine's. The
tests assert which server got a request, and that no request is lost. The latencies are printed (pytest -s).
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import HOME, ROOT
from tests.deploy.kube_api import KubeApi
from tests.deploy.kube_apiserver import ApiServer
from tests.deploy.proxy import address_of, start_envoy

yaml = pytest.importorskip("yaml")
GATEWAY = ROOT / "deploy" / "gateway"
STANDALONE = GATEWAY / "standalone"
CRD = HOME / "crds" / "inference.networking.k8s.io_inferencepools.yaml"
# One request runs at a time, the others wait. `endless` lasts until its client goes.
SERVER = """
models { name: "fake" fake { pass_seconds: %s max_positions: 65536 } }
models { name: "endless" fake { pass_seconds: 0.01 max_positions: 262144 } }
limits { max_running: %d }
"""
HEADER = "x-gateway-destination-endpoint"
HOSTS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")


def free_port():
    """A port that no connection of another test takes meanwhile: not one of those that the system assigns."""
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("utf-8")
    first, last = map(int, text.split())
    for _ in range(100):
        port = random.SystemRandom().randrange(10_000, 60_000)
        if first <= port <= last:
            continue
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise OSError("no free port")


class Servers:
    """On addresses that stay the same over a restart."""

    def __init__(self, start_server, stack, config):
        self.start_server, self.stack, self.config = start_server, stack, config
        self.addresses, self.running = [], {}

    def start(self, address, config=None):
        flags = (f"--openai={address}", "--grace-seconds=3600")
        server = self.start_server(config or self.config, *flags)
        self.stack.callback(server.stop, signal.SIGKILL)
        self.running[address] = server
        return server

    def add(self, config=None, address=None):
        address = address or f"127.0.0.1:{free_port()}"
        self.addresses.append(address)
        self.start(address, config)

    def requests(self):
        """Answered HTTP requests for completions by server."""
        return {address: completed(server) for address, server in self.running.items()}


def completed(server):
    """Requests that ran, of the model `fake`."""
    found = re.findall(
        r'^tandem_requests_total\{[^}]*model="fake"[^}]*\} (\S+)$', server.metrics(), re.MULTILINE
    )
    return int(sum(map(float, found)))


class TestPicker:
    """tests/deploy/picker.py as a process."""

    __test__ = False

    def __init__(self, stack, folder, addresses):
        self.output = folder / "picker"
        ports = folder / "picker-port"
        command = [sys.executable, "-m", "tests.deploy.picker", "--port-file", ports, *addresses]
        out = stack.enter_context(self.output.open("wb"))
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=out)
        stack.callback(self.process.wait, 60)
        stack.callback(self.process.kill)
        self.until(ports.exists)
        self.address = f"127.0.0.1:{ports.read_text()}"
        for address in addresses:
            self.until(lambda address=address: self.waiting(address) is not None)

    def until(self, condition):
        """`60` only bounds a failure."""
        end = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, self.output.read_text()
            time.sleep(0.02)

    def waiting(self, address):
        """What it last saw; None: that the server does not answer."""
        lines = [
            json.loads(line)
            for line in self.output.read_text().splitlines(True)
            if line[-1] == "\n"
        ]
        seen = [line for line in lines if line["server"] == address]
        return seen[-1].get("waiting") if seen else None

    def kill(self):
        self.process.kill()
        self.process.wait(60)


POOL = ("inference.networking.k8s.io/v1", "InferencePool")
KINDS = {("v1", "Pod"): "pods", POOL: "inferencepools"}


def items_of(file, *kinds):
    items = yaml.safe_load_all((GATEWAY / file).read_text("utf-8"))
    return [item for item in items if item["kind"] in kinds]


def stand_in(stack, objects):
    """The kubeconfig of a test's API server."""
    for number, item in enumerate(objects):
        item["metadata"] |= {"namespace": "default", "uid": str(number), "resourceVersion": "1"}
    api = KubeApi(objects, KINDS)
    stack.callback(api.close)
    return api.kubeconfig()


class RealPicker(TestPicker):
    """The picker of gateway-api-inference-extension with the arguments and files of deploy/gateway, for pods
    that exist in an API server only: serve(stack, [pool, *pods]) gives its kubeconfig. All addresses have one
    port."""

    def __init__(self, program, stack, folder, addresses, serve=stand_in):
        self.output = folder / "epp"
        (pool,) = items_of("pool.yaml", "InferencePool")
        (deployment,) = items_of("picker.yaml", "Deployment")
        (port,) = {int(address.rsplit(":", 1)[1]) for address in addresses}
        pool["spec"]["targetPorts"] = [{"number": port}]
        pods = [pod_of(address, pool, i) for i, address in enumerate(addresses)]
        kubeconfig = serve(stack, [pool, *pods])
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig), "utf-8")
        ports = {9002: free_port(), 9003: free_port(), 9090: free_port()}
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        args = [arg.replace("/config/", f"{GATEWAY}/") for arg in container["args"]]
        for old, new in ports.items():
            args = [arg.replace(f"={old}", f"={new}") for arg in args]
        out = stack.enter_context(self.output.open("wb"))
        environment = {"KUBECONFIG": str(folder / "kubeconfig"), "NAMESPACE": "default"}
        command = [program, *args, "--secure-serving=false"]
        self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        stack.callback(self.process.wait, 60)
        stack.callback(self.process.kill)
        self.metrics = f"http://127.0.0.1:{ports[9090]}/metrics"
        self.address = f"127.0.0.1:{ports[9002]}"
        self.pods = {
            address: pod["metadata"]["name"] for address, pod in zip(addresses, pods, strict=True)
        }
        for address in addresses:
            self.until(lambda address=address: self.waiting(address) is not None)

    def waiting(self, address):
        try:
            with urllib.request.urlopen(self.metrics, timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        name = re.escape(self.pods[address])
        series = rf'^inference_pool_per_pod_queue_size\{{.*"{name}(?:-rank-0)?".*\}} (\S+)$'
        found = re.search(series, text, re.MULTILINE)
        return float(found.group(1)) if found else None


def pod_of(address, pool, number):
    ready = [{"type": "Ready", "status": "True"}]
    labels = pool["spec"]["selector"]["matchLabels"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"tandem-{number}", "labels": labels},
        "spec": {"containers": [{"name": "tandem-server", "image": "tandem:cpu"}]},
        "status": {
            "phase": "Running",
            "podIP": address.split(":")[0],
            "podIPs": [{"ip": address.split(":")[0]}],
            "conditions": ready,
        },
    }


def here(certificate, addresses, picker, policy):
    """The shipped configuration with this machine's addresses. `policy`: without a picker."""
    text = (STANDALONE / "envoy.yaml").read_text("utf-8")
    config = yaml.safe_load(text.replace("/etc/envoy/tls", str(certificate)))
    config["admin"]["address"] = address_of("127.0.0.1:0")
    resources = config["static_resources"]
    listeners = {listener["name"]: listener for listener in resources["listeners"]}
    listeners["tandem"]["address"] = address_of("127.0.0.1:0")
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    ends = {"tandem": addresses, "picker": [picker or "127.0.0.1:1"]}
    for name, addresses in ends.items():
        clusters[name]["load_assignment"]["endpoints"] = [
            {"lb_endpoints": [{"endpoint": {"address": address_of(a)}} for a in addresses]}
        ]
    # Until a server was healthy once, a check follows another at once.
    (check,) = clusters["tandem"]["health_checks"]
    check["unhealthy_interval"] = check["no_traffic_interval"] = "1s"
    # Servers on loopback addresses refuse other names.
    check["http_health_check"]["host"] = "localhost"
    if policy:
        manager = listeners["picked"]["filter_chains"][0]["filters"][0]
        filters = manager["typed_config"]["http_filters"]
        filters[:] = [f for f in filters if "ext_proc" not in f["name"]]
        name = f"envoy.load_balancing_policies.{policy}"
        kind = f"{name}.v3.{''.join(part.title() for part in policy.split('_'))}"
        kind = kind.replace("envoy.", "type.googleapis.com/envoy.extensions.", 1)
        typed = {"name": name, "typed_config": {"@type": kind}}
        clusters["tandem"]["load_balancing_policy"] = {
            "policies": [{"typed_extension_config": typed}]
        }
    return config


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def gateway(envoy, certificate, stack, tmp_path):
    """gateway(addresses, picker, policy, name): an Envoy with healthy servers."""

    def start(addresses, picker=None, policy=None, name="envoy"):
        folder = tmp_path / name
        folder.mkdir()
        text = yaml.safe_dump(here(certificate, addresses, picker, policy))
        (folder / "envoy.yaml").write_text(text, "utf-8")
        return start_envoy(stack, envoy, folder, certificate, {"tandem": len(addresses)})

    return start


@pytest.fixture
def three(start_server, stack):
    servers = Servers(start_server, stack, SERVER % (0, 1))
    for _ in range(3):
        servers.add()
    return servers


def body(model="fake", tokens=3, **fields):
    return json.dumps(
        {"model": model, "prompt": "x", "max_tokens": tokens, "ignore_eos": True, **fields}
    )


def post(proxy, headers=None, **fields):
    return proxy.get("/v1/completions", headers, body(**fields))


class Stream:
    """A completion that streams; its times are those since `begin`."""

    def __init__(self, where, context, path, text):
        begin = time.monotonic()
        make = http.client.HTTPSConnection if context else http.client.HTTPConnection
        keywords = {"context": context} if context else {}
        host, port = where.rsplit(":", 1)
        self.connection = make(host, int(port), timeout=60, **keywords)
        self.connection.request("POST", path, text, {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        self.first = None
        self.begin = begin

    def next(self):
        """The next chunk, or None."""
        while line := self.response.readline():
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                if self.first is None:
                    self.first = time.monotonic() - self.begin
                return json.loads(line[6:])
        return None

    def close(self):
        self.connection.close()


def occupy(stack, address, model="endless"):
    """Two requests at the server itself: one runs, the other waits."""
    held = Stream(address, None, "/v1/completions", body(model, 100_000, stream=True))
    stack.callback(held.close)
    assert held.next()
    waits = http.client.HTTPConnection(*address.split(":"), timeout=60)
    waits.request("POST", "/v1/completions", body(model, 1), {"Content-Type": "application/json"})
    stack.callback(waits.close)
    return held


def test_the_shipped_file_is_valid(envoy, certificate, tmp_path):
    text = (STANDALONE / "envoy.yaml").read_text("utf-8")
    (tmp_path / "envoy.yaml").write_text(text.replace("/etc/envoy/tls", str(certificate)))
    command = [envoy, "--mode", "validate", "--config-path", tmp_path / "envoy.yaml"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert [
        line for line in run.stderr.splitlines() if "[warning]" in line or "eprecat" in line
    ] == []


def test_requests_go_where_none_waits_and_on_without_the_picker(three, gateway, stack, tmp_path):
    busy, *free = three.addresses
    picker = TestPicker(stack, tmp_path, three.addresses)
    proxy = gateway(three.addresses, picker.address)
    assert post(proxy)[0] == 200
    with contextlib.ExitStack() as occupants:
        occupy(occupants, busy)
        picker.until(lambda: picker.waiting(busy) == 1)
        before = three.requests()
        for _ in range(20):
            assert post(proxy)[0] == 200
        # Only the picker may name a server.
        for _ in range(5):
            assert post(proxy, headers={HEADER: busy})[0] == 200
        after = three.requests()
    assert after[busy] == before[busy]
    assert sum(after[a] - before[a] for a in free) == 25
    assert proxy.stat("http.picked.ext_proc.streams_started") >= 26

    # Paths of the server that are not for clients.
    for path in ("/metrics", "/metrics/gateway", "/healthz", "/"):
        assert proxy.get(path)[0] == 404, path

    # A prompt of many chunks passes the picker unchanged.
    text = "lorem ipsum " * 15_000
    status, answer = proxy.get(
        "/v1/completions", {}, json.dumps({"model": "endless", "prompt": text, "max_tokens": 1})
    )
    assert status == 200
    assert json.loads(answer)["usage"]["prompt_tokens"] > 10_000

    # Without an answer of the picker, a request continues when its connection ends.
    picker.process.send_signal(signal.SIGSTOP)
    assert post(proxy)[0] == 200
    picker.process.send_signal(signal.SIGCONT)

    # A stream that the picker started continues after its end.
    context = ssl.create_default_context(cafile=proxy.certificate / "tls.crt")
    where = f"localhost:{proxy.port}"
    stream = Stream(where, context, "/v1/completions", body("endless", 200, stream=True))
    stack.callback(stream.close)
    assert stream.next()
    picker.kill()
    chunks = 1
    while stream.next():
        chunks += 1
    assert chunks >= 100
    for _ in range(20):
        assert post(proxy)[0] == 200
    assert post(proxy, headers={HEADER: "127.0.0.1:1"})[0] == 200
    # Those which had sent a part of the body were sent again without the picker.
    assert proxy.stat("http.picked.ext_proc.streams_failed") >= 21
    assert proxy.stat("cluster.picked.upstream_rq_retry_success") >= 1


def on_one_port(start_server, stack):
    servers = Servers(start_server, stack, SERVER % (0, 1))
    port = free_port()
    for host in HOSTS:
        servers.add(address=f"{host}:{port}")
    return servers


def test_the_real_picker_reads_the_gauges(start_server, gateway, stack, tmp_path, tool):
    program = tool("epp")
    servers = on_one_port(start_server, stack)
    picker = RealPicker(program, stack, tmp_path, servers.addresses)
    proxy = gateway(servers.addresses, picker.address)
    check_picks(servers, picker, proxy)
    picker.kill()
    for _ in range(10):
        assert post(proxy)[0] == 200


def counts_of(servers, proxy, number, text):
    """How many of `number` requests each server got."""
    before = servers.requests()
    for i in range(number):
        assert post(proxy, prompt=f"{i} {text}")[0] == 200
    after = servers.requests()
    return {address: after[address] - before[address] for address in servers.addresses}


def check_picks(servers, picker, proxy):
    busy, *free = servers.addresses
    assert post(proxy)[0] == 200
    with contextlib.ExitStack() as occupants:
        occupy(occupants, busy)
        picker.until(lambda: picker.waiting(busy) == 1)
        # The only queue. No server has a prefix of these prompts, which are shorter than a block.
        counts = counts_of(servers, proxy, 20, "lorem ipsum")
    assert counts[busy] == 0
    assert sum(counts[a] for a in free) == 20
    after = servers.requests()
    # A long prompt that repeats stays on one server, whose prefix cache has it.
    text = "lorem ipsum dolor sit amet " * 100
    for _ in range(8):
        assert post(proxy, prompt=text)[0] == 200
    now = servers.requests()
    assert sorted(now[a] - after[a] for a in servers.addresses) == [0, 0, 8]
    assert proxy.stat("http.picked.ext_proc.streams_failed") == 0


@pytest.mark.skipif("TANDEM_NIGHT" not in os.environ, reason="scripts/test --night runs it")
def test_the_real_picker_in_a_real_api_server(start_server, gateway, stack, tmp_path, tool):
    """With the role of deploy/gateway and the schema of the pool. A pod that goes gets no requests."""
    program = tool("epp")
    if not CRD.exists():
        pytest.skip("no schemas of custom resources: scripts/setup --full")
    api = ApiServer(tool, stack, tmp_path / "api", free_port)
    pods = []

    def serve(_, objects):
        api.create(yaml.safe_load(CRD.read_text("utf-8")))
        for item in items_of("picker.yaml", "ServiceAccount", "Role", "RoleBinding"):
            api.create(item)
        for item in objects:
            api.create(item)
        pods.extend(objects[1:])
        return api.kubeconfig("tandem-picker")

    servers = on_one_port(start_server, stack)
    picker = RealPicker(program, stack, tmp_path, servers.addresses, serve)
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.call("GET", "api/v1/namespaces/default/pods", token="stranger-token")
    assert refused.value.code == 403
    proxy = gateway(servers.addresses, picker.address)
    check_picks(servers, picker, proxy)
    gone, *left = servers.addresses
    api.delete(pods[0])
    picker.until(lambda: picker.waiting(gone) is None)
    counts = counts_of(servers, proxy, 10, "lorem ipsum")
    assert counts[gone] == 0
    assert sum(counts[a] for a in left) == 10
    # It comes back, as the only one without a queue.
    api.create(pods[0])
    picker.until(lambda: picker.waiting(gone) is not None)
    with contextlib.ExitStack() as occupants:
        for address in left:
            occupy(occupants, address)
            picker.until(lambda address=address: picker.waiting(address) == 1)
        assert counts_of(servers, proxy, 10, "dolor sit")[gone] == 10


def test_a_rolling_restart_loses_no_request(three, gateway, stack, tmp_path):
    picker = TestPicker(stack, tmp_path, three.addresses)
    proxy = gateway(three.addresses, picker.address)
    lost, answered = [], 0
    restarted = threading.Event()

    def traffic():
        nonlocal answered
        while not restarted.is_set() or answered < 30:
            status, answer = post(proxy)
            answered += 1
            if status != 200:
                lost.append((status, answer))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        calls = [pool.submit(traffic) for _ in range(3)]
        try:
            for address in three.addresses:
                old = three.running[address]
                assert old.stop() == 0
                picker.until(lambda address=address: picker.waiting(address) is None)
                three.start(address)
                picker.until(lambda address=address: picker.waiting(address) is not None)
                old = proxy.stat("cluster.tandem.health_check.success")
                three.running[address].until(
                    lambda: proxy.stat("cluster.tandem.membership_healthy") == 3, "it is healthy"
                )
            three.running[address].until(
                lambda: all(three.requests().values()), "all new servers have answered"
            )
        finally:
            restarted.set()
        for call in calls:
            call.result()
    assert lost == []


def measure(proxy, count, rate, seed=7):
    """Times to the first token of requests that arrive as a Poisson process, in seconds."""
    context = ssl.create_default_context(cafile=proxy.certificate / "tls.crt")
    where = f"localhost:{proxy.port}"

    def ask():
        stream = Stream(where, context, "/v1/completions", body(tokens=20, stream=True))
        with contextlib.closing(stream):
            assert stream.response.status == 200
            while stream.next():
                pass
            return stream.first

    arrivals = random.Random(seed)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        calls = []
        for _ in range(count):
            calls.append(pool.submit(ask))
            time.sleep(arrivals.expovariate(rate))
        return sorted(call.result() for call in calls)


@pytest.mark.skipif("TANDEM_NIGHT" not in os.environ, reason="scripts/test --night runs it")
def test_latency_with_a_slow_server(start_server, gateway, stack, tmp_path, tool):
    """Three servers, one of them ten times slower: figures for two policies of Envoy and two pickers.
    What is asserted: every request is answered, and with a picker the slow server gets fewer of them."""
    count, rate = 90, 12
    servers = Servers(start_server, stack, SERVER % (0.005, 2))
    port = free_port()
    slow, *fast = (f"{host}:{port}" for host in HOSTS)
    servers.add(SERVER % (0.05, 2), slow)
    for address in fast:
        servers.add(address=address)

    def run(name, picker=None, policy=None):
        proxy = gateway(servers.addresses, picker and picker.address, policy, name)
        before = servers.requests()
        times = measure(proxy, count, rate)
        after = servers.requests()
        assert len(times) == count
        assert sum(after.values()) - sum(before.values()) == count
        share = after[slow] - before[slow]
        print(
            f"{name:14} time to first token: median {times[count // 2]:.3f} s, "
            f"p99 {times[int(count * 0.99)]:.3f} s; slow server: {share} of {count}"
        )
        return share

    assert run("round robin", policy="round_robin") == count // 3
    run("least request", policy="least_request")
    assert run("test picker", TestPicker(stack, tmp_path, servers.addresses)) < count // 3
    real = RealPicker(tool("epp"), stack, tmp_path, servers.addresses)
    assert run("real picker", real) < count // 3
