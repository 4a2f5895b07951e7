"""bench/peers/ppd.py: what the theorem makes of layer times, and when PPD pays."""

import pytest

from bench.peers import ppd


def turn(seconds, matches=0, match=None):
    """Ten rounds; `seconds`: of one behind a miss, `match`: of one behind a match."""
    after_match = [match] * matches
    after_miss = [seconds] * (10 - matches)
    return {
        "seconds": sum(after_miss + after_match) + 0.01,  # something came between
        "lower": 0.06,
        "upper": 0.04,
        "barrier": 0.005,
        "rounds": 10,
        "matches": matches,
        "adopted": matches,
        "after_miss": after_miss,
        "after_match": after_match,
    }


def case(name, exit_layer, candidates, *turns, ids=0):
    return {
        "name": name,
        "exit": exit_layer,
        "candidates": candidates,
        "draft_vocabulary": ids,
        "turns": list(turns),
    }


# Layers of 1 ms, 8 of them, and 2 ms for the output matrix; a processor beside makes all of it a
# tenth slower. Reading an early layer takes 2 ms, beside it 3 ms; of the first 100 tokens a half.
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
            case("phases", exit_layer, 0, turn(0.011), ids=100),
            case("phases_beside", exit_layer, 0, turn(0.0125), ids=100),
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
    assert (line.lower.measured, line.upper.measured, line.barrier) == pytest.approx(
        (0.006, 0.004, 0.0005)
    )
    assert line.upper.by_phase == pytest.approx(1e-3 * (miss - exit_layer - 2))
    assert line.lower.by_phase + line.upper.by_phase == pytest.approx(line.by_phase)
    assert line.spread == pytest.approx((12 / by_phase, 12 / by_phase))


def test_layer_times_are_a_line_through_all_depths():
    whole = measured(6, 4, 0.013, 0.008)
    whole["cases"] += measured(4, 4, 0.013, 0.008)["cases"]
    found = ppd.times(whole, "_beside")
    assert (found.layer, found.end) == pytest.approx((0.0011, 0.0022))
    assert found.reading == pytest.approx({0: 0.003, 100: 0.0015})


def test_frequent_tokens_alone_are_read_faster():
    found = measured(6, 4, 0.013, 0.008)
    found["cases"].append(case("ppd", 6, 1, turn(0.0125, 4, 0.0075), ids=100))
    every, frequent = ppd.evaluate(found)
    assert (every.draft_vocabulary, frequent.draft_vocabulary) == (0, 100)
    assert every.theorem == frequent.theorem
    assert every.with_reads - frequent.with_reads == pytest.approx(0.0015)
    assert every.by_phase - frequent.by_phase == pytest.approx(0.001)


def test_the_verdict_counts_rows_that_predictions_meet():
    subject = ppd.Subject("A model, small", None, {(4, 0): (0.5, 0.7)})
    # Of one in two matched: 8.8 ms by the theorem, 10.3 with reads, and by phase 12.6 behind a miss
    # and 6.6 behind a match: 9.6.
    near, far = (ppd.evaluate(measured(4, 5, miss, 0.0066)) for miss in (0.0124, 0.0134))
    assert ppd.verdict([(subject, near + far)]) == (
        "Of 2 rows, the measured time is within 10% of the theorem in 1, of it with reads in 2, "
        "of phases in 2."
    )
    assert ppd.verdict([(subject, near)]).endswith(
        "theorem in 1, of it with reads in 1, of phases in 1."
    )


def test_break_even():
    # Twice as fast on both processors: no early layer above the middle reaches that.
    assert ppd.break_even(2, 0.5) == pytest.approx(1)
    assert ppd.break_even(1.8, 0.25) > 1
    assert ppd.break_even(1, 0.5) == ppd.break_even(0.8, 0.5) == 0


def test_what_is_asked_of_the_benchmark():
    rates = {(4, 0): (0.5, 0.7), (4, 100): (0.4, 0.6), (6, 0): (0.7, 0.8), (6, 100): (0.6, 0.8)}
    given = ppd.Subject("A model, small", "model", rates, "int8").arguments()
    assert dict(zip(given[::2], given[1::2], strict=True)) == {
        "--model": "model",
        "--dtype": "int8",
        "--exit-layers": "4,6",
        "--draft-vocabularies": "0,100",
        "--rates": "0.5:0.1:0.1,0.4:0.1:0.1,0.7:0.05:0.05,0.6:0.1:0.1",
    }
    for subject in ppd.subjects().values():
        assert len(subject.rates) >= 2
        assert all(0 < first < three < 1 for first, three in subject.rates.values())


def test_page_and_figure():
    subject = ppd.Subject("A model, small", None, {(4, 0): (0.5, 0.7)})
    found = measured(4, 5, 0.010, 0.006)
    lines = ppd.evaluate(found)
    text = ppd.section(subject, lines, found)
    # The theorem: 11 - 4.4 / 2; half of the rounds read the early layer, for 3 ms.
    assert (
        "| 4 of 8 | 1 | all | 50% (100%) | 8.00 | 8.80 (0.91) | 10.30 (0.78) | 9.60 (0.83) |"
        in text
    )
    assert "| 4 of 8 | 1 | all | 8.80 | +1.50 | -0.70 | -1.60 | 8.00 |" in text
    assert "| under load | 1.100 | 3.000 | 1.500 | 2.200 |" in text
    assert (
        "| 4 of 8 | 1 | all | 10.00 / 12.60 | 6.00 / 6.60 | 6.00 / 3.00 | 4.00 / 6.60 | 0.50 |"
        in text
    )
    assert "80%" in text, "break-even: 1 - 60 / 100, of half of the layers"
    picture = ppd.draw([(subject, lines)])
    assert picture.count("<circle") == 2 and "4/8, k 1" in picture
    assert picture.count("<polyline") == 4 and "Break-even" in picture
