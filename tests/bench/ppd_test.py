"""bench/peers/ppd.py: what the theorem makes of layer times, and when PPD pays."""

import pytest

from bench.peers import ppd


def turn(seconds, matches=0):
    return {"seconds": seconds, "rounds": 10, "matches": matches, "adopted": matches}


def case(name, exit_layer, candidates, *turns):
    return {"name": name, "exit": exit_layer, "candidates": candidates, "turns": list(turns)}


# Ten tokens behind the first. Layers of 1 ms, 8 of them, and 2 ms for the output matrix; a
# processor beside makes all of it a tenth slower. Reading an early layer takes 2 ms, beside it 3 ms.
def measured(exit_layer, matches, seconds):
    lower = 1.1 * (exit_layer + 2)
    return {
        "new_tokens": 11,
        "layers": 8,
        "cases": [
            case("ar", 0, 0, turn(0.100)),
            case("ar_both", 0, 0, turn(0.060)),
            case("lower", exit_layer, 0, turn((exit_layer + 2) / 100)),
            case("phases", exit_layer, 0, turn(0.120)),
            case("ar_beside", exit_layer, 0, turn(0.110)),
            case("lower_beside", exit_layer, 0, turn(lower / 100)),
            case("phases_beside", exit_layer, 0, turn(0.140)),
            case("ppd", exit_layer, 1, turn(seconds, matches)),
        ],
    }


@pytest.mark.parametrize(
    ("exit_layer", "theorem", "reads", "by_phase"),
    # A match saves 1.1 ms for each layer above; after half of them main reads at misses alone. By
    # phase the 5 or 2 layers before the reading, and the reading, take what they take alone.
    [(6, 11 - 2.2 * 0.5, 3, 5 + 2 + 2.2 + 2), (4, 11 - 4.4 * 0.5, 1.5, 2 + 1 + 4.4 + 2.2)],
)
def test_the_theorem_in_layer_times(exit_layer, theorem, reads, by_phase):
    (line,) = ppd.evaluate(measured(exit_layer, 5, 0.120))
    assert line.theorem == pytest.approx(1e-3 * theorem)
    assert line.with_reads == pytest.approx(1e-3 * (theorem + reads))
    assert line.by_phase == pytest.approx(1e-3 * by_phase)
    assert line.matched == 0.5 and line.adopted == 1
    assert line.measured == pytest.approx(0.012)
    assert line.spread[0] == pytest.approx(12 / by_phase)


def test_break_even():
    # Twice as fast on both processors: no early layer above the middle reaches that.
    assert ppd.break_even(2, 0.5) == pytest.approx(1)
    assert ppd.break_even(1.8, 0.25) > 1
    assert ppd.break_even(1, 0.5) == ppd.break_even(0.8, 0.5) == 0


def test_page_and_figure():
    subject = ppd.Subject("A model, small", None, {4: (0.5, 0.7)})
    assert subject.rates_by_rank() == "0.5:0.1:0.1"
    lines = ppd.evaluate(measured(4, 5, 0.08))
    text = ppd.section(subject, lines)
    assert "| 4 of 8 | 1 | 50% (100%) | 8.00 |" in text
    assert "80%" in text, "break-even: 1 - 60 / 100, of half of the layers"
    picture = ppd.draw([(subject, lines)])
    assert picture.count("<circle") == 1 and "4/8, k 1" in picture
