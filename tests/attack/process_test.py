"""Operations on a loaded server: logs without a reader, signals, restarts."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.error
import urllib.request

import grpc
import pytest

from tests.attack.harness import MODELS, Target, record
from tests.conftest import Server

TOKEN = "0123456789abcdef"


@pytest.fixture
def start(binaries, tmp_path):
    """start(text, *flags, **Popen's): a process and its addresses, of grpc and http; where it is not
    `served`, that is, none of its ports is waited for, the process. `prefix`: a command that runs it."""
    processes = []

    def run(text="", *flags, served=True, prefix=(), **options):
        name = str(len(processes))
        (tmp_path / name).write_text(MODELS + text, "utf-8")
        ports = tmp_path / f"{name}.ports"
        process = subprocess.Popen(
            [
                *prefix,
                binaries / "tandem-server",
                f"--config={tmp_path / name}",
                "--listen=127.0.0.1:0",
                "--http=127.0.0.1:0",
                f"--port-file={ports}",
                *flags,
            ],
            **options,
        )
        processes.append(process)
        if not served:
            return process
        end = time.monotonic() + 60
        while not ports.exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        return process, dict(line.split("=", 1) for line in ports.read_text().split())

    yield run
    for process in processes:
        process.kill()
        process.wait(10)


def metric(ports, name):
    """Sum of the samples of that name."""
    with urllib.request.urlopen(f"http://{ports['http']}/metrics", timeout=30) as page:
        lines = [line.split(" ") for line in page.read().decode().splitlines()]
    return sum(float(line[1]) for line in lines if line[0].split("{")[0] == name)


def until(condition):
    """`60` only bounds a failure."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def ready(ports):
    """Whether /readyz says so."""
    try:
        with urllib.request.urlopen(f"http://{ports['http']}/readyz", timeout=30) as page:
            return page.status == 200
    except urllib.error.HTTPError:
        return False


def complete(api, address, **fields):
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = api.messages.GenerateRequest(
            model=fields.pop("model", "fake"), text="x", max_new_tokens=2, ignore_eos=True
        )
        return api.services.GenerationStub(channel).Complete(request, timeout=60, **fields)


def test_a_log_without_a_reader(start, api):
    """Costs lines and nothing else: calls are answered, and the drain ends well."""
    ends = os.pipe()
    process, ports = start(stderr=ends[1])
    os.close(ends[1])
    target = Target(Server(process, None, ports), api)
    with target.bystander(), grpc.insecure_channel(ports["grpc"]) as channel:
        stub = api.services.GenerationStub(channel)
        request = api.messages.GenerateRequest(model="m" * 200, text="x")
        for _ in range(2000):  # far more than the pipe holds
            with pytest.raises(grpc.RpcError):
                stub.Complete(request, timeout=60)
    assert complete(api, ports["grpc"]).choices
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    os.close(ends[0])


def test_few_files(start, api):
    """256 file descriptors allow 128 connections, and probes are always answered."""
    process, ports = start(stderr=subprocess.DEVNULL, prefix=["prlimit", "--nofile=256:256", "--"])

    def health():
        with urllib.request.urlopen(f"http://{ports['http']}/healthz", timeout=30) as page:
            return page.status

    host, port = ports["grpc"].rsplit(":", 1)
    held = []
    for _ in range(400):
        with contextlib.suppress(ConnectionError):
            held.append(socket.create_connection((host, int(port)), timeout=30))
        if len(held) % 100 == 0:
            assert health() == 200
    assert health() == 200
    for connection in held:
        connection.close()
    end = time.monotonic() + 30
    while True:  # until their places are free
        try:
            assert complete(api, ports["grpc"]).choices
            break
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() < end
    assert process.poll() is None


def test_a_drain_with_a_backlog_ends(start, api):
    """Calls that would take hours do not delay a shutdown."""
    process, ports = start("", "--grace-seconds=1", stderr=subprocess.DEVNULL)
    channel = grpc.insecure_channel(ports["grpc"])
    stub = api.services.GenerationStub(channel)
    request = api.messages.GenerateRequest(
        model="slow", text="x" * 1000, max_new_tokens=2000, ignore_eos=True
    )
    streams = [stub.Generate(request) for _ in range(200)]
    next(streams[0])
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    codes = set()
    for stream in streams:
        try:
            for _ in stream:
                pass
            codes.add(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            codes.add(error.code())
    assert process.wait(60) == 0, "3: it took longer than the grace and 5 s"
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, codes
    record(drained=len(streams), seconds=time.monotonic() - began)
    channel.close()


def test_asked_twice_it_ends_at_once(start, api, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        process, ports = start("", "--grace-seconds=3600", stderr=log)
    log_text = (tmp_path / "log").read_text
    with grpc.insecure_channel(ports["grpc"]) as channel:
        request = api.messages.GenerateRequest(
            model="slow", text="x", max_new_tokens=4000, ignore_eos=True
        )
        call = api.services.GenerationStub(channel).Generate(request)
        next(call)
        process.send_signal(signal.SIGTERM)
        until(lambda: not ready(ports))
        process.send_signal(signal.SIGHUP)
        until(lambda: f"event=signal number={signal.SIGHUP:d}" in log_text())
        next(call)
        assert process.poll() is None, "SIGHUP does not end the drain"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1
        call.cancel()


def test_signals_before_anything_is_served(start, tmp_path):
    """SIGHUP ends nothing, and SIGTERM at once: there is nothing to drain."""
    trace = tmp_path / "trace"
    os.mkfifo(trace)  # without a reader, so the model is never loaded
    waits = f'models {{ name: "waits" fake {{ trace_file: "{trace}" }} }}'
    with (tmp_path / "log").open("wb") as log:
        process = start(waits, stderr=log, served=False)
    until(lambda: process.poll() is None and "listening" in (tmp_path / "log").read_text())
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert "event=ready" not in (tmp_path / "log").read_text()


def test_hangup_rereads_tokens(start, api, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {TOKEN}\n")
    with (tmp_path / "log").open("wb") as log:
        process, ports = start(f'server {{ bearer_token_file: "{tokens}" }}', stderr=log)

    def code(token):
        try:
            complete(api, ports["grpc"], metadata=[("authorization", f"Bearer {token}")])
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def hang_up(lines):
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 30
        while (tmp_path / "log").read_text().count("event=reload") < lines:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.02)

    other = TOKEN[::-1]
    assert code(TOKEN) == grpc.StatusCode.OK
    tokens.write_text(f"bob {other}\n")
    hang_up(1)
    assert code(TOKEN) == grpc.StatusCode.PERMISSION_DENIED
    assert code(other) == grpc.StatusCode.OK
    tokens.write_text("bob short\n")
    hang_up(2)
    assert code(other) == grpc.StatusCode.OK, "what cannot be read stays as it was"
    assert TOKEN not in (tmp_path / "log").read_text()


def test_a_port_file_that_cannot_be_written(binaries, tmp_path):
    (tmp_path / "config").write_text(MODELS)
    run = subprocess.run(
        [
            binaries / "tandem-server",
            f"--config={tmp_path / 'config'}",
            "--listen=127.0.0.1:0",
            "--http=off",
            f"--port-file={tmp_path}/nowhere/ports",
        ],
        capture_output=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert b"--port-file: cannot write" in run.stderr


# docs/reliability.md, Restarts.
POLICY = """{"loadBalancingConfig": [{"round_robin": {}}],
  "methodConfig": [{"name": [{"service": "tandem.v1.Generation"}], "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}}]}"""


class Clients:
    """Threads that ask all the time, as documented, on one channel; half of them for streams."""

    def __init__(self, api, addresses, threads=8):
        self.channel = grpc.insecure_channel(
            "ipv4:" + ",".join(addresses),
            [
                ("grpc.service_config", POLICY),
                ("grpc.enable_retries", 1),
                ("grpc.max_reconnect_backoff_ms", 500),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self.stub = api.services.GenerationStub(self.channel)
        self.request = api.messages.GenerateRequest(
            model="slow", text="x", max_new_tokens=6, ignore_eos=True, return_tokens=True
        )
        self.stopping = threading.Event()
        self.answered, self.lost = {"unary": 0, "stream": 0}, []
        asks = (self._complete, self._generate)
        self.threads = [
            threading.Thread(target=self._run, args=(asks[i % 2],)) for i in range(threads)
        ]
        for thread in self.threads:
            thread.start()

    def close(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
        self.channel.close()

    def count(self):
        return sum(self.answered.values())

    def _run(self, ask):
        while not self.stopping.is_set():
            try:
                kind, tokens = ask()
            except grpc.RpcError as error:
                self.lost.append((error.code().name, error.details()))
                continue
            if tokens == self.request.max_new_tokens:
                self.answered[kind] += 1
            else:
                self.lost.append((kind, tokens))

    def _complete(self):
        answer = self.stub.Complete(self.request, timeout=60)
        return "unary", answer.choices[0].finished.usage.completion_tokens

    def _generate(self):
        events = list(self.stub.Generate(self.request, timeout=60))
        return "stream", sum(len(e.chunk.tokens) for e in events if e.HasField("chunk"))


def test_a_rolling_restart_loses_no_request(start, api):
    """Two servers behind round robin, restarted one after the other while clients keep asking."""
    servers = [start("", stderr=subprocess.DEVNULL) for _ in range(2)]
    addresses = [ports["grpc"] for _, ports in servers]
    clients = Clients(api, addresses)

    def takes_part(ports):
        return metric(ports, "tandem_generated_tokens_total") > 200

    for i in (0, 1):
        process, ports = servers[i]
        until(lambda ports=ports: takes_part(ports))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        asked = clients.count() + 50
        until(lambda asked=asked: clients.count() > asked)  # the other server continues alone
        servers[i] = start("", f"--listen={addresses[i]}", stderr=subprocess.DEVNULL)
    for _, ports in servers:
        until(lambda ports=ports: takes_part(ports))
    clients.close()
    record(answered=clients.answered, lost=len(clients.lost))
    assert clients.lost == []
    assert min(clients.answered.values()) > 0


def test_a_drain_that_hangs_is_cut_off(start, api, tmp_path):
    """A device that never finishes a batch does not delay a shutdown."""
    trace = tmp_path / "trace"
    os.mkfifo(trace)
    reader = os.open(trace, os.O_RDONLY | os.O_NONBLOCK)  # and never reads
    room = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)

    def waiting():
        count = fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(count, sys.byteorder)

    stuck = f'models {{ name: "stuck" fake {{ trace_file: "{trace}" }} }}'
    with (tmp_path / "log").open("wb") as log:
        process, ports = start(stuck, "--grace-seconds=0", stderr=log)
    with grpc.insecure_channel(ports["grpc"]) as channel:
        stub = api.services.GenerationStub(channel)
        request = api.messages.GenerateRequest(
            model="stuck", text="x", max_new_tokens=4000, ignore_eos=True
        )
        call = stub.Generate(request)
        until(lambda: waiting() == room)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 3
        call.cancel()
    os.close(reader)
    assert "event=cut_off" in (tmp_path / "log").read_text()
