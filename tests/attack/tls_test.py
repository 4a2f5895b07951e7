"""Clients that misuse TLS on the port of the HTTP API: an observer's probes over TLS are answered meanwhile."""

import contextlib
import http.client
import os
import random
import ssl
import struct
import threading

import pytest
from http_test import send_until_refused
from mutations import mangled

FLAG = "--openai=127.0.0.1:0"
ATTACKER = "127.0.0.2"
HANDSHAKE, ALERT, DATA = 22, 21, 23


def context(certificates):
    return ssl.create_default_context(cafile=certificates / "ca.pem")


def tls_record(kind, payload, version=0x0303):
    return struct.pack(">BHH", kind, version, len(payload)) + payload


class Tls:
    """A client whose records can be seen and replaced: TLS in memory over a bare connection."""

    def __init__(self, connection, verify):
        self.socket = connection  # None: for a first flight alone
        if connection:
            connection.settimeout(60)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = verify.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")

    def first_flight(self):
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def handshake(self):
        self.socket.sendall(self.first_flight())
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(self.outgoing.read())
                self.incoming.write(self._receive())
        self.socket.sendall(self.outgoing.read())

    def sealed(self, data):
        """The records of `data`."""
        self.tls.write(data)
        return self.outgoing.read()

    def answer(self):
        """What the server sends until it ends the connection."""
        received = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while True:
                try:
                    piece = self.tls.read(1 << 16)
                    if not piece:
                        break
                    received += piece
                except ssl.SSLWantReadError:
                    self.incoming.write(self._receive())
        return received

    def _receive(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        return data


class Observer:
    """Asks /healthz over TLS again and again, in turns on a new connection and on one that stays open."""

    def __init__(self, target, verify):
        self.target, self.verify = target, verify
        self.answered, self.wrong = 0, []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        self._over.set()
        self._thread.join()

    def serves(self, more=4):
        """Waits until so many further probes are answered."""
        wanted = self.answered + more
        self.target.until(lambda: self.answered >= wanted or self.wrong, "the observer is answered")

    def _run(self):
        kept = self._connect()
        while not self._over.is_set():
            new = self._connect()
            for connection in (new, kept):
                self._probe(connection)
            new.close()
            self._over.wait(0.01)
        kept.close()

    def _connect(self):
        host, port = self.target.server.ports["openai"].rsplit(":", 1)
        return http.client.HTTPSConnection(host, int(port), timeout=60, context=self.verify)

    def _probe(self, connection):
        try:
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.wrong.append(repr(error))
            connection.close()  # the next request opens another
            return
        if answer.status != 200:
            self.wrong.append(answer.status)
        self.answered += 1


@pytest.fixture
def secure(attack, certificates):
    """secure(more): a server with TLS, and `more` of its section `server`."""

    def start(more=""):
        pair = f'certificate: "{certificates}/server.pem" key: "{certificates}/server.key"'
        return attack(f"server {{ tls {{ {pair} }} {more} }}", FLAG)

    return start


@pytest.fixture
def verify(certificates):
    return context(certificates)


def connect(target):
    return target.connect(ATTACKER, "openai")


@contextlib.contextmanager
def observed(target, verify, allowed=96):
    """The observer is answered before, in and after the `with`; memory may grow by `allowed` MiB."""
    observer = Observer(target, verify)
    try:
        observer.serves()
        before = target.memory()
        yield observer
        grown = target.memory() - before
        observer.serves()
    finally:
        observer.stop()
    print(f"{observer.answered} probes over TLS were answered, {grown / 2**20:.1f} MiB more")
    assert observer.wrong == []
    assert grown < allowed << 20, f"{grown >> 20} MiB more; allowed: {allowed}"
    target.until(lambda: target.metric("tandem_memory_bytes") < 1 << 20, "memory is released")


def ended(connection):
    """Reads until the server ends the connection; gives what it sent."""
    connection.settimeout(60)
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            received += piece
    return received


def test_half_handshakes(secure, verify):
    """As many connections as one host may have: silent, with half of a first flight, or only with it."""
    target = secure("max_connections_per_host: 200")
    first = Tls(None, verify).first_flight()
    with observed(target, verify) as observer, contextlib.ExitStack() as held:
        for i in range(200):
            connection = held.enter_context(connect(target))
            connection.sendall((b"", first[: len(first) // 2], first)[i % 3])
        observer.serves()
        assert target.metric("tandem_memory_bytes") >= 200 * 224 * 1024, "handshakes are charged"


def test_silence_after_the_handshake(secure, verify):
    """A request's head has the deadline of the handshake, whatever part of a record has come."""
    target = secure("handshake_timeout_seconds: 1")
    with observed(target, verify) as observer, contextlib.ExitStack() as held:
        clients = []
        for i in range(60):
            client = Tls(held.enter_context(connect(target)), verify)
            client.handshake()
            head = client.sealed(b"GET /v1/models HTTP/1.1\r\nA: ")
            client.socket.sendall((b"", head[:5], head[:-1], head)[i % 4])
            clients.append(client)
        observer.serves()
        for client in clients:
            assert client.answer()[:12] in (b"", b"HTTP/1.1 408")


AFTER_THE_HANDSHAKE = {
    "noise": lambda first: bytes(range(256)) * 20,
    "an unknown kind": lambda first: tls_record(99, b"x" * 100),
    "data in the clear": lambda first: tls_record(DATA, b"GET /v1/models HTTP/1.1\r\n\r\n"),
    "a record that is too long": lambda first: tls_record(DATA, b"x" * 20_000),
    "a second hello": lambda first: first,
    "a request to renegotiate": lambda first: tls_record(HANDSHAKE, b"\0\0\0\0"),
    "alerts": lambda first: tls_record(ALERT, b"\x01\x5a") * 1000,
    "empty records": lambda first: tls_record(DATA, b"") * 1000,
    "changes of the cipher": lambda first: tls_record(20, b"\x01") * 1000,
}


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_that_are_out_of_place(secure, certificates, newest):
    """After a handshake: each record ends its connection, and the server parses no request."""
    target = secure()
    verify = context(certificates)
    limited = context(certificates)
    limited.maximum_version = newest
    first = Tls(None, limited).first_flight()
    with observed(target, verify):
        for what, made in AFTER_THE_HANDSHAKE.items():
            for _ in range(5):
                with connect(target) as connection:
                    client = Tls(connection, limited)
                    client.handshake()
                    send_until_refused(connection, made(first), 1)
                    assert client.answer() == b"", what


def test_bits_of_a_request_that_are_flipped(secure, verify):
    """No altered request is answered."""
    target = secure()
    rng = random.Random(3)
    with observed(target, verify):
        for _ in range(60):
            with connect(target) as connection:
                client = Tls(connection, verify)
                client.handshake()
                data = bytearray(client.sealed(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"))
                data[rng.randrange(5, len(data))] ^= 1 << rng.randrange(8)
                send_until_refused(connection, data, 1)
                assert client.answer() == b""


def test_many_handshakes_at_once(secure, verify):
    """One client on 24 threads, whose handshakes are whole. Those that the server takes succeed."""
    target = secure()
    done, refused = [], []

    def shake():
        for _ in range(20):
            try:
                with connect(target) as connection:
                    Tls(connection, verify).handshake()
                    done.append(True)
            except OSError:
                refused.append(True)

    with observed(target, verify) as observer:
        threads = [threading.Thread(target=shake) for _ in range(24)]
        for thread in threads:
            thread.start()
        observer.serves()
        for thread in threads:
            thread.join()
    assert len(done) + len(refused) == 24 * 20
    assert len(done) > 24, "connections are closed, but not most of them"


def hello_of(size):
    """Records of a first message that announces `size` bytes."""
    message = b"\x01" + struct.pack(">I", size)[1:] + b"\x03\x03" + b"x" * (1 << 18)
    pieces = [message[i : i + 16_000] for i in range(0, len(message), 16_000)]
    return b"".join(tls_record(HANDSHAKE, piece, 0x0301) for piece in pieces)


@pytest.mark.parametrize("size", [(1 << 17) - 1, 1 << 17, (1 << 24) - 1])
def test_hellos_that_are_too_long(secure, verify, size):
    target = secure()
    with observed(target, verify, allowed=64), contextlib.ExitStack() as held:
        for _ in range(40):
            connection = held.enter_context(connect(target))
            taken = send_until_refused(connection, hello_of(size), 64 << 20)
            assert taken < 16 << 20, "the server continues to read"


def test_a_hello_in_records_of_one_byte(secure, verify):
    """It is legal, and served; 20 others stop in the middle."""
    target = secure()
    first = Tls(None, verify).first_flight()
    crumbs = b"".join(tls_record(HANDSHAKE, first[i : i + 1]) for i in range(5, len(first)))
    with observed(target, verify) as observer, contextlib.ExitStack() as held:
        for _ in range(20):
            held.enter_context(connect(target)).sendall(crumbs[: len(crumbs) // 2])
        observer.serves()
        with connect(target) as connection:
            connection.settimeout(60)
            connection.sendall(crumbs)
            assert connection.recv(1) in (b"\x16", b"\x15"), "a server's flight, or an alert"


def test_plain_http(secure, verify):
    """It gets its 400 in plain text, and what follows is read up to a limit."""
    target = secure()
    with observed(target, verify):
        for _ in range(50):
            with connect(target) as connection:
                connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
                assert ended(connection).startswith(b"HTTP/1.1 400 ")
        with connect(target) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"
            connection.sendall(head)
            assert send_until_refused(connection, b"x" * (1 << 16), 64 << 20) < 32 << 20


def test_hellos_with_random_changes(secure, verify):
    """Seeded; TANDEM_MUTATIONS=10000 sends more of them. Each gets a flight, an alert or the end."""
    target = secure()
    firsts = [Tls(None, verify).first_flight() for _ in range(2)]
    count = int(os.environ.get("TANDEM_MUTATIONS", 1000)) // 4
    with observed(target, verify):
        for number in range(count):
            rng = random.Random(number)
            with connect(target) as connection:
                connection.settimeout(60)
                send_until_refused(connection, bytes(mangled(*firsts, rng)), 1)
                # Of a hello that is incomplete now, the server sees the end.
                with contextlib.suppress(OSError):
                    connection.shutdown(1)
                received = ended(connection)
                assert received[:1] in (b"", bytes([HANDSHAKE]), bytes([ALERT]), b"H"), number
