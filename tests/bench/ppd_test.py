"""bench/peers/ppd.py: what the theorem makes of layer times, and when PPD pays."""

import pytest

from bench.peers import ppd


def turn(seconds, matches=0, match=None):
    """Ten rounds; `seconds`: of one behind a miss, `match`: of one behind a match."""
    after_match = [match] * matches
    after_miss = [seconds] * (10 - matches)
    return {
        "seconds": sum(after_miss + after_match) + 0.01,  # something came between
        "upper": 0.04,
        "rounds": 10,
        "matches": matches,
        "adopted": matches,
        "after_miss": after_miss,
        "after_match": after_match,
    }


def case(name, exit_layer, candidates, *turns):
    return {"name": name, "exit": exit_layer, "candidates": candidates, "turns": list(turns)}


# Layers of 1 ms, 8 of them, and 2 ms for the output matrix; a processor beside makes all of it a
# tenth slower. Reading an early layer takes 2 ms, beside it 3 ms.
def measured(exit_layer, matches, miss, match):
    lower = 1e-3 * (exit_layer + 2)
    slow = turn(50 * lower)  # a turn in which the machine did something else
    return {
        "new_tokens": 11,
        "layers": 8,
        "cases": [
            case("ar", 0, 0, turn(0.010)),
            case("ar_both", 0, 0, turn(0.006)),
            case("lower", exit_layer, 0, turn(lower), slow, turn(lower)),
            case("phases", exit_layer, 0, turn(0.012)),
            case("ar_beside", exit_layer, 0, turn(0.011)),
            case("lower_beside", exit_layer, 0, turn(1.1 * lower)),
            case("phases_beside", exit_layer, 0, turn(0.014)),
            case("ppd", exit_layer, 1, turn(miss, matches, match)),
        ],
    }


@pytest.mark.parametrize(
    ("exit_layer", "theorem", "reads", "miss", "match"),
    # A match saves 1.1 ms for each layer above; after half of them main reads at misses alone. By
    # phase the 6 or 4 layers before the reading, of which a match saves 2 or 4, take what they take
    # alone, and so does the reading; after half of the layers a worker reads beside main's end.
    [
        (6, 11 - 2.2 * 0.4, 3, 6 + 2 + 2.2 + 2, 4 + 2 + 2.2 + 2),
        (4, 11 - 4.4 * 0.4, 1.8, 4 + 2 + 4.4 + 2.2, 0 + 4.4 + 2.2),
    ],
)
def test_the_theorem_in_layer_times(exit_layer, theorem, reads, miss, match):
    (line,) = ppd.evaluate(measured(exit_layer, 4, 0.013, 0.008))
    by_phase = 0.6 * miss + 0.4 * match
    assert line.theorem == pytest.approx(1e-3 * theorem)
    assert line.with_reads == pytest.approx(1e-3 * (theorem + reads))
    assert line.by_phase == pytest.approx(1e-3 * by_phase)
    assert line.after_miss.by_phase == pytest.approx(1e-3 * miss)
    assert line.after_match.by_phase == pytest.approx(1e-3 * match)
    assert (line.after_miss.measured, line.after_match.measured) == (0.013, 0.008)
    assert line.matched == 0.4 and line.adopted == 1
    assert line.measured == pytest.approx(0.011)
    assert line.mean == pytest.approx(0.012), "with what came between"
    lower = 1e-3 * (exit_layer + 2)  # of the first token's round
    assert line.upper.measured == pytest.approx((0.04 + lower) / 10)
    assert line.upper.by_phase == pytest.approx(1e-3 * (miss - exit_layer - 2))
    assert line.spread == pytest.approx((12 / by_phase, 12 / by_phase))


def test_layer_times_are_a_line_through_all_depths():
    whole = measured(6, 4, 0.013, 0.008)
    whole["cases"] += measured(4, 4, 0.013, 0.008)["cases"]
    found = ppd.times(whole, "_beside")
    assert (found.layer, found.reading, found.end) == pytest.approx((0.0011, 0.003, 0.0022))


def test_the_verdict_names_rows_that_differ():
    subject = ppd.Subject("A model, small", None, {4: (0.5, 0.7)})
    # By phase 12.6 ms behind a miss and 6.6 behind a match: 9.6 of one in two.
    near, far = (ppd.evaluate(measured(4, 5, miss, 0.0066)) for miss in (0.0134, 0.0180))
    both = ppd.verdict([(subject, near + far)])
    assert both.startswith("Measured is within 10% of what phases say in 1 of 2 rows. Of it the ")
    assert both.endswith("A model at 4 of 8, k = 1: behind a miss 1.43, behind a match 1.00.")
    assert ppd.verdict([(subject, near)]).endswith("in 1 of 1 rows.")


def test_break_even():
    # Twice as fast on both processors: no early layer above the middle reaches that.
    assert ppd.break_even(2, 0.5) == pytest.approx(1)
    assert ppd.break_even(1.8, 0.25) > 1
    assert ppd.break_even(1, 0.5) == ppd.break_even(0.8, 0.5) == 0


def test_page_and_figure():
    subject = ppd.Subject("A model, small", None, {4: (0.5, 0.7)})
    assert subject.rates_by_rank() == "0.5:0.1:0.1"
    found = measured(4, 5, 0.010, 0.006)
    lines = ppd.evaluate(found)
    text = ppd.section(subject, lines, found)
    assert "| 4 of 8 | 1 | 50% (100%) | 8.00 |" in text
    assert "| beside | 1.100 | 3.000 | 2.200 |" in text
    assert "| 4 of 8 | 1 | 10.00 / 12.60 | 6.00 / 6.60 | 9.00 |" in text
    assert "| 4.60 / 6.60 |" in text, "40 ms and a round's lower half"
    assert "80%" in text, "break-even: 1 - 60 / 100, of half of the layers"
    picture = ppd.draw([(subject, lines)])
    assert picture.count("<circle") == 1 and "4/8, k 1" in picture
