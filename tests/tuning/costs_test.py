"""tuning/costs.py: multiplications and memory operations of traced passes."""

from types import SimpleNamespace

import pytest
from evaluate_test import messages  # noqa: F401

from tuning import costs
from tuning.costs import Cost, Counted, Shape, pass_cost
from tuning.evaluate.grid import AR, bild
from tuning.evaluate.measure import Task
from tuning.shapes import SHAPES, llama, multiplications_per_token

LARGE = llama(**SHAPES["large"], vocabulary=4096)
TINY = Shape(layers=1000, output=100, attention=4, cache=2)
SMALL = Shape(layers=10, output=100, attention=0, cache=0)


def test_a_decoding_pass_costs_what_the_shape_says():
    shape = Shape.of(LARGE)
    assert shape == Shape.read(costs.LARGE), "the shipped model"
    # A row attends to itself and to the tokens before it.
    assert pass_cost(shape, 1, 1, 255).multiplications == multiplications_per_token(LARGE, 256)
    assert pass_cost(shape, 1, 1, 255).reads == shape.layers + shape.output + 256 * shape.cache
    assert shape.cache == 8 * 2 * 64


def test_a_row_of_several_costs_no_further_weights():
    one, four = pass_cost(TINY, 1, 1, 10), pass_cost(TINY, 4, 4, 10)
    assert four.multiplications == 4 * 1100 + 4 * (11 + 12 + 13 + 14)
    assert one.multiplications == 1100 + 4 * 11
    assert four.reads == one.reads + 3 * TINY.cache
    assert four.intensity > 3.9 * one.intensity


def test_encoders_are_refused():
    with pytest.raises(ValueError, match="t5.*without an encoder"):
        Shape.read(costs.ROOT / "models/docstring-large")


def traced(m, passes, prompt=10, completion=4):
    """passes: (role, kind, rows)."""
    choice = m.Choice()
    choice.finished.usage.prompt_tokens = prompt
    choice.finished.usage.completion_tokens = completion
    for role, kind, rows in passes:
        choice.finished.trace.passes.add(
            role=getattr(m, f"PASS_ROLE_{role}"), kind=getattr(m, f"PASS_KIND_{kind}"), rows=rows
        )
    return choice


ANSWER = [
    ("LARGE", "PREFILL", 10),
    ("SMALL", "PREFILL", 10),
    ("SMALL", "DRAFT", 1),
    ("SMALL", "DRAFT", 1),
    ("LARGE", "VERIFY", 3),
]
BOTH = {"large": TINY, "small": SMALL}


def test_passes_are_counted_by_role(messages):  # noqa: F811
    found = costs.costs(traced(messages, ANSWER), messages, BOTH, prompts=False)
    assert [found[role].passes for role in ("large", "small")] == [1, 2]
    # Three rows in the middle of the answer, at 10.5 to 13.5; all of them are read.
    assert found["large"].multiplications == 3 * (1000 + 4 * 12.5) + 3 * 100
    assert found["small"] == Cost(2, 2 * 110, 2 * 110)
    whole = costs.costs(traced(messages, ANSWER), messages, BOTH, prompts=True)
    assert whole["large"].multiplications - found["large"].multiplications == (
        10 * (1000 + 4 * 5.5) + 100  # the prompt's last row is read
    )


def test_incomplete_traces_are_refused(messages):  # noqa: F811
    choice = traced(messages, ANSWER)
    choice.finished.trace.omitted = 3
    with pytest.raises(ValueError, match="3 passes have no record"):
        costs.costs(choice, messages, BOTH, prompts=False)


class Client:
    def __init__(self, m, passes):
        self.messages, self.passes, self.asked = m, passes, []

    def request(self, model, prompt, new_tokens, method, **fields):
        self.asked.append((model, method.DESCRIPTOR.name, fields))
        return method.DESCRIPTOR.name

    def complete(self, name):
        return traced(self.messages, self.passes[name])


def test_ratios_are_per_token_of_autoregressive_decoding(messages):  # noqa: F811
    decode = [("LARGE", "PREFILL", 10)] + [("LARGE", "DECODE", 1)] * 4
    client = Client(messages, {"Autoregressive": decode, "Bild": ANSWER})
    tasks = [Task((1,), ()), Task((2,), ())]
    ar = costs.count(client, AR, tasks, 4, BOTH)
    other = costs.count(client, bild("BiLD", "code", 1), tasks, 4, BOTH)
    assert (ar.tokens, ar.large.passes, other.large.passes, other.small.passes) == (8, 8, 2, 4)
    assert all(fields == {"trace": True} for _, _, fields in client.asked)
    line = costs.bild_line(["BiLD"], other, ar)
    assert line[:3] == ["BiLD", "0.25", "0.50"]
    reads = (1126.0 + 1 + 220) / (4 * 1124)  # 10 + 2 + 1.5 tokens; 10 + 2 + 0.5
    assert float(line[4]) == pytest.approx(reads, abs=0.01)
    assert costs.bild_line(["AR"], ar, ar)[3:] == ["1.00"] * 3
    assert len(costs.BILD_HEAD) == len(line) + 2


def test_length_moves_the_cost_towards_the_small_model():
    lines = [
        costs.conditioned_line(
            "x", n, Cost(1, 100e6 * n), Cost(1, 10e6 * n), Cost(1, 10e6 * n + 1e8)
        )
        for n in (10, 100)
    ]
    assert lines[0] == ["x", "10", "1,000", "100", "200", "2.00", "5.00"]
    assert lines[1][-2:] == ["1.10", "9.09"]
    assert len(costs.CONDITIONED_HEAD) == len(lines[0])


def test_ppd_is_compared_with_the_theorem():
    # 2 answers of 10 tokens in 8 layers, early layer 4: half of the 18 rounds match.
    stats = SimpleNamespace(rounds=9, matches=4.5, main_layers=62, worker_layers=9 * 3 * 4)
    line = costs.ppd_line([stats, stats], 20, candidates=3, layers=8)
    assert line == ["3", "50", "0.78", "0.75", "2.12", "2.25"]
    assert len(costs.PPD_HEAD) == len(line)


def test_sums():
    assert costs.total([Cost(1, 2, 3), Cost(4, 5, 6)]) == Cost(5, 7, 9)
    assert Counted(1, Cost(1, 2, 3), Cost(1, 1, 1)).all == Cost(2, 3, 4)
