"""tuning/match_positions.py: ranks of an answer's tokens among an early layer's candidates."""

import numpy as np
import torch

from tuning import frozen_model, match_positions, own_answers
from tuning.calibration import Sample
from tuning.early_heads import EarlyHeads
from tuning.shapes import llama, new_model


def test_ranks_are_those_of_a_model_without_upper_layers():
    config = llama(hidden=32, layers=4, heads=4, key_value_heads=2, inner=48, vocabulary=96)
    model = new_model(config, 3).eval().requires_grad_(False)
    frozen = frozen_model.FrozenModel(model, tokenizer=None, ends=(0,))
    sample = Sample([5, 6], [7, 8, 9])
    heads = EarlyHeads([3], 32, 4)  # they add nothing yet
    found = [match_positions.ranks(frozen, [sample], [3], h)[3][0].tolist() for h in (None, heads)]
    layers, model.model.layers = model.model.layers, model.model.layers[:3]
    logits = model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0, 1:]
    model.model.layers = layers
    expected = [1 + int((row > row[t]).sum()) for row, t in zip(logits, (7, 8, 9), strict=True)]
    assert found == [expected, expected]
    best = model(input_ids=torch.tensor([[1, 2]])).logits[0, -1].topk(3).indices.tolist()
    draws = match_positions.WAYS["top-k 3"]
    samples = own_answers.write(frozen, [[1, 2]] * 16, 1, (0,), seed=2, **draws)
    drawn = {s.output[0] for s in samples}
    assert len(drawn) > 1 and drawn <= set(best)


def test_positions_are_counted_from_the_answers_begin():
    found = [np.array([1] * 16 + [4] * 4), np.array([9] * 16)]
    assert match_positions.rates(found, 0, 16) == "50.0 / 50.0 / 50.0"
    assert match_positions.rates(found, 16, 32) == "0.0 / 0.0 / 100.0"
    assert match_positions.rates(found, 32, 48) == "- / - / -"
    assert match_positions.rates(found) == "44.4 / 44.4 / 55.6"
