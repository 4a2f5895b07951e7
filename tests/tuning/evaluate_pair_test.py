"""tuning/evaluate_pair.py: a model compared with itself, and with one that differs."""

import pytest
import torch

from tuning.evaluate_pair import compare, kept, milliseconds_per_pass
from tuning.heldout import HeldOut, bits_per_byte
from tuning.shapes import llama, new_model


@pytest.fixture(scope="module")
def model():
    config = llama(hidden=16, layers=1, heads=2, key_value_heads=1, inner=24, vocabulary=512)
    return lambda seed: new_model(config, seed).eval()


def test_a_model_agrees_with_itself(model, tokenizer, texts):
    held_out = HeldOut(tokenizer, texts[:1], length=64)
    result = compare(model(1), model(1), held_out)
    assert result["agreement"] == 1
    for by_rule in result["acceptance"].values():
        assert by_rule["ratio"] == pytest.approx(1, abs=1e-4)
        assert by_rule["match"] == 1
    assert result["bits_per_byte"]["large"] == pytest.approx(bits_per_byte(model(1), held_out))


def test_different_models_agree_less(model, tokenizer, texts):
    result = compare(model(1), model(2), HeldOut(tokenizer, texts[:1], length=64))
    assert 0 <= result["agreement"] < 1
    for by_rule in result["acceptance"].values():
        assert 0 < by_rule["match"] < by_rule["ratio"] < 1


def test_draws_match_as_often_as_the_rules_promise():
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).repeat(40000, 1)
    q = torch.tensor([[0.2, 0.3, 0.4, 0.1]]).repeat(40000, 1)
    chances = kept(p.log(), q.log(), torch.Generator().manual_seed(1))
    # P(match) = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)
    both = [0, 1, 2]
    expected = sum(
        1 / sum(max(p[0, j] / p[0, i], q[0, j] / q[0, i]).item() for j in range(4)) for i in both
    )
    assert chances["match"] / 40000 == pytest.approx(expected, abs=0.01)
    assert chances["ratio"] / 40000 == pytest.approx(0.7, abs=1e-5)


def test_a_pass_takes_time(model):
    assert milliseconds_per_pass(model(1), rows=4, context=8, passes=3) > 0
