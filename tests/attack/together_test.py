"""All attacks at once, in a memory limit of the documented sum, beside another tenant.

The attacks come from another address than the bystander and, where they need a token, from one tenant.
It lasts ten seconds, and ten minutes with TANDEM_NIGHT.
"""

import contextlib
import os
import re
import signal
import threading
import time
import zlib
from pathlib import Path

import pytest
from harness import record
from http2 import PREFACE, frame, headers, literal
from http_test import send_until_refused
from memory_test import GENERATION, MIB, NO_WINDOW, UNLIMITED_WINDOW, data, message, reads
from openai_test import FLAG, connect, members

SECONDS = 600 if os.environ.get("TANDEM_NIGHT") else 10
TOKENS = {"ann": "ann-0123456789abcdef", "bob": "bob-0123456789abcdef"}
SOURCE = "127.0.0.2"
MEMORY = 256 * MIB  # server.memory_bytes
PROCESS = 205 * MIB  # the 0.2 GiB of docs/security.md
CONTROLLERS = Path("/sys/fs/cgroup/memory")


class Cgroup:
    """A memory cgroup (version 1). Processes that start inside() are in it."""

    def __init__(self):
        self.folder = CONTROLLERS / f"tandem-{os.getpid()}"
        self.folder.mkdir()

    @contextlib.contextmanager
    def inside(self):
        before = CONTROLLERS / own_group().lstrip("/") / "cgroup.procs"
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            before.write_text(str(os.getpid()))

    def limit(self, size):
        (self.folder / "memory.limit_in_bytes").write_text(str(size))

    def kills(self):
        text = (self.folder / "memory.oom_control").read_text()
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))


def own_group():
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return path
    return "/"


@pytest.fixture
def cgroup():
    """None where a cgroup cannot be made; the peak of resident memory is checked all the same."""
    try:
        group = Cgroup()
    except OSError:
        yield None
        return
    yield group
    group.folder.rmdir()


# --- Attacks. Each is repeated until the end.


class Attacker:
    def __init__(self, target, tokens, over):
        self.target, self.tokens, self.over = target, tokens, over
        self.runs = {}
        packer = zlib.compressobj(9, wbits=31)
        self.bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(256)) + packer.flush()
        self.members = members(4_000_000)
        self.messages = b'{"model":"fake","messages":[' + b",".join([b"{}"] * 1_300_000) + b"]}"
        self.deep = b'{"model":"fake","prompt":' + b"[" * 500_000 + b"]" * 500_000 + b"}"
        api = target.api.messages
        self.tokenize = api.TokenizeRequest(
            model="fake", text="ab " * 5000, return_token_texts=True
        ).SerializeToString()
        self.stream = api.GenerateRequest(
            model="fake", text="x", max_new_tokens=3000, ignore_eos=True, return_token_texts=True
        ).SerializeToString()
        self.long = api.GenerateRequest(
            model="wide", token_ids=api.TokenIds(ids=[65] * 16000), max_new_tokens=2000
        ).SerializeToString()
        inner = b"\x0a\x00" * 2_000_000
        size, left = b"", len(inner)
        while left > 127:
            size, left = size + bytes([left & 127 | 128]), left >> 7
        self.empty = b"\x0a\x04fake\x2a" + size + bytes([left]) + inner

    def start(self):
        """The threads."""
        attacks = (
            self.compressed_messages,
            self.empty_messages,
            self.unread_answers,
            self.full_queues,
            self.calls_without_token,
            self.silent_connections,
            self.many_members,
            self.clients_that_leave,
            self.empty_chats,
            self.deep_json,
            self.bodies_without_token,
            self.unread_http_answers,
            self.smuggling,
            self.broken_token_file,
        )
        threads = [threading.Thread(target=self.repeat, args=(attack,)) for attack in attacks]
        for thread in threads:
            thread.start()
        return threads

    def repeat(self, attack):
        self.runs[attack.__name__] = 0
        while not self.over.is_set():
            with contextlib.suppress(OSError):  # refusals at the level of connections
                attack()
                self.runs[attack.__name__] += 1

    # gRPC

    def call(self, path, body, *, token=True, encoding=None, window=UNLIMITED_WINDOW):
        """A connection with one call; the caller closes it."""
        connection = self.target.connect(SOURCE)
        connection.settimeout(10)
        head = headers(path)
        if token:
            head += literal(b"authorization", b"Bearer " + TOKENS["ann"].encode())
        if encoding:
            head += literal(b"grpc-encoding", encoding)
        connection.sendall(PREFACE + frame(4, 0, 0) + window + frame(4, 1, 0))
        connection.sendall(frame(1, 4, 1, head))
        with contextlib.suppress(OSError):
            connection.sendall(data(1, message(body, 1 if encoding else 0)))
        return connection

    def compressed_messages(self):
        with self.call(GENERATION.encode() + b"Complete", self.bomb, encoding=b"gzip") as it:
            reads(it, b"grpc-status", 5)

    def empty_messages(self):
        with self.call(GENERATION.encode() + b"Generate", self.empty) as it:
            reads(it, b"grpc-status", 5)

    def calls_without_token(self):
        with self.call(GENERATION.encode() + b"Complete", self.long, token=False) as it:
            reads(it, b"authorization", 5)

    def held_calls(self, method, body, count):
        with contextlib.ExitStack() as held:
            for _ in range(count):
                window = NO_WINDOW + UNLIMITED_WINDOW
                held.enter_context(self.call(GENERATION.encode() + method, body, window=window))
            self.over.wait(3)

    def unread_answers(self):
        self.held_calls(b"Tokenize", self.tokenize, 24)
        self.held_calls(b"Generate", self.stream, 24)

    def full_queues(self):
        self.held_calls(b"Generate", self.long, 100)

    def silent_connections(self):
        with contextlib.ExitStack() as held:
            for api in ("grpc", "openai", "http"):
                for _ in range(20):
                    held.enter_context(self.target.connect(SOURCE, api)).sendall(b"P")
            self.over.wait(2)

    # HTTP API

    def post(self, path, body, token=True, wait=True, more=b""):
        with connect(self.target, SOURCE) as connection:
            connection.settimeout(10)
            head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n"
            head += b"Content-Type: application/json\r\n" + more
            if token:
                head += b"Authorization: Bearer " + TOKENS["ann"].encode() + b"\r\n"
            head += b"Content-Length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body)
            if wait:
                connection.recv(1 << 16)

    def at_once(self, count, *args, **options):
        def one():
            with contextlib.suppress(OSError):
                self.post(*args, **options)

        threads = [threading.Thread(target=one) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def many_members(self):
        self.at_once(10, b"/v1/completions", self.members)

    def clients_that_leave(self):
        self.at_once(10, b"/v1/completions", self.members, wait=False)

    def empty_chats(self):
        self.at_once(4, b"/v1/chat/completions", self.messages)

    def deep_json(self):
        self.post(b"/v1/completions", self.deep)

    def bodies_without_token(self):
        with connect(self.target, SOURCE) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                b"Content-Type: application/json\r\nContent-Length: 4000000\r\n\r\n"
            )
            send_until_refused(connection, b"x" * (1 << 18), 64 << 20)

    def unread_http_answers(self):
        body = (
            b'{"model":"fake","prompt":"x","max_tokens":1000,"logprobs":20,'
            b'"tandem":{"ignore_eos":true}}'
        )
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nAuthorization: Bearer %s\r\n"
        with contextlib.ExitStack() as held:
            for _ in range(16):
                connection = held.enter_context(connect(self.target, SOURCE))
                connection.sendall(
                    head % TOKENS["ann"].encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
                )
            self.over.wait(3)

    def smuggling(self):
        for headers_ in (
            b"Transfer-Encoding: \x0bchunked\r\n",
            b"Content-Length: \x0c5\r\n",
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        ):
            with connect(self.target, SOURCE) as connection:
                connection.settimeout(10)
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
                connection.sendall(headers_ + b"\r\n0\r\n\r\n")
                assert connection.recv(1 << 16).startswith((b"HTTP/1.1 4", b"HTTP/1.1 501 "))

    # The file system

    def broken_token_file(self):
        text = "".join(f"{name} {token}\n" for name, token in TOKENS.items())
        for content in (text[: len(text) // 2 + 3], text):
            self.tokens.write_text(content)
            self.target.server.process.send_signal(signal.SIGHUP)
            self.over.wait(0.5)


def test_all_attacks_at_once(attack, cgroup, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    with cgroup.inside() if cgroup else contextlib.nullcontext():
        target = attack(
            'models { name: "wide" fake { max_positions: 32768 pass_seconds: 0.005 } }\n'
            "limits { max_running: 16 max_waiting: 4000 max_waiting_per_client: 4000"
            " max_waiting_bytes: 1073741824 max_waiting_tokens: 2147483647"
            " stalled_stream_seconds: 2 }\n"
            f'server {{ memory_bytes: {MEMORY} bearer_token_file: "{tokens}" grace_seconds: 1 }}',
            FLAG,
        )
    (loaded,) = re.findall(r"loaded_bytes=(\d+)", target.server.log_text())
    total = int(loaded) + MEMORY + PROCESS
    if cgroup:
        cgroup.limit(total)
    over = threading.Event()
    attacker = Attacker(target, tokens, over)
    with target.bystander(token=TOKENS["bob"], openai=True, allowed=(MEMORY + PROCESS) // MIB):
        threads = attacker.start()
        over.wait(SECONDS)
        peak = target.metric("tandem_memory_peak_bytes")
        assert peak <= target.metric("tandem_memory_limit_bytes")
        status = Path(f"/proc/{target.pid}/status").read_text()
        over.set()
        for thread in threads:
            thread.join()
    tokens.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    resident = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) << 10
    began = time.monotonic()
    assert target.server.stop() == 0
    record(
        seconds=SECONDS,
        drain=time.monotonic() - began,
        resident=resident / MIB,
        total=total / MIB,
        enforced="enforced by a cgroup" if cgroup else "compared afterwards, without a cgroup",
        kills=cgroup.kills() if cgroup else 0,
        runs=attacker.runs,
    )
    print(f"{SECONDS:g} s, peak {resident // MIB} of {total // MIB} MiB, runs {attacker.runs}")
    assert resident <= total
    assert cgroup is None or cgroup.kills() == 0
    assert min(attacker.runs.values()) > 0, attacker.runs
