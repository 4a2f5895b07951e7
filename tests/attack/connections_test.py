"""Connections without number, files without rest, calls before any limit is acknowledged."""

import contextlib
import resource
import struct

import grpc
import pytest

from tests.attack.http2 import PREFACE, frame, headers, literal, remembered

OTHER_HOST = "127.0.0.2"


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
    with target.bystander(allowed=192), target.connect() as connection:
        connection.sendall(PREFACE + frame(4, 0, 0) + frame(1, 4, 1, first))
        opened = 1
        try:
            for begin in range(1, 60_000, 500):
                connection.sendall(
                    b"".join(frame(1, 4, 2 * i + 1, later) for i in range(begin, begin + 500))
                )
                opened = begin + 500
        except ConnectionError:
            pass
        assert closed(connection), opened
    assert target.memory() < before + (192 << 20)
    assert target.metric("tandem_calls_refused_total") >= 1
    target.assert_no_call_is_left()
    target.assert_serves()


@pytest.mark.parametrize("call", ["cancelled", "expired"])
def test_calls_that_end_at_once(attack, call):
    """On 20 connections of a host calls are opened and ended at once (CVE-2023-44487), or have no time
    at all: up to 30,000 of them. They give their places back, and the bystander is not refused. The
    server closes connections whose calls mostly end at once."""
    target = attack()
    first, later = remembered(b"/tandem.v1.Generation/Generate")
    if call == "expired":
        later += literal(b"grpc-timeout", b"1n")
    end = b"" if call == "expired" else struct.pack(">I", 8)

    def calls(begin, end_of):
        for stream in range(2 * begin + 1, 2 * end_of + 1, 2):
            yield frame(1, 4, stream, later) + (frame(3, 0, stream, end) if end else b"")

    with contextlib.ExitStack() as held, target.bystander(allowed=640):
        connections = [held.enter_context(target.connect(OTHER_HOST)) for _ in range(20)]
        for connection in connections:
            begin = PREFACE + frame(4, 0, 0) + frame(4, 1, 0)
            connection.sendall(begin + frame(1, 4, 1, first) + frame(3, 0, 1, struct.pack(">I", 8)))
        gone = set()
        for begin in range(1, 1500, 100):
            for connection in connections:
                if connection in gone:
                    continue
                try:
                    connection.sendall(b"".join(calls(begin, begin + 100)))
                except ConnectionError:  # more were open than may be
                    gone.add(connection)
        target.assert_no_call_is_left()
        heard, lost = (
            target.metric(f"tandem_{what}_total")
            for what in ("requests_failed", "pending_calls_expired")
        )
        # A share, not a number: how many end before a service has them depends on the machine. If
        # gRPC had to queue calls, most admitted calls would be lost.
        assert heard >= 1500, f"no attack: {heard} calls came, {len(gone)} connections are gone"
        assert lost < heard / 2, f"{lost} calls lost their places, and {heard} were heard of"
        assert target.metric("tandem_connections_closed_total") >= 1
    target.assert_serves()


@pytest.mark.parametrize("version", [b"v1", b"v1alpha"])
def test_reflection_without_settings_ack(attack, version):
    """It takes no threads, and ends the connection."""
    target = attack()
    threads = target.threads()
    call = headers(b"/grpc.reflection." + version + b".ServerReflection/ServerReflectionInfo")
    with target.bystander(), target.connect() as connection:
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
                held.append(target.connect())
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
    held = []
    for _ in range(60):
        with contextlib.suppress(ConnectionResetError):  # a refused one may end while it connects
            held.append(target.connect())
    target.until(lambda: target.metric("tandem_connections_refused_total") >= 40, "some are closed")
    assert target.metric("tandem_connections") <= 20
    assert target.http("/healthz")[0] == 200
    for connection in held:
        connection.close()
    target.until(lambda: target.metric("tandem_connections") == 0, "connections are forgotten")
    target.assert_serves()


def test_watches_with_long_names(attack):
    """Health needs no credentials, and so has little room: names of 128 bytes, 96 watches of a host."""
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
    assert codes.count("open") == 96, "of one host; 32 are left to others"
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 104
    for stream in watches:
        stream.cancel()
    target.assert_serves()


def test_one_host_leaves_capacity_for_others(attack):
    """It opens all calls, checks and watches of health that it can, and sends nothing more."""
    target = attack("server { max_open_calls: 2000 }")
    check, watch = b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"
    nothing = b"\0\0\0\0\0"  # a message without fields
    with contextlib.ExitStack() as held, target.bystander():

        def hold(connections, calls, path, message=None):
            for _ in range(connections):
                connection = held.enter_context(target.connect(OTHER_HOST))
                connection.sendall(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
                for i in range(calls):
                    data = b"" if message is None else frame(0, 1, 2 * i + 1, message)
                    connection.sendall(frame(1, 4, 2 * i + 1, headers(path)) + data)

        before = target.metric("tandem_calls_refused_total")
        hold(2, 100, watch, nothing)
        hold(4, 100, check)
        hold(3, 1000, b"/tandem.v1.Generation/Generate")
        target.until(
            lambda: target.metric("tandem_calls_refused_total") >= before + 1500, "it is refused"
        )
        assert target.metric("tandem_open_calls") <= 1500 + 2  # and the bystander's
        channel = target.client().channel
        assert channel.unary_unary(check.decode())(b"", timeout=60) == b"\x08\x01"
        watching = channel.unary_stream(watch.decode())(b"", timeout=60)
        assert next(watching) == b"\x08\x01"
        watching.cancel()
        target.assert_serves()
    target.assert_no_call_is_left()


def test_open_calls_are_bounded(attack):
    target = attack("server { max_open_calls: 50 }")
    held = [target.client().generate(model="slow", max_new_tokens=2000) for _ in range(38)]
    for stream in held:
        next(stream)
    error = target.client().refusal()
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert target.client().details(error)[0] == "TOO_MANY_CALLS"
    assert "of one host: limit 38" in error.details()
    assert target.http("/healthz")[0] == 200, "being full is no illness"
    for stream in held:
        stream.cancel()
    target.until(lambda: target.metric("tandem_open_calls") == 0, "no call is left")
    target.assert_serves()
    target.assert_quiet()
