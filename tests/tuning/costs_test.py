"""tuning/costs.py: multiplications and memory operations of traced passes."""

from types import SimpleNamespace

import pytest
from evaluate_test import messages  # noqa: F401

from tuning import costs
from tuning.costs import Cost, Shape, pass_cost
from tuning.evaluate.grid import AR, bild
from tuning.evaluate.measure import Task
from tuning.shapes import SHAPES, llama, multiplications_per_token

TINY = Shape(layers=1000, output=100, attention=4, cache=2)
BOTH = {"large": TINY, "small": Shape(layers=10, output=100, attention=0, cache=0)}
ANSWER = [("LARGE", "PREFILL", 10), ("SMALL", "PREFILL", 10), ("SMALL", "DRAFT", 1)]
ANSWER += [("SMALL", "DRAFT", 1), ("LARGE", "VERIFY", 3)]


def test_a_pass_costs_what_the_shape_says():
    shape, config = Shape.read(costs.LARGE), llama(**SHAPES["large"], vocabulary=4096)
    one = pass_cost(shape, 1, 1, 255)
    assert one.multiplications == multiplications_per_token(config, 256)
    assert one.reads == shape.layers + shape.output + 256 * shape.cache
    assert shape.cache == 8 * 2 * 64
    four = pass_cost(TINY, 4, 4, 10)
    assert four.multiplications == 4 * 1100 + 4 * (11 + 12 + 13 + 14)
    assert four.reads == pass_cost(TINY, 1, 1, 10).reads + 3 * TINY.cache
    with pytest.raises(ValueError, match="docstring-large: allowed: models without an encoder"):
        Shape.read(costs.ROOT / "models/docstring-large")


def traced(m, passes):
    choice = m.Choice()
    choice.finished.usage.prompt_tokens, choice.finished.usage.completion_tokens = 10, 4
    for role, kind, rows in passes:
        names = {"role": f"PASS_ROLE_{role}", "kind": f"PASS_KIND_{kind}"}
        found = {field: getattr(m, name) for field, name in names.items()}
        choice.finished.trace.passes.add(**found, rows=rows)
    return choice


def test_passes_are_counted_by_role(messages):  # noqa: F811
    choice = traced(messages, ANSWER)
    found = costs.costs(choice, messages, BOTH, prompts=False)
    # Three rows in the middle of the answer; all of them are read.
    assert found["large"].multiplications == 3 * (1000 + 4 * 12.5) + 3 * 100
    assert found["small"] == Cost(2, 2 * 110, 2 * 110)
    whole = costs.costs(choice, messages, BOTH, prompts=True)["large"]
    assert whole.multiplications - found["large"].multiplications == 10 * (1000 + 4 * 5.5) + 100
    choice.finished.trace.omitted = 3
    with pytest.raises(ValueError, match="3 passes have no record"):
        costs.costs(choice, messages, BOTH, prompts=False)


def test_ratios_are_per_token_of_autoregressive_decoding(messages):  # noqa: F811
    answers = {"Autoregressive": [("LARGE", "DECODE", 1)] * 4, "Bild": ANSWER}
    client = SimpleNamespace(
        messages=messages,
        request=lambda model, prompt, count, method, trace: method.DESCRIPTOR.name,
        complete=lambda name: traced(messages, answers[name]),
    )
    tasks = [Task((1,), ()), Task((2,), ())]
    ar = costs.count(client, AR, tasks, 4, BOTH)
    other = costs.count(client, bild("BiLD", "code", 1), tasks, 4, BOTH)
    assert (ar[0], ar[1].passes, other[1].passes, other[2].passes) == (8, 8, 2, 4)
    line = costs.bild_line(["BiLD"], other, ar)
    assert line[:3] == ["BiLD", "0.25", "0.50"]
    assert float(line[4]) == pytest.approx((1127 + 220) / (4 * 1125), abs=0.01)
    assert costs.bild_line(["AR"], ar, ar)[3:] == ["1.00"] * 3


def test_length_and_candidates():
    line = costs.conditioned_line("x", 10, 1e9, 1e8, 2e8)
    assert line == ["x", "10", "1,000", "100", "200", "2.00", "5.00"]
    # Two answers of 10 tokens in 8 layers, early layer 4: half of the 18 rounds match.
    stats = SimpleNamespace(rounds=9, matches=4.5, main_layers=62, worker_layers=9 * 3 * 4)
    line = costs.ppd_line([stats, stats], 20, 3)
    assert line == ["3", "50", "0.78", "0.75", "2.12", "2.25"]


def test_neighbours_of_one_origin_share_a_mark(messages):  # noqa: F811
    large, small = messages.SOURCE_LARGE, messages.SOURCE_SMALL
    tokens = [messages.Token(id=97 + i, proposed=p) for i, p in enumerate([large, small, small])]
    tokens += [messages.Token(id=100, proposed=large, corrected=True)]
    letters = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))
    assert costs.marked(tokens, messages, letters) == "[a]bc{d}"


def test_the_small_model_is_named(messages, monkeypatch, capsys):  # noqa: F811
    asked = []

    def request(deployment, prompt, count, method):
        asked.append(deployment)
        return prompt

    def complete(prompt):
        return messages.Choice(tokens=[messages.Token(id=97, proposed=messages.SOURCE_LARGE)])

    client = SimpleNamespace(messages=messages, request=request, complete=complete)
    tasks, given = [Task((1,), ())], SimpleNamespace(new_tokens=4)
    monkeypatch.setattr(costs, "ALIGNED", costs.ROOT / "models/none")
    text = costs.origins(client, tasks, given)
    assert text.startswith("Small model: models/code-small\n\n[")
    assert asked == ["code"]
    said = "models/none: not found; models/code-small drafts. Train it: python -m tuning.align\n"
    assert capsys.readouterr().err == said
    assert not costs.has_aligned("its rows are left out")
    assert "models/none: not found; its rows are left out." in capsys.readouterr().err
    monkeypatch.setattr(costs, "ALIGNED", costs.LARGE)  # any folder that exists
    text = costs.origins(client, tasks, given)
    assert text.startswith("Small model: models/code-large\n\n[")
    assert asked == ["code", "code-aligned"] and capsys.readouterr().err == ""
