"""Speeds of lists of requests, as if the machine had been equally fast all the time.

Processors change their clock, and shared memory its speed, within seconds and by up to 40 %. Ways to decode differ by
less. The traces of the answers contain the duration of each batch. It is described as a cost, the same for all batches
of a kind, times the slowness of its moment. Both are medians, fitted in turns. The time of a list is then that of its
batches at slowness 1, and the time without a batch.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

PASS_ROLE_LARGE = 1  # tandem.v1.PassRole
MOMENT_SECONDS = 4.0
MOST_SPLIT = 0.03  # of the time of all batches
FITS = 15
# Batches of more rows have prompts. Their cost is that of a row, in classes of 16 rows.
MOST_DRAFT_ROWS = 40


@dataclass(frozen=True)
class Batch:
    """One request's view of a batch. The views of all its requests add up to it."""

    large: bool
    rows: int
    requests: int
    begin: float  # seconds, as of List.begin
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def share(self) -> float:
        return 1 / self.requests

    @property
    def unit(self) -> int:
        """Rows whose time is compared."""
        return self.rows if self.rows > MOST_DRAFT_ROWS else 1

    @property
    def kind(self) -> Hashable:
        if self.unit > 1:
            return self.large, -(self.rows // 16), 0
        # Rows of one request take longer than those of several, and share a context.
        return self.large, self.rows, self.requests if self.large else 0


@dataclass
class List:
    """A list of requests, from the first one's start to the last one's end."""

    tokens: int
    begin: float
    seconds: float
    batches: list[Batch] = field(default_factory=list)
    split: float = 0  # seconds of passes that took several batches, as those of long prompts
    complete: bool = True  # no record is missing

    @property
    def comparable(self) -> bool:
        busy = sum(batch.seconds * batch.share for batch in self.batches)
        return self.complete and self.split <= MOST_SPLIT * busy

    def add(self, sent: float, trace) -> None:
        """The trace of a request that was sent at this time."""
        self.complete = self.complete and not trace.omitted
        for record in trace.passes:
            begin, end = sent + record.start_us / 1e6, sent + record.end_us / 1e6
            requests = max(1, record.batch_requests)
            large = record.role == PASS_ROLE_LARGE
            self.batches.append(Batch(large, record.batch_rows, requests, begin, end))
            if record.batches > 1:
                self.split += (end - begin) / requests


def median(values: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight)."""
    left = sum(weight for _, weight in values) / 2
    for value, weight in sorted(values):
        left -= weight
        if left <= 0:
            return value
    raise ValueError("no values")


def medians(values: Iterable[tuple[Hashable, float, float]]) -> dict[Hashable, float]:
    """Of (key, value, weight), by key."""
    by_key = defaultdict(list)
    for key, value, weight in values:
        by_key[key].append((value, weight))
    return {key: median(group) for key, group in by_key.items()}


def slowness_of(lists: Sequence[List]) -> Callable[[int, Batch], float]:
    """The slowness of the moment of a batch of the i-th list. Its median over all moments is 1."""

    def moment(i: int, batch: Batch) -> Hashable:
        return i, int((batch.end - lists[i].begin) / MOMENT_SECONDS)

    seen = [(i, b) for i, one in enumerate(lists) for b in one.batches if b.seconds > 0]
    slowness = {moment(i, b): 1.0 for i, b in seen}
    for _ in range(FITS):
        costs = medians(
            (b.kind, b.seconds / b.unit / slowness[moment(i, b)], b.share) for i, b in seen
        )
        slowness = medians(
            (moment(i, b), b.seconds / b.unit / costs[b.kind], b.share * b.seconds) for i, b in seen
        )
        middle = statistics.median(slowness.values())
        slowness = {at: value / middle for at, value in slowness.items()}
    return lambda i, b: slowness.get(moment(i, b), 1.0)


def speeds(lists: Sequence[List]) -> list[float]:
    """Tokens per second of each list at slowness 1."""
    slowness = slowness_of(lists)
    result = []
    for i, one in enumerate(lists):
        busy = sum(b.seconds * b.share for b in one.batches)
        equal = sum(b.seconds * b.share / slowness(i, b) for b in one.batches)
        result.append(one.tokens / (equal + max(0.0, one.seconds - busy)))
    return result
