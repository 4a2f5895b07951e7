"""tuning/evaluate/under_load: what counts is what arrives inside the window."""

import itertools
import threading
from types import SimpleNamespace

import pytest

from tuning.evaluate import under_load
from tuning.evaluate.under_load import Cell, Window


class Event:
    def __init__(self, kind, tokens=()):
        self.kind = kind
        self.chunk = SimpleNamespace(tokens=[SimpleNamespace(id=t) for t in tokens])

    def HasField(self, name):
        return name == self.kind


class Server:
    """One client's: each chunk of two tokens takes a second, each answer has four chunks."""

    def __init__(self, until):
        self.now, self.until = 0, until
        self.reached, self.cancelled = threading.Event(), threading.Event()
        self.asked = []

    def generate(self, request):
        self.asked.append(request)
        return Call(self, request)

    def sleep(self, seconds):
        assert seconds == self.until - 4  # from the end of the first answer
        assert self.reached.wait(10)


class Call:
    def __init__(self, server, request):
        self.server, self.request = server, request

    def cancel(self):
        self.server.cancelled.set()

    def __iter__(self):
        for i in range(4):
            self.server.now += 1
            if self.server.now == self.server.until:
                self.server.reached.set()
                assert self.server.cancelled.wait(10)
                raise RuntimeError("cancelled")
            yield Event("chunk", [self.request, i])
        yield Event("finished")


def test_tokens_inside_the_window_count_and_whole_answers_are_kept():
    server = Server(until=23)
    asked = (("a" if i % 2 == 0 else "b", i) for i in itertools.count())
    window = under_load.closed_loop(
        server.generate, asked, 1, 19, clock=lambda: server.now, sleep=server.sleep
    )
    # Chunks at 4, 5, ..., 22.
    assert (window.tokens, window.seconds) == (38, 19)
    assert window.speed == 2
    assert server.asked == [0, 1, 2, 3, 4, 5], "the next when the last is answered"
    assert window.answers == {
        "a": [4, 0, 4, 1, 4, 2, 4, 3],
        "b": [3, 0, 3, 1, 3, 2, 3, 3],
    }, "the last is cancelled, and no answer"


def test_the_window_begins_when_every_client_has_an_answer():
    now = itertools.count()
    held = threading.Event()

    window = under_load.closed_loop(
        lambda request: Quick(request, held),
        ((str(i), i) for i in itertools.count()),
        2,
        0,
        lambda: next(now),
        lambda seconds: None,
    )
    assert set(window.answers) >= {"0", "1", "2", "3"}


class Quick:
    """An answer of one chunk. The second request waits for the fourth."""

    def __init__(self, request, held):
        self.request, self.held = request, held
        if request == 3:
            held.set()

    def cancel(self):
        pass

    def __iter__(self):
        assert self.request != 1 or self.held.wait(10)
        yield Event("chunk", [1])
        yield Event("finished")


def test_an_error_of_a_request_ends_the_measurement():
    def fail(request):
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        under_load.closed_loop(fail, iter([("a", 0)]), 1, 0, sleep=lambda s: None)


def test_ways_take_turns_and_are_compared_within_a_turn():
    order, speeds = [], {("AR", 0): 10, ("auto", 0): 20, ("AR", 1): 20, ("auto", 1): 30}

    def run(way, clients, turn):
        order.append((way, clients, turn))
        same = way == "AR" or clients == 1
        return Window(speeds[way, turn], 1, {"a": [1, 2], "b": [3] if same else [4]})

    ways = ["AR", "auto"]
    cells = under_load.measure(ways, (1, 2), 2, run)
    assert order[:4] == [("AR", 1, 0), ("auto", 1, 0), ("auto", 1, 1), ("AR", 1, 1)]
    assert cells["auto", 1].speed == 25
    assert cells["auto", 1].ratio(cells["AR", 1]) == 1.75
    assert cells["auto", 2].compared(cells["AR", 2]) == (2, 4)
    assert under_load.unequal(cells, ways, (1, 2)) == ["auto"]
    assert under_load.unequal(cells, ways, (1,)) == []
    lines = under_load.table(cells, ways, (1, 2)).splitlines()
    assert lines[0] == "| method | 1 client | 2 clients | equal tokens |"
    assert lines[2] == "| AR | 15.0 | 15.0 | 8 of 8 |"
    assert lines[3] == "| auto | 25.0 (1.75 ×) | 25.0 (1.75 ×) | 6 of 8 |"


def test_answers_that_one_way_lacks_are_not_compared():
    mine, other = Cell([Window(1, 1, {"a": [1]})]), Cell([Window(1, 1, {"b": [1]})])
    assert mine.compared(other) == (0, 0)
