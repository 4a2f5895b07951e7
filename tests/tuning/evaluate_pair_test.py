"""tuning/evaluate_pair.py: a model compared with itself, and with one that differs."""

import pytest

from tuning.evaluate_pair import compare, milliseconds_per_pass
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
    assert result["acceptance"] == pytest.approx(1, abs=1e-4)
    assert result["bits_per_byte"]["large"] == pytest.approx(bits_per_byte(model(1), held_out))


def test_different_models_agree_less(model, tokenizer, texts):
    result = compare(model(1), model(2), HeldOut(tokenizer, texts[:1], length=64))
    assert 0 <= result["agreement"] < 1
    assert 0 < result["acceptance"] < 1


def test_a_pass_takes_time(model):
    assert milliseconds_per_pass(model(1), rows=4, context=8, passes=3) > 0
