"""HumanEval under load: tokens per second of the whole server, for each way to decode.

Clients form a closed loop: each sends its next problem when the last one is answered. Only the tokens
that arrive inside a window count. It begins when each client has had an answer, so neither the first
prompts, which are read together, nor the last answers distort the rate. Ways take turns. The server of this measurement has no prefix cache, so each request
reads its whole prompt.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

# A request, and the name of what it answers.
Asked = tuple[str, object]


@dataclass
class Window:
    """What one way did in one window."""

    tokens: int
    seconds: float
    answers: dict[str, list[int]] = field(default_factory=dict)  # tokens, by name

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


class Loop:
    """A closed loop of clients; see closed_loop()."""

    def __init__(self, generate: Callable, asked: Iterator[Asked], clock: Callable[[], float]):
        self.generate, self.asked, self.clock = generate, asked, clock
        self.lock = threading.Lock()
        self.calls: set = set()
        self.answered = 0  # clients with an answer
        self.begin = 0.0  # of the window
        self.warm = threading.Event()
        self.over = False
        self.arrivals: list[tuple[float, int]] = []  # time, tokens
        self.answers: dict[str, list[int]] = {}
        self.errors: list[Exception] = []

    def ask(self, clients: int) -> None:
        try:
            if self.ask_once():
                self.count_answered(clients)
            while self.ask_once():
                pass
        except Exception as error:
            with self.lock:
                if not self.over:  # else it was cancelled
                    self.errors.append(error)
            self.warm.set()

    def count_answered(self, clients: int) -> None:
        with self.lock:
            self.answered += 1
            if self.answered == clients:
                self.begin = self.clock()
                self.warm.set()

    def ask_once(self) -> bool:
        with self.lock:
            if self.over or self.errors:
                return False
            name, request = next(self.asked)
            call = self.generate(request)
            self.calls.add(call)
        tokens = []
        for event in call:
            if event.HasField("chunk"):
                tokens.extend(token.id for token in event.chunk.tokens)
                self.arrivals.append((self.clock(), len(event.chunk.tokens)))
            elif event.HasField("finished"):
                self.answers[name] = tokens
        with self.lock:
            self.calls.discard(call)
        return True

    def end(self) -> None:
        with self.lock:
            self.over = True
            for call in self.calls:
                call.cancel()


def closed_loop(
    generate: Callable,
    asked: Iterator[Asked],
    clients: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Window:
    """The tokens that arrive in `seconds`, from the time when each client has had an answer."""
    loop = Loop(generate, asked, clock)
    threads = [threading.Thread(target=loop.ask, args=(clients,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    loop.warm.wait()
    sleep(seconds)
    begin, end = loop.begin, clock()
    loop.end()
    for thread in threads:
        thread.join()
    if loop.errors:
        raise loop.errors[0]
    tokens = sum(count for at, count in loop.arrivals if begin <= at < end)
    return Window(tokens, end - begin, loop.answers)


@dataclass
class Cell:
    """A way with so many clients."""

    windows: list[Window] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return statistics.median(w.speed for w in self.windows)

    def ratio(self, other: "Cell") -> float:
        """To the windows of the same turns."""
        pairs = zip(self.windows, other.windows, strict=True)
        return statistics.median(mine.speed / theirs.speed for mine, theirs in pairs)

    def compared(self, other: "Cell") -> tuple[int, int]:
        """Answers with the same tokens, of those that both gave."""
        known = {name: tokens for w in other.windows for name, tokens in w.answers.items()}
        both = [
            (tokens, known[name])
            for w in self.windows
            for name, tokens in w.answers.items()
            if name in known
        ]
        return sum(a == b for a, b in both), len(both)


def measure(
    ways: Sequence[str],
    clients: Sequence[int],
    turns: int,
    run: Callable[[str, int, int], Window],
) -> dict[tuple[str, int], Cell]:
    """`run` of every way, number of clients and turn. Neighbours in time are compared: in each turn
    all ways follow each other, in the opposite order to that of the turn before.
    """
    cells = {(way, k): Cell() for way in ways for k in clients}
    for k in clients:
        for turn in range(turns):
            for way in ways if turn % 2 == 0 else reversed(ways):
                cells[way, k].windows.append(run(way, k, turn))
    return cells


def table(cells: dict[tuple[str, int], Cell], ways: Sequence[str], clients: Iterable[int]) -> str:
    """Ratios are to the first way."""
    ks = list(clients)
    heads = "".join(f" {k} client{'s' if k > 1 else ''} |" for k in ks)
    lines = [f"| method |{heads} equal tokens |", "|---|" + "---:|" * (len(ks) + 1)]
    for way in ways:
        row, same, both = f"| {way} |", 0, 0
        for k in ks:
            cell, base = cells[way, k], cells[ways[0], k]
            row += f" {cell.speed:.1f}"
            row += "" if way == ways[0] else f" ({cell.ratio(base):.2f} ×)"
            row += " |"
            equal, compared = cell.compared(base)
            same, both = same + equal, both + compared
        lines.append(f"{row} {same} of {both} |")
    return "\n".join(lines)


def unequal(
    cells: dict[tuple[str, int], Cell], ways: Sequence[str], clients: Iterable[int]
) -> list[str]:
    """Ways with other tokens than the first one."""
    pairs = [(way, cells[way, k].compared(cells[ways[0], k])) for way in ways for k in clients]
    return sorted({way for way, (same, both) in pairs if same < both})
