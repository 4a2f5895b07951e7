"""tuning/match_positions.py: ranks of an answer's tokens among an early layer's candidates."""

import math

import numpy as np
import pytest
import torch

from tuning import early_features, early_heads, frozen_model, match_positions, own_answers
from tuning.calibration import Sample
from tuning.shapes import llama, new_model


@pytest.fixture(scope="module")
def frozen():
    config = llama(hidden=32, layers=4, heads=4, key_value_heads=2, inner=48, vocabulary=96)
    model = new_model(config, 3).eval().requires_grad_(False)
    for matrix in model.parameters():
        matrix.mul_(3)
    return frozen_model.FrozenModel(model, tokenizer=None, ends=(0,))


@pytest.fixture(scope="module")
def greedy(frozen):
    prompts = torch.randint(1, 96, (6, 9), generator=torch.Generator().manual_seed(1)).tolist()
    return own_answers.write(frozen, prompts, 20, frozen.ends)


def test_greedy_rates_are_those_of_the_heads_training(frozen, greedy):
    features = early_features.compute(frozen.model, greedy, [2, 3], "rows")
    heads = early_heads.EarlyHeads([2, 3], 32, 4)
    for layer, early in features.early.items():
        heads.of(layer).fit(early, features.top)
    for with_heads in (None, heads):
        expected = early_heads.match_rates(frozen, features, with_heads)
        found = match_positions.ranks(frozen, greedy, [2, 3], with_heads)
        for layer in (2, 3):
            assert match_positions.rates(found[layer]) == pytest.approx(expected[layer], abs=0.02)


def test_ranks_are_those_of_the_sampled_tokens(frozen):
    # Each token's rank by the logits of a model without the upper layers.
    sample = Sample([5, 6], [7, 8, 9])
    (found,) = match_positions.ranks(frozen, [sample], [3], None)[3]
    layers, frozen.model.model.layers = frozen.model.model.layers, frozen.model.model.layers[:3]
    with torch.no_grad():
        logits = frozen.model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0, 1:]
    frozen.model.model.layers = layers
    expected = [1 + int((row > row[t]).sum()) for row, t in zip(logits, (7, 8, 9), strict=True)]
    assert found.tolist() == expected


def test_positions_are_counted_from_the_answers_begin():
    found = [np.array([1] * 16 + [4] * 4), np.array([9] * 16)]
    assert match_positions.rates(found, 0, 16) == [0.5, 0.5, 0.5]
    assert match_positions.rates(found, 16, 32) == [0, 0, 1]
    assert all(math.isnan(rate) for rate in match_positions.rates(found, 32, 48))
    text = match_positions.position_table({"shared": {3: found}}, 48)
    assert "| layer 3, shared | 50.0 / 50.0 / 50.0 | 0.0 / 0.0 / 100.0 | - / - / - |" in text
    text = match_positions.sampled_table({"greedy": {"shared": {3: found}}})
    assert text.splitlines()[0] == "|  | greedy |"
    assert "| layer 3, shared | 44.4 / 44.4 / 55.6 |" in text


def test_draws_are_from_the_likeliest_tokens(frozen):
    prompts = [[1, 2, 3]] * 8
    draws = {name: kind for name, kind in match_positions.WAYS.items() if name != "greedy"}
    assert draws
    for kind in draws.values():
        samples = own_answers.write(frozen, prompts, 3, frozen.ends, seed=2, **kind)
        assert len({tuple(s.output) for s in samples}) > 1
    with torch.no_grad():
        best = frozen.model(input_ids=torch.tensor([prompts[0]])).logits[0, -1].topk(3).indices
    samples = own_answers.write(frozen, prompts, 1, frozen.ends, seed=2, **draws["top-k 3"])
    assert {s.output[0] for s in samples} <= set(best.tolist())
