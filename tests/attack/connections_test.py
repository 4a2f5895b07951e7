"""Connections without number, files without rest, calls before any limit is acknowledged."""

import contextlib
import resource
import socket

import grpc
import pytest

from tests.attack.http2 import PREFACE, frame, headers, remembered


def connect(target):
    host, port = target.server.grpc.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def closed(connection):
    """Reads until the other side closes."""
    connection.settimeout(30)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def is_closed(connection):
    """Whether the server has closed it; it greets those that it takes."""
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True


@pytest.mark.parametrize("short", [False, True], ids=["whole", "indexed"])
@pytest.mark.parametrize(
    "path",
    [
        b"/tandem.v1.Generation/Generate",
        b"/tandem.v1.Generation/Complete",
        b"/grpc.health.v1.Health/Watch",
    ],
)
def test_streams_without_settings_ack(attack, path, short):
    """60,000 calls of headers alone (some 560 MiB if they were kept) from a client that acknowledges no
    limit, as bytes of which one read holds few calls or many. At most 1024 wait for a service, 2048 are
    open when the connection is closed, and two reads' worth is on its way out: some 64 MiB, with gRPC
    1.56 twice that, however late the threads are that take calls."""
    target = attack()
    target.on_one_processor()
    before = target.memory()
    first, later = remembered(path) if short else [headers(path)] * 2
    with target.bystander(), connect(target) as connection:
        connection.sendall(PREFACE + frame(4, 0, 0) + frame(1, 4, 1, first))
        opened = 1
        try:
            for begin in range(1, 60_000, 500):
                connection.sendall(
                    b"".join(frame(1, 4, 2 * i + 1, later) for i in range(begin, begin + 500))
                )
                opened = begin + 500
        except OSError:
            pass
        assert closed(connection), opened
    assert target.memory() < before + (192 << 20)
    assert target.metric("tandem_calls_refused_total") >= 1
    target.until(lambda: target.metric("tandem_open_calls") == 0, "no call is left")
    # Of some that ended with their connection nobody hears: their places come back in a minute.
    target.until(lambda: target.metric("tandem_unheard_calls") == 0, "no place is lost", 120)
    target.assert_serves()


@pytest.mark.parametrize("version", [b"v1", b"v1alpha"])
def test_reflection_without_settings_ack(attack, version):
    """It takes no threads, and ends the connection."""
    target = attack()
    threads = target.threads()
    call = headers(b"/grpc.reflection." + version + b".ServerReflection/ServerReflectionInfo")
    with target.bystander(), connect(target) as connection:
        connection.sendall(PREFACE + frame(4, 0, 0))
        connection.sendall(b"".join(frame(1, 4, 2 * i + 1, call) for i in range(600)))
        target.assert_serves()
        assert target.threads() < threads + 64
    target.assert_serves()


def test_more_connections_than_files(attack):
    """Where file descriptors run out connections are closed, and later ones are taken."""
    target = attack()
    limits = resource.prlimit(target.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (target.files() + 50, limits[1]))
    held = []
    with target.bystander():
        for _ in range(400):
            with contextlib.suppress(ConnectionError):  # a reset may come that soon
                held.append(connect(target))
        # Each is greeted or closed, none is left to wait. (How many depends on how fast they come:
        # those that say nothing give their places back.)
        refused = [c for c in held if is_closed(c)]
        assert 400 - len(held) + len(refused) > 0
        for connection in held:
            connection.close()

    def forgotten():
        with contextlib.suppress(OSError):  # while there is no file for it
            return target.metric("tandem_connections") < 10
        return False

    target.until(forgotten, "connections are forgotten")
    for _ in range(3):
        target.assert_serves()


def test_connections_of_one_host_are_bounded(attack):
    target = attack("server { max_connections: 100 max_connections_per_host: 20 }")
    held = [connect(target) for _ in range(60)]
    target.until(lambda: target.metric("tandem_connections_refused_total") >= 40, "some are closed")
    assert target.metric("tandem_connections") <= 20
    assert target.http("/healthz")[0] == 200
    for connection in held:
        connection.close()
    target.until(lambda: target.metric("tandem_connections") == 0, "connections are forgotten")
    target.assert_serves()


def test_watches_with_long_names(attack):
    """Health needs no credentials, and so has little room: names of 128 bytes, 128 watches."""
    target = attack()
    before = target.memory()
    watch = target.client().channel.unary_stream("/grpc.health.v1.Health/Watch")
    long = b"\x0a" + bytes((0x80 | 0x40, 0x84, 0x3D)) + b"x" * 1_000_000
    for _ in range(150):
        with pytest.raises(grpc.RpcError) as refused:
            next(watch(long, timeout=60))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert target.memory() < before + (64 << 20)

    codes = []
    watches = [watch(b"", timeout=60) for _ in range(200)]
    for stream in watches:
        try:
            next(stream)
            codes.append("open")
        except grpc.RpcError as error:
            codes.append(error.code())
    assert codes.count("open") == 128
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 72
    for stream in watches:
        stream.cancel()
    target.assert_serves()


def test_open_calls_are_bounded(attack):
    target = attack("server { max_open_calls: 50 }")
    held = [target.client().generate(model="slow", max_new_tokens=2000) for _ in range(50)]
    for stream in held:
        next(stream)
    error = target.client().refusal()
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert target.client().details(error)[0] == "TOO_MANY_CALLS"
    assert target.http("/healthz")[0] == 200, "being full is no illness"
    for stream in held:
        stream.cancel()
    target.until(lambda: target.metric("tandem_open_calls") == 0, "no call is left")
    target.assert_serves()
    target.assert_quiet()
