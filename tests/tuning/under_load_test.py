"""tuning/evaluate/under_load: what counts is what arrives while all clients are active."""

import heapq
import itertools
import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuning.evaluate import humaneval, under_load
from tuning.evaluate.humaneval import AR, Problem, Run
from tuning.evaluate.under_load import Cell, Load, Window


class Event:
    def __init__(self, kind, tokens=()):
        self.kind = kind
        self.chunk = SimpleNamespace(tokens=[SimpleNamespace(id=t) for t in tokens])
        self.finished = Finished()

    def HasField(self, name):
        return name == self.kind


class Finished:
    """Without a trace, or with one of a batch for each second of an answer."""

    def __init__(self, sent=0, seconds=0, requests=1):
        self.traced = seconds > 0
        passes = [
            SimpleNamespace(
                role=1,
                rows=1,
                batches=1,
                batch_rows=requests,
                batch_requests=requests,
                start_us=1e6 * i,
                end_us=1e6 * (i + 1),
            )
            for i in range(seconds)
        ]
        self.trace = SimpleNamespace(passes=passes, omitted=0)

    def HasField(self, name):
        return self.traced and name == "trace"


class Server:
    """With a virtual clock, which advances when all clients wait for a chunk.

    A request is a list of times: of its chunks, one token each, after the chunk before. A client
    leaves when it reads the clock after an answer and every request was sent.
    """

    def __init__(self, clients, requests):
        self.now, self.changed = 0, threading.Condition()
        self.clients, self.size = clients, requests
        self.asked, self.pauses, self.cancelled = [], [], threading.Event()
        self.renew()

    def renew(self):
        """For a further list of requests."""
        self.active, self.left = self.clients, self.size
        self.waiting, self.order, self.awake = [], itertools.count(), None
        self.answered = set()

    def generate(self, request):
        with self.changed:
            self.left -= 1
            self.asked.append(request)
            return Call(self, request)

    def clock(self):
        with self.changed:
            now = self.now
            if threading.get_ident() in self.answered:
                self.answered.discard(threading.get_ident())
                if self.left == 0:
                    self.active -= 1
                    self.advance()
            return now

    def sleep(self, seconds):
        self.pauses.append((self.now, seconds))
        self.now += seconds
        self.renew()

    def wait(self, seconds):
        with self.changed:
            mine = (self.now + seconds, next(self.order))
            heapq.heappush(self.waiting, mine)
            self.advance()
            assert self.changed.wait_for(lambda: self.awake == mine, 10)

    def advance(self):
        if self.waiting and len(self.waiting) == self.active:
            self.awake = heapq.heappop(self.waiting)
            self.now = self.awake[0]
            self.changed.notify_all()


class Call:
    def __init__(self, server, request):
        self.server, self.request = server, request

    def cancel(self):
        self.server.cancelled.set()

    def __iter__(self):
        for seconds in self.request:
            self.server.wait(seconds)
            yield Event("chunk", [seconds])
        yield Event("finished")
        self.server.answered.add(threading.get_ident())


def loop(clients, requests):
    server = Server(clients, len(requests))
    return server, under_load.closed_loop(server.generate, requests, clients, server.clock)


def test_the_answers_after_the_first_one_count_for_one_client():
    requests = [[5, 5], [1, 2, 3], [4], [2, 2]]
    server, window = loop(1, requests)
    assert (window.tokens, window.seconds) == (6, 14), "the first answer's end is outside"
    assert window.speed == pytest.approx(6 / 14)
    assert server.asked == requests and window.answers == requests


def test_tokens_count_from_the_last_first_answer_to_the_first_empty_list():
    # Client A: 0-2, 2-5, 5-8, 8-10. Client B: 0-4, 4-9, 9-19.
    requests = [[1, 1], [4], [3], [5], [1, 1, 1], [2], [5, 5]]
    server, window = loop(2, requests)
    assert server.asked == requests, "each client takes the next one of the list"
    # A finds the list empty at 10. The tokens since 4 are at 5, 6, 7, 8, 9 and 10.
    assert (window.tokens, window.seconds) == (6, 6)
    assert window.answers == requests, "B's last answer is completed at 19"
    assert server.now == 19
    # With one more, A is active until 22, and B finds the list empty at 19: tokens at 14 and 19 too.
    _, window = loop(2, [*requests, [12]])
    assert (window.tokens, window.seconds) == (8, 15)


class TracedServer(Server):
    def generate(self, request):
        super().generate(request)
        return Traced(self, request)


class Traced(Call):
    def __iter__(self):
        yield from list(super().__iter__())[:-1]
        event = Event("finished")
        event.finished = Finished(seconds=sum(self.request))
        yield event


def whole_lists(load, window):
    cells = {("AR", load): Cell([window]), ("auto", load): Cell([window])}
    return under_load.table(cells, ["AR", "auto"], [load]).splitlines()[3]


def test_whole_lists_of_traced_requests():
    requests = [[5, 5], [1, 2, 3], [4], [2, 2]]
    server = TracedServer(1, len(requests))
    window = under_load.closed_loop(server.generate, requests, 1, server.clock)
    whole = window.whole
    assert (whole.tokens, whole.seconds) == (8, 24)
    assert len(whole.batches) == 24 and whole.comparable
    row = " | 0.3 | 0.3, 1.00 × |"
    assert whole_lists(Load(1), window) == "| 1 client, whole lists at equal speed" + row
    split = replace(window, whole=replace(whole, split=24))
    assert whole_lists(Load(1), split) == "| 1 client, whole lists" + row
    assert "equal answers" in whole_lists(Load(1), replace(window, whole=None))


def test_all_ways_of_a_turn_have_the_same_requests_in_the_same_order():
    slow = [[k + 1, k + 1] for k in range(12)]
    fast = [[seconds / 2 for seconds in request] for request in slow]
    (_, one), (_, other) = loop(3, slow), loop(3, fast)
    assert (other.tokens, other.seconds) == (one.tokens, one.seconds / 2)


def test_a_list_that_ends_before_each_client_has_an_answer_is_an_error():
    for requests in ([[1], [9], [1], [1]], [[1], [1]]):
        with pytest.raises(under_load.OptionError, match="--answers: .; too few for 2 clients"):
            loop(2, requests)
    with pytest.raises(under_load.OptionError, match="no token"):
        loop(1, [[1], []])


def test_bursts_count_all_tokens_while_a_request_is_active():
    requests = [[1, 1], [4], [2], [1, 2], [3], [1]]
    server = Server(2, 2)
    window = under_load.bursts(server.generate, requests, 2, server.clock, server.sleep)
    # Bursts of 4, 3 and 3 seconds, each after a pause of one.
    assert [at for at, _ in server.pauses] == [0, 5, 9]
    assert (window.tokens, window.seconds) == (8, 10), "pauses do not count"
    assert sorted(server.asked) == sorted(requests) and window.answers == requests
    assert window.whole is None
    traced = TracedServer(2, 2)
    whole = under_load.bursts(traced.generate, requests, 2, traced.clock, traced.sleep).whole
    assert (whole.tokens, whole.seconds, len(whole.batches)) == (8, 10, 15)
    with pytest.raises(under_load.OptionError, match="without a token"):
        under_load.bursts(server.generate, [[], []], 2, server.clock, server.sleep)


def test_an_error_of_a_request_cancels_the_others():
    class Held(Call):
        def __iter__(self):
            assert self.server.cancelled.wait(10)
            raise RuntimeError("cancelled")
            yield

    server, asked = Server(2, 9), []

    def generate(request):
        asked.append(request)
        if len(asked) == 1:
            return Held(server, request)
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        under_load.closed_loop(generate, [[1]] * 9, 2, server.clock)
    assert len(asked) == 2 and server.cancelled.is_set()


def test_ways_take_turns_and_are_compared_within_a_turn():
    order, speeds = [], {("AR", 0): 10, ("auto", 0): 20, ("AR", 1): 20, ("auto", 1): 30}
    one, two = Load(1), Load(2, bursts=True)

    def run(way, load, turn):
        order.append((way, load, turn))
        same = way == "AR" or load == one
        return Window(speeds[way, turn], 1, [[1, turn], [3] if same else [4]])

    ways = ["AR", "auto"]
    cells = under_load.measure(ways, (one, two), 2, run)
    assert order[:4] == [("AR", one, 0), ("auto", one, 0), ("auto", one, 1), ("AR", one, 1)]
    assert cells["auto", one].speed == 25
    assert cells["auto", one].ratios(cells["AR", one]) == [2, 1.5]
    assert cells["auto", two].compared(cells["AR", two]) == (2, 4)
    assert under_load.unequal(cells, ways, (one, two)) == ["auto"]
    assert under_load.unequal(cells, ways, (one,)) == []
    assert under_load.table(cells, ways, (one, two)).splitlines() == [
        "| load | AR | auto |",
        "|---|---:|---:|",
        "| 1 client | 15.0 | 25.0, 1.75 × |",
        "| bursts of 2 | 15.0 | 25.0, 1.75 × |",
        "| equal answers | 8 of 8 | 6 of 8 |",
    ]


def test_three_turns_show_the_range_of_their_ratios():
    base = Cell([Window(tokens, 2) for tokens in (20, 40, 10)])
    cell = Cell([Window(tokens, 1) for tokens in (11, 16, 8)])
    assert cell.shown(base) == "11.0, 1.10 × (0.80-1.60)"
    assert base.shown(base) == "10.0"
    assert str(Load(4)) == "4 clients"


PROBLEMS = [Problem(f"P/{i}", f"def f{i}(): " + "p" * 90, "", "f", "s" * 98) for i in range(9)]


def asked(turn, load, **fields):
    run = Run(9, 8, (0,), answers=1, **fields)
    return humaneval.asked_in(turn, load, PROBLEMS, run, PROBLEMS)


def test_turns_continue_in_the_problems_and_wrap_around():
    assert asked(0, Load(2)) == PROBLEMS[:4]
    assert asked(1, Load(2, bursts=True)) == PROBLEMS[4:8]
    assert asked(2, Load(2)) == [PROBLEMS[8], *PROBLEMS[:3]]


def test_prompts_are_lengthened_by_solved_problems_that_differ_between_requests():
    # Each problem has 100 characters, and an example 200 with its solution and the space between.
    requests = asked(0, Load(9), prompt_tokens=190)
    assert requests == asked(0, Load(9), prompt_tokens=190), "the same for every way"
    for mine, problem in zip(requests, PROBLEMS * 2, strict=True):
        assert len(mine.prompt) == 100 + 200 * 3 and mine.prompt.endswith("\n\n" + problem.prompt)
        assert mine.prompt.count(problem.prompt) == 1
        assert replace(mine, prompt=problem.prompt) == problem
    assert len({p.prompt[:200] for p in requests[:8]}) == 8, "no prefix is shared"
    assert len({p.prompt for p in requests}) == 18, "also where problems are repeated"
    assert asked(0, Load(1), prompt_tokens=20)[0] == PROBLEMS[0], "as near as whole texts permit"
    with pytest.raises(under_load.OptionError, match="512; allowed: less than 507"):
        asked(0, Load(1), prompt_tokens=512)


def test_a_short_list_ends_the_command_with_a_message(monkeypatch, tmp_path, capsys):
    def fail(*_):
        raise under_load.OptionError("--answers: 1; too few")

    monkeypatch.setattr(humaneval, "missing", list)
    monkeypatch.setattr(humaneval, "measured_load", fail)
    run = Run(1, 8, (0,), streams=(2,))
    assert humaneval.main(lambda config: nullcontext(), run, "", None) == 1
    assert "--answers: 1; too few" in capsys.readouterr().out


def test_the_page_states_how_load_was_measured(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- humaneval batch -->\n<!-- end of humaneval batch -->\n")
    monkeypatch.setattr(humaneval, "PAGE", page)
    monkeypatch.setattr(humaneval, "missing", list)
    monkeypatch.setattr(humaneval, "measured_load", lambda *_: ("| new |", []))
    monkeypatch.setattr(humaneval.machine, "load_before", lambda write: 0)
    monkeypatch.setattr(humaneval.machine, "load", lambda: 0)
    run = Run(1, 8, (0,), bursts=(2,), answers=4, prompt_tokens=1000, turns=5, write=True)
    assert humaneval.main(lambda config: nullcontext(), run, "command", None) == 0
    text = page.read_text()
    for part in ("5 requests for each client", "5 turns", "Bursts:", "1000 tokens", "| new |"):
        assert part in text


def test_every_way_answers_the_list_of_its_turn(monkeypatch):
    asked = []
    monkeypatch.setattr(humaneval, "request_of", lambda c, way, p, *_, trace: [way.name, p.name])
    generate = lambda request: asked.append(request) or Answered(request)  # noqa: E731
    client = SimpleNamespace(stub=SimpleNamespace(Generate=generate))
    run = Run(9, 8, (0,), streams=(1,), answers=2, turns=2)
    auto = replace(AR, name="auto")
    cells = humaneval.measure_load(client, (AR, auto), PROBLEMS, run, 0)
    lists = [[f"P/{i}" for i in range(3)], [f"P/{i}" for i in range(3, 6)]]
    assert [name for _, name in asked] == [*lists[0], *lists[0], *lists[1], *lists[1]]
    ways = [way for way, _ in asked]
    assert ways == ["autoregressive"] * 3 + ["auto"] * 6 + ["autoregressive"] * 3
    assert cells["auto", Load(1)].compared(cells["autoregressive", Load(1)]) == (6, 6)


class Answered:
    def __init__(self, request):
        self.request = request

    def __iter__(self):
        yield Event("chunk", [1])
        yield Event("finished")
