"""Messages about the prefix cache: a reader with vLLM's message types knows what the server caches."""

import json
import urllib.request

import pytest

from tests.conftest import ROOT

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

CONFIG = f"""
models {{ name: "code" path: "{ROOT / "models/code-small"}" device: "cpu:0" }}
deployments {{ name: "chat" large: "code" }}
devices {{ name: "cpu:0" threads: 1 memory_bytes: 4194304 }}
server {{ openai: "127.0.0.1:0" kv_events {{ endpoint: "ipc://%s" topic: "kv@10.0.0.7" }} }}
"""
SYSTEM = "".join(f"def function_{i}(argument):\n    return argument + {i}\n\n" for i in range(12))


# As in vllm/distributed/kv_events.py.
class Event(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Index:
    """What a picker knows of one server."""

    def __init__(self, socket):
        self.socket = socket
        self.decode = msgspec.msgpack.Decoder(type=Batch).decode
        self.blocks, self.next = {}, None  # (parent, tokens) by hash
        self.removed = 0

    def read(self, until):
        """Takes messages until `until()` is true."""
        while not until():
            assert self.socket.poll(60_000), f"no message; {len(self.blocks)} blocks"
            topic, number, payload = self.socket.recv_multipart()
            assert topic == b"kv@10.0.0.7@chat"
            number = int.from_bytes(number, "big")
            assert self.next is None or number == self.next, "a message is missing"
            self.next = number + 1
            for event in self.decode(payload).events:
                self.take(event)

    def take(self, event):
        if isinstance(event, AllBlocksCleared):
            self.blocks.clear()
        elif isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                self.blocks.pop(block, None)
                self.removed += 1
        else:
            parent, size = event.parent_block_hash, event.block_size
            assert len(event.token_ids) == size * len(event.block_hashes)
            for i, block in enumerate(event.block_hashes):
                tokens = tuple(event.token_ids[i * size : (i + 1) * size])
                self.blocks[block] = (parent, tokens)
                parent = block

    def cached(self, tokens):
        """Tokens of a prompt that the server has, in whole blocks; the last token is always computed."""
        children = {key: block for block, key in self.blocks.items()}
        size = len(next(iter(self.blocks.values()))[1]) if self.blocks else 1
        parent, known = None, 0
        while (
            block := children.get((parent, tuple(tokens[known : known + size])))
        ) is not None and known + size < len(tokens):
            parent, known = block, known + size
        return known


@pytest.fixture
def index(tmp_path):
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
    socket.connect(f"ipc://{tmp_path}/events")
    yield Index(socket)
    socket.close(linger=0)
    context.term()


def post(server, path, body):
    request = urllib.request.Request(
        f"http://{server.ports['openai']}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def complete(server, prompt):
    """How many prompt tokens were cached."""
    body = {"model": "chat", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return post(server, "/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]


def tokens_of(server, prompt):
    return post(server, "/tokenize", {"model": "chat", "prompt": prompt})["tokens"]


def test_a_reader_knows_how_much_of_a_prompt_is_cached(start_server, tmp_path, index):
    server = start_server(CONFIG % f"{tmp_path}/events")
    # The subscription arrives some time after the socket is bound: until then nothing is published.
    for warm in range(1000):
        complete(server, f"{warm} warm up, for more than one block of tokens " * 4)
        if index.socket.poll(100):
            break
    for prompt in ("def first(", "def second(", "def first("):
        prompt = SYSTEM + prompt
        tokens = tokens_of(server, prompt)
        predicted = index.cached(tokens)
        cached = complete(server, prompt)
        assert predicted <= cached < predicted + 16, "whole blocks, and a part of the next"
        index.read(lambda tokens=tokens: index.cached(tokens) >= len(tokens) - 32)
    assert index.cached(tokens_of(server, SYSTEM + "def third(")) > 100


def test_a_reader_knows_what_was_evicted(start_server, tmp_path, index):
    server = start_server(CONFIG % f"{tmp_path}/events")
    prompts = [f"# Part {i}\n" + SYSTEM for i in range(200)]
    for prompt in prompts:
        complete(server, prompt)
    last = tokens_of(server, prompts[-1])
    index.read(lambda: index.cached(last) > 100)
    assert index.removed > 0
    assert index.cached(tokens_of(server, prompts[0])) < 32
