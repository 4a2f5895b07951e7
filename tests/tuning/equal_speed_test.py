"""tuning/evaluate/equal_speed: the machine's changes of speed are removed, and differences of the ways are not."""

from types import SimpleNamespace

import pytest

from tuning.evaluate import equal_speed
from tuning.evaluate.equal_speed import Batch, List

# Seconds of a batch by rows at slowness 1.
COST = {4: 0.05, 8: 0.06, 100: 0.4}


def listed(kinds, slowness, tokens_of, pause=0.0):
    """Batches of these rows one after the other; slowness: by time."""
    batches, now, tokens = [], 0.0, 0
    for rows in kinds:
        end = now + COST[rows] * slowness(now)
        batches += [Batch(True, rows, 4, now, end)] * 4
        now = end + pause
        tokens += tokens_of[rows]
    return List(tokens, 0.0, now, batches)


def plain(slowness, **how):
    return listed([100, *[4] * 100] * 5, slowness, {4: 4, 100: 0}, **how)


def drafts(slowness, **how):
    return listed([100, *[4, 8] * 40] * 5, slowness, {4: 4, 8: 6, 100: 0}, **how)


def test_lists_at_different_speeds_are_compared_at_the_same_one():
    ways = plain(lambda _: 1), drafts(lambda _: 1)
    true = [one.tokens / one.seconds for one in ways]
    assert equal_speed.speeds(ways) == pytest.approx(true)
    changing = plain(lambda t: 1.4 if t > 12 else 1), drafts(lambda t: 1 if t > 15 else 0.8)
    raw = [one.tokens / one.seconds for one in changing]
    assert raw[1] / raw[0] > 1.2 * true[1] / true[0]
    equal = equal_speed.speeds(changing)
    assert equal[1] / equal[0] == pytest.approx(true[1] / true[0], rel=0.02)


def test_time_without_a_batch_counts_as_it_is():
    ways = plain(lambda _: 1), plain(lambda _: 1, pause=0.05)
    speeds = equal_speed.speeds(ways)
    assert speeds[1] == pytest.approx(ways[1].tokens / ways[1].seconds)
    assert speeds[1] < 0.6 * speeds[0]


def record(**fields):
    of_batch = {"role": 1, "batches": 1, "batch_rows": 5, "batch_requests": 2}
    return SimpleNamespace(**of_batch | {"start_us": 0, "end_us": 1000} | fields)


def test_passes_of_a_trace_are_shares_of_batches():
    one = List(1, 10.0, 1.0)
    small = record(role=2, start_us=2000, end_us=2500, batch_requests=0)
    one.add(10.5, SimpleNamespace(passes=[record(), small], omitted=0))
    first, second = one.batches
    assert (first.large, second.large) == (True, False)
    assert first.seconds == pytest.approx(0.001) and first.share == 0.5 and second.share == 1
    assert second.begin == pytest.approx(10.502) and one.comparable


def test_lists_that_batches_do_not_describe():
    for passes, omitted, comparable in (
        ([record(batches=2)], 0, False),
        ([record(batches=2), *[record()] * 50], 0, True),
        ([record()], 1, False),
    ):
        one = List(1, 0.0, 1.0)
        one.add(0.0, SimpleNamespace(passes=passes, omitted=omitted))
        assert one.comparable == comparable


def test_the_median_is_weighted():
    assert equal_speed.median([(1, 1), (2, 1), (3, 5)]) == 3
    assert equal_speed.medians([("a", 1, 1), ("a", 5, 3), ("b", 2, 1)]) == {"a": 5, "b": 2}
    with pytest.raises(ValueError, match="no values"):
        equal_speed.median([])
