"""The comparison of embeddings: its texts, its requests, and its table, against a server of the test's own."""

import http.server
import json
import threading
from types import SimpleNamespace

import pytest

from bench.peers import embeddings


class Reply(http.server.BaseHTTPRequestHandler):
    """Embeds a text as its length and 1; items come in reverse order."""

    def do_POST(self):  # noqa: N802
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        self.server.asked.append(texts)
        items = [{"index": i, "embedding": [len(text), 1.0]} for i, text in enumerate(texts)]
        body = {"data": items[::-1][: self.server.most], "usage": {"prompt_tokens": 4 * len(texts)}}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def start():
    servers = []

    def make():
        server = http.server.HTTPServer(("127.0.0.1", 0), Reply)
        server.asked, server.most, server.stops = [], 1000, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        # As bench.peers.embeddings.Process has them.
        server.stop = lambda: server.stops.append(len(server.asked))
        server.go_on = lambda: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_embeddings_are_in_the_order_of_the_texts(start):
    server = start()
    answer = embeddings.embed(server.url, ["a", "bb", "ccc"])
    assert answer.vectors == [[1, 1.0], [2, 1.0], [3, 1.0]]
    assert answer.tokens == 12 and answer.seconds > 0
    server.most = 2
    with pytest.raises(RuntimeError, match="2 embeddings of 3 texts"):
        embeddings.embed(server.url, ["a", "bb", "ccc"])


def test_pairs_have_equal_new_texts_and_alternate(start):
    ours, theirs = start(), start()
    args = SimpleNamespace(lines=12, pairs=4)
    (one, three) = embeddings.measure(ours, theirs, [1, 3], args)
    assert ours.asked == theirs.asked
    assert [len(texts) for texts in ours.asked] == [1] * 5 + [3] * 5
    texts = [text for request in ours.asked for text in request]
    assert len(set(texts)) == len(texts)
    assert len(one.ours) == len(three.theirs) == 4, "the first pair is not counted"
    # When the other was measured, each was stopped: before or after its own request of the pair.
    assert ours.stops == [1, 1, 3, 3, 5, 6, 6, 8, 8, 10]
    assert theirs.stops == [0, 2, 2, 4, 4, 5, 7, 7, 9, 9]


def test_pieces_are_the_same_each_time():
    texts = embeddings.pieces(12)
    first = [next(texts) for _ in range(500)]
    again = embeddings.pieces(12)
    assert first == [next(again) for _ in range(500)]
    assert len(set(first)) == 500 and all(1 <= len(text.splitlines()) <= 12 for text in first)


def test_a_row():
    case = embeddings.Case(2)
    for seconds in (1.0, 2.0, 4.0):
        case.ours.append(embeddings.Answer(seconds, 80, [[1.0, 0.0], [0.0, 2.0]]))
        case.theirs.append(embeddings.Answer(4 * seconds, 80, [[2.0, 0.0], [3.0, 4.0]]))
    assert embeddings.row("file", case) == [
        "file",
        "2",
        "40",
        "40.0 (20.0-80.0)",
        "10.0 (5.0-20.0)",
        "**4.00**",
        "0.90000 (0.80000)",
    ]
    case.theirs[0].tokens = case.theirs[1].tokens = 100
    assert embeddings.row("file", case)[2] == "40, 50"
