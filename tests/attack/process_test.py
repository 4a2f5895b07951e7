"""What operators do to a server while it has much to do: logs nobody reads, signals, restarts."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest

from tests.attack.harness import MODELS

TOKEN = "0123456789abcdef"


@pytest.fixture
def start(binaries, tmp_path):
    """start(text, *flags, **Popen's): a process and its addresses, of grpc and http."""
    processes = []

    def run(text="", *flags, **options):
        name = str(len(processes))
        (tmp_path / name).write_text(MODELS + text, "utf-8")
        ports = tmp_path / f"{name}.ports"
        process = subprocess.Popen(
            [
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
        end = time.monotonic() + 60
        while not ports.exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        return process, dict(line.split("=", 1) for line in ports.read_text().split())

    yield run
    for process in processes:
        process.kill()
        process.wait(10)


def complete(api, address, **fields):
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = api.messages.GenerateRequest(
            model=fields.pop("model", "fake"), text="x", max_new_tokens=2, ignore_eos=True
        )
        return api.services.GenerationStub(channel).Complete(request, timeout=60, **fields)


def test_a_log_that_nobody_reads(start, api):
    """Costs lines and nothing else: calls are answered, and the drain ends well."""
    ends = os.pipe()
    process, ports = start(stderr=ends[1])
    os.close(ends[1])
    with grpc.insecure_channel(ports["grpc"]) as channel:
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
    """With 256 files there is room for 128 connections, and probes are answered whatever comes."""
    process, ports = start(
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    )

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
    """Calls that would take hours do not keep a server that was told to end."""
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
    assert process.wait(60) == 0
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, codes
    print(f"drained {len(streams)} calls in {time.monotonic() - began:.1f} s, grace 1 s")
    channel.close()


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


def test_a_rolling_restart_loses_no_request(start, api):
    """Two servers behind round robin; one is restarted while clients that retry UNAVAILABLE, as
    documented, keep asking."""
    policy = """{"loadBalancingConfig": [{"round_robin": {}}],
      "methodConfig": [{"name": [{"service": "tandem.v1.Generation"}], "retryPolicy": {
        "maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"]}}]}"""
    first, one = start("", stderr=subprocess.DEVNULL)
    _, two = start("", stderr=subprocess.DEVNULL)
    channel = grpc.insecure_channel(
        f"ipv4:{one['grpc']},{two['grpc']}",
        [("grpc.service_config", policy), ("grpc.enable_retries", 1)],
    )
    stub = api.services.GenerationStub(channel)
    request = api.messages.GenerateRequest(
        model="slow", text="x", max_new_tokens=4, ignore_eos=True
    )
    stop, failed, answered = threading.Event(), [], []

    def ask():
        while not stop.is_set():
            try:
                stub.Complete(request, timeout=60)
                answered.append(1)
            except grpc.RpcError as error:
                failed.append(error.code())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(answered) < 50:
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    after = len(answered) + 50
    while len(answered) < after:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join(60)
    channel.close()
    print(f"{len(answered)} answered, {len(failed)} lost")
    assert failed == []
