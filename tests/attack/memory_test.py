"""Memory that one client causes through gRPC: messages before a service sees them, and answers that are
not read. Every byte is in the account (tandem_memory_bytes), and the account is empty at the end."""

import contextlib
import struct
import time
import zlib

import grpc
import pytest

from tests.attack.http2 import PREFACE, frame, headers, literal

MIB = 1 << 20
# A context for long prompts, at 5 ms a token.
WIDE = 'models { name: "wide" fake { max_positions: 32768 pass_seconds: 0.005 } }\n'
GENERATION = "/tandem.v1.Generation/"
TOKEN = "0123456789abcdef"
UNLIMITED_WINDOW = frame(8, 0, 0, struct.pack(">I", (1 << 31) - (1 << 16)))
NO_WINDOW = frame(4, 0, 0, struct.pack(">HI", 4, 0))  # SETTINGS_INITIAL_WINDOW_SIZE 0


def message(body, compressed=0):
    return struct.pack(">BI", compressed, len(body)) + body


def data(stream, payload):
    """DATA frames that end the stream."""
    parts = [payload[at : at + 16384] for at in range(0, len(payload), 16384)]
    return b"".join(
        frame(0, 1 if i == len(parts) - 1 else 0, stream, part) for i, part in enumerate(parts)
    )


def reads(connection, text, seconds=20):
    """Whether the server sends `text` before it closes the connection."""
    connection.settimeout(seconds)
    seen = b""
    with contextlib.suppress(OSError):
        while text not in seen:
            part = connection.recv(1 << 16)
            if not part:
                break
            seen += part
    return text in seen


def call(target, path, body, **options):
    """The status of a unary call whose message is `body`."""
    channel = target.client().channel
    try:
        channel.unary_unary(path)(body, timeout=60, **options)
    except grpc.RpcError as error:
        return error
    return None


@pytest.fixture(scope="module")
def bomb():
    """Half a MiB that would inflate to 512 MiB."""
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(512)) + packer.flush()
    assert len(packed) < MIB
    return packed


@pytest.mark.parametrize(
    "path",
    [
        GENERATION + "Complete",
        GENERATION + "Generate",
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ],
)
def test_compressed_messages_are_refused(attack, bomb, path):
    target = attack()
    with target.bystander(allowed=64):
        error = call(target, path, b"x" * 2000, compression=grpc.Compression.Gzip)
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "identity" in error.details()
        for encoding in (b"gzip", b"deflate", b"identity", None):
            with target.connect() as connection:
                head = headers(path.encode())
                if encoding is not None:
                    head += literal(b"grpc-encoding", encoding)
                connection.sendall(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
                with contextlib.suppress(OSError):
                    connection.sendall(frame(1, 4, 1, head) + data(1, message(bomb, 1)))
                assert reads(connection, b"grpc-status")
    target.assert_quiet()
    target.assert_serves()


def test_empty_messages_are_counted_before_they_are_parsed(attack):
    """2 bytes each, and some 100 when parsed: 24 chats of 2 million. The messages themselves are 96 MB."""
    target = attack()
    messages = target.api.messages
    inner = b"\x0a\x00" * 2_000_000
    size = b""
    left = len(inner)
    while left > 127:
        size, left = size + bytes([left & 127 | 128]), left >> 7
    chat = b"\x0a\x04fake\x2a" + size + bytes([left]) + inner
    assert messages.GenerateRequest.FromString(b"\x0a\x04fake").model == "fake"
    with target.bystander(allowed=192):
        clients = [target.client() for _ in range(4)]
        calls = [
            client.channel.unary_unary(GENERATION + method).future(chat, timeout=60)
            for client in clients
            for method in ("Complete", "Generate", "Tokenize") * 2
        ]
        for pending in calls:
            assert pending.code() == grpc.StatusCode.INVALID_ARGUMENT
    error = call(target, GENERATION + "Complete", chat)
    assert "chat.messages: more than 4096 of them" in error.details()
    target.assert_quiet()
    target.assert_serves()


def hold(target, held, method, body, count):
    """Opens calls on connections of their own that take no byte of an answer."""
    for first in range(0, count, 50):
        connection = held.enter_context(target.connect())
        connection.sendall(PREFACE + NO_WINDOW + UNLIMITED_WINDOW + frame(4, 1, 0))
        for i in range(min(50, count - first)):
            head = frame(1, 4, 2 * i + 1, headers(GENERATION.encode() + method))
            connection.sendall(head + data(2 * i + 1, message(body)))
            connection.settimeout(0.01)  # the server's windows open as it reads
            with contextlib.suppress(TimeoutError):
                connection.recv(1 << 16)
            connection.settimeout(60)


def test_answers_that_are_not_read_end(attack):
    """48 unary calls of a client that takes no byte of an answer, and 48 streams."""
    target = attack("limits { stalled_stream_seconds: 2 }")
    messages = target.api.messages
    tokenize = messages.TokenizeRequest(
        model="fake", text="ab " * 5000, return_token_texts=True
    ).SerializeToString()
    generate = messages.GenerateRequest(
        model="fake", text="x", max_new_tokens=3000, ignore_eos=True, return_token_texts=True
    ).SerializeToString()
    with contextlib.ExitStack() as held, target.bystander(allowed=128):
        hold(target, held, b"Tokenize", tokenize, 48)
        hold(target, held, b"Generate", generate, 48)
        target.until(lambda: target.metric("tandem_open_calls") >= 90, "all calls are open")
        assert target.metric("tandem_memory_bytes") >= 96 * 40 * 1024
        # No more than the bystander's calls.
        target.until(lambda: target.metric("tandem_open_calls") <= 2, "the calls end", 30)
    target.assert_quiet()
    target.assert_serves()


def test_a_call_without_a_token_sends_no_message(attack, tmp_path):
    """It is refused on its headers, so nothing that it sends is read."""
    (tmp_path / "tokens").write_text(f"ann {TOKEN}\n")
    target = attack(f'server {{ bearer_token_file: "{tmp_path}/tokens" }}')
    with target.bystander(token=TOKEN):
        for method in (b"Generate", b"Complete", b"Score", b"Tokenize", b"Detokenize"):
            with target.connect() as connection:
                connection.sendall(PREFACE + frame(4, 0, 0) + frame(4, 1, 0))
                connection.sendall(frame(1, 4, 1, headers(GENERATION.encode() + method)))
                assert reads(connection, b"authorization"), method
    target.assert_quiet()
    target.assert_serves(token=TOKEN)


def test_the_account_is_full_for_one_client_only(attack, tmp_path):
    """A client that fills its half is refused with a delay, and another is served."""
    (tmp_path / "tokens").write_text(f"ann {TOKEN}\nbob {TOKEN[::-1]}\n")
    target = attack(
        WIDE + "limits { max_running: 8 max_waiting: 4000 max_waiting_per_client: 4000"
        " max_waiting_bytes: 1073741824 max_waiting_tokens: 2147483647 }"
        f'server {{ memory_bytes: 100663296 bearer_token_file: "{tmp_path}/tokens" }}'
    )
    limit = target.metric("tandem_memory_limit_bytes")
    assert limit == 72 * MIB
    messages = target.api.messages
    # A running request takes 75 s, so no place in the queue becomes free.
    fields = {
        "model": "wide",
        "token_ids": messages.TokenIds(ids=[65] * 16000),
        "autoregressive": messages.Autoregressive(),
        "max_new_tokens": 15000,
    }
    before = target.memory()
    with target.bystander(model="fake", token=TOKEN[::-1], allowed=160):
        client = target.client(TOKEN)
        calls = [client.generate(**fields) for _ in range(800)]
        target.until(lambda: any(call.done() for call in calls), "a call is refused", 60)
        refused = client.refusal(**fields)
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        reason, wait = client.details(refused)
        assert reason == "MEMORY_FULL"
        assert wait > 0
        assert "half of server.memory_bytes" in refused.details()
        assert limit / 4 < target.metric("tandem_memory_bytes") <= limit * 5 / 8
        for pending in calls:
            pending.cancel()
    assert target.metric("tandem_memory_peak_bytes") <= limit
    print(f"grew by {(target.memory() - before) // MIB} MiB")
    target.assert_quiet()
    target.assert_serves(token=TOKEN)


@pytest.mark.parametrize("kind", ["queued", "answers", "streams"])
def test_what_is_held_is_in_the_account(attack, kind):
    """Memory grows by what the account says, and no more: a path that charges nothing fails here."""
    target = attack(
        WIDE + f"limits {{ max_running: {1 if kind == 'queued' else 400} max_waiting: 4000"
        " max_waiting_per_client: 4000"
        " max_waiting_bytes: 1073741824 max_waiting_tokens: 2147483647 queue_seconds: 600 }"
        "server { memory_bytes: 2147483648 max_transport_bytes: 268435456 }"
    )
    messages = target.api.messages
    client = target.client()
    client.complete(max_new_tokens=100)  # what a first call allocates for good

    def settled():
        """(resident, charged), once the account does not change."""
        last = None
        while True:
            now = target.metric("tandem_memory_bytes")
            if now == last:
                return target.memory(), now
            last = now
            time.sleep(0.5)

    memory, charged = settled()
    with contextlib.ExitStack() as held:
        if kind == "queued":
            ids = messages.TokenIds(ids=[65] * 30000)
            # Without drafts: the account of the running request would grow with its tokens.
            alone = {"autoregressive": messages.Autoregressive(), "max_new_tokens": 2000}
            calls = [
                client.generate(model="wide", token_ids=ids, timeout=600, **alone)
                for _ in range(300)
            ]
            held.callback(lambda: [pending.cancel() for pending in calls])
        elif kind == "answers":
            tokenize = messages.TokenizeRequest(
                model="fake", text="ab " * 5000, return_token_texts=True
            )
            hold(target, held, b"Tokenize", tokenize.SerializeToString(), 300)
        else:
            generate = messages.GenerateRequest(
                model="fake", text="x", max_new_tokens=3000, ignore_eos=True, top_logprobs=20
            )
            hold(target, held, b"Generate", generate.SerializeToString(), 400)
        target.until(lambda: target.metric("tandem_open_calls") >= 300, "all are open")
        after, held_bytes = settled()
        grown, counted = after - memory, held_bytes - charged
        print(f"{kind}: {grown / MIB:.1f} MiB more, {counted / MIB:.1f} MiB charged")
        assert counted > 24 * MIB
        # Of the allocator, threads and pages.
        assert grown <= counted + 12 * MIB
    target.assert_quiet()
