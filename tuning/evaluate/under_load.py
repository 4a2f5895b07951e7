"""HumanEval under load: tokens per second of the whole server, for each way to decode.

A window is a fixed list of requests, the same list in the same order for all ways of a turn, so that
ways of a turn differ neither in problems nor in the share of prompts. Ways take turns. The server of
this measurement has no prefix cache, so each request reads its whole prompt.

Windows of two ways contain different shares of prompts, and the machine's speed changes between them. Whole lists at
equal speed (equal_speed.py) have neither error; they include the start and the end, where fewer clients are active.
"""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuning.evaluate import equal_speed

# Between bursts. Answers have ended then; a draft pass of the last one may still run, for some milliseconds.
PAUSE_SECONDS = 1.0


class OptionError(ValueError):
    """An option's value that permits no measurement."""


@dataclass(frozen=True)
class Load:
    """Clients in a closed loop, or bursts of as many requests."""

    clients: int
    bursts: bool = False

    def __str__(self) -> str:
        if self.bursts:
            return f"bursts of {self.clients}"
        return f"{self.clients} client{'s' if self.clients > 1 else ''}"


@dataclass
class Window:
    """What one way did with one list of requests."""

    tokens: int  # in the measured time
    seconds: float
    answers: list[list[int]] = field(default_factory=list)  # tokens of all requests, in their order
    whole: equal_speed.List | None = None  # the list, if its requests were traced

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


class Clients:
    """Clients that ask for the requests of a list, each for the next one when it has an answer."""

    def __init__(
        self, generate: Callable, requests: Sequence, clients: int, clock: Callable[[], float]
    ):
        self.generate, self.requests, self.clients, self.clock = generate, requests, clients, clock
        self.lock = threading.Lock()
        self.calls: set = set()
        self.taken = clients  # requests: each client has a first one
        self.waiting = clients  # clients without an answer
        self.all_answered = float("inf")  # time when each client has had an answer
        self.all_taken = float("inf")  # time when a client finds the list empty
        self.ended = 0.0  # time of the last end of an answer
        self.arrivals: list[tuple[float, int]] = []  # time, tokens
        self.answers: list[list[int]] = [[] for _ in requests]
        self.traces: list[tuple[float, object]] = []  # time when a request was sent, its trace
        self.errors: list[Exception] = []

    def run(self) -> None:
        """Returns when all requests are answered."""
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def client(self, first: int) -> None:
        try:
            at: int | None = first
            while at is not None:
                self.ask(at)
                at = self.following(at)
        except Exception as error:
            with self.lock:
                self.errors.append(error)
                for call in self.calls:
                    call.cancel()

    def ask(self, at: int) -> None:
        with self.lock:
            if self.errors:
                return
            sent = self.clock()
            call = self.generate(self.requests[at])
            self.calls.add(call)
        for event in call:
            if event.HasField("chunk"):
                self.answers[at].extend(token.id for token in event.chunk.tokens)
                self.arrivals.append((self.clock(), len(event.chunk.tokens)))
            elif event.HasField("finished") and event.finished.HasField("trace"):
                self.traces.append((sent, event.finished.trace))
        with self.lock:
            self.calls.discard(call)

    def following(self, answered: int) -> int | None:
        """The next request of a client with this answer, or None."""
        with self.lock:
            self.ended = self.clock()
            if answered < self.clients:
                self.waiting -= 1
                if self.waiting == 0:
                    self.all_answered = self.ended
            if self.errors or self.taken == len(self.requests):
                self.all_taken = min(self.all_taken, self.ended)
                return None
            self.taken += 1
            return self.taken - 1


def closed_loop(
    generate: Callable,
    requests: Sequence,
    clients: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Window:
    """The tokens that arrive while all clients are active.

    The measured time begins when each client has had an answer, as the first prompts are read
    together. It ends when a client finds the list empty. The requests that are active then are
    completed: all ways then have answers to the whole list, which are compared, and the cost is
    at most the time of one answer for each window.
    """
    run = Clients(generate, requests, clients, clock)
    started = clock()
    run.run()
    begin, end = run.all_answered, run.all_taken
    tokens = sum(count for at, count in run.arrivals if begin < at <= end)
    if tokens == 0 or begin >= end:
        raise OptionError(
            f"--answers: {len(requests) // clients - 1}; too few for {clients} clients: no token "
            f"arrived between the time when each had an answer and the time when the list of "
            f"{len(requests)} requests was empty"
        )
    whole = traced_list(run.answers, run.traces, started, run.ended - started)
    return Window(tokens, end - begin, run.answers, whole)


def traced_list(
    answers: Sequence[list[int]], traces: Sequence, begin: float, seconds: float
) -> equal_speed.List | None:
    """None: not all requests were traced."""
    if len(traces) < len(answers):
        return None
    whole = equal_speed.List(sum(map(len, answers)), begin, seconds)
    for sent, trace in traces:
        whole.add(sent, trace)
    return whole


def bursts(
    generate: Callable,
    requests: Sequence,
    size: int,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Window:
    """Sends `size` requests at once, waits for all answers and makes a pause, until the list is empty.

    All tokens count, and the time when any request is active.
    """
    tokens, seconds, answers, traces, started = 0, 0.0, [], [], clock()
    for first in range(0, len(requests), size):
        burst = requests[first : first + size]
        sleep(PAUSE_SECONDS)
        run = Clients(generate, burst, len(burst), clock)
        begin = clock()
        run.run()
        tokens += sum(count for _, count in run.arrivals)
        seconds += run.ended - begin
        answers += run.answers
        traces += run.traces
    if tokens == 0:
        raise OptionError(f"bursts of {size}: {len(requests)} answers without a token")
    return Window(tokens, seconds, answers, traced_list(answers, traces, started, seconds))


@dataclass
class Cell:
    """A way under a load: a window for each turn."""

    windows: list[Window] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return statistics.median(w.speed for w in self.windows)

    def ratios(self, other: "Cell") -> list[float]:
        """To the windows of the same turns."""
        pairs = zip(self.windows, other.windows, strict=True)
        return [mine.speed / theirs.speed for mine, theirs in pairs]

    def compared(self, other: "Cell") -> tuple[int, int]:
        """Answers with the same tokens in the same turn, of all."""
        equal = [
            a == b
            for mine, theirs in zip(self.windows, other.windows, strict=True)
            for a, b in zip(mine.answers, theirs.answers, strict=True)
        ]
        return sum(equal), len(equal)

    def shown(self, base: "Cell") -> str:
        """The median speed and the median of the ratios; from three turns on also their range."""
        if self is base:
            return f"{self.speed:.1f}"
        ratios = self.ratios(base)
        spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) >= 3 else ""
        return f"{self.speed:.1f}, {statistics.median(ratios):.2f} ×{spread}"


Cells = dict[tuple[str, Load], Cell]


def measure(
    ways: Sequence[str],
    loads: Sequence[Load],
    turns: int,
    run: Callable[[str, Load, int], Window],
) -> Cells:
    """`run` of every way, load and turn. Neighbours in time are compared: in each turn all ways
    follow each other, in the opposite order to that of the turn before.
    """
    cells = {(way, load): Cell() for way in ways for load in loads}
    for load in loads:
        for turn in range(turns):
            for way in ways if turn % 2 == 0 else reversed(ways):
                cells[way, load].windows.append(run(way, load, turn))
    return cells


def compared(cells: Cells, way: str, first: str, loads: Sequence[Load]) -> tuple[int, int]:
    """Answers with the tokens of the way `first`, of all."""
    counts = [cells[way, load].compared(cells[first, load]) for load in loads]
    return sum(same for same, _ in counts), sum(both for _, both in counts)


def whole_lists(
    cells: Cells, ways: Sequence[str], load: Load
) -> tuple[str, dict[str, Cell]] | None:
    """The whole lists of a load, by way, and their name. Not at equal speed if many prompts took several batches.
    None: not all were traced.
    """
    windows = [(way, window) for way in ways for window in cells[way, load].windows]
    lists = [window.whole for _, window in windows if window.whole]
    if len(lists) < len(windows):
        return None
    equal = all(one.comparable for one in lists)
    speeds = equal_speed.speeds(lists) if equal else [one.tokens / one.seconds for one in lists]
    result = {way: Cell() for way in ways}
    for (way, window), speed in zip(windows, speeds, strict=True):
        tokens = window.whole.tokens
        result[way].windows.append(Window(tokens, tokens / speed, window.answers))
    return "whole lists at equal speed" if equal else "whole lists", result


def table(cells: Cells, ways: Sequence[str], loads: Sequence[Load]) -> str:
    """Rows for each load. Ratios are to the first way."""
    lines = [f"| load | {' | '.join(ways)} |", "|---|" + "---:|" * len(ways)]
    for load in loads:
        row = [cells[way, load].shown(cells[ways[0], load]) for way in ways]
        lines.append(f"| {load} | {' | '.join(row)} |")
        if whole := whole_lists(cells, ways, load):
            name, lists = whole
            row = [lists[way].shown(lists[ways[0]]) for way in ways]
            lines.append(f"| {load}, {name} | {' | '.join(row)} |")
    counts = [compared(cells, way, ways[0], loads) for way in ways]
    lines.append(f"| equal answers | {' | '.join(f'{same} of {both}' for same, both in counts)} |")
    return "\n".join(lines)


def unequal(cells: Cells, ways: Sequence[str], loads: Sequence[Load]) -> list[str]:
    """Ways with other tokens than the first one."""
    counts = {way: compared(cells, way, ways[0], loads) for way in ways}
    return sorted(way for way, (same, both) in counts.items() if same < both)
