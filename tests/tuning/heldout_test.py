"""tuning/heldout.py: every token is scored once, and a known model gives a known loss."""

import math

import pytest
import torch

from tuning.heldout import HeldOut, bits_per_byte
from tuning.shapes import llama, new_model


@pytest.fixture(scope="module")
def model():
    config = llama(hidden=16, layers=1, heads=2, key_value_heads=1, inner=24, vocabulary=512)
    return new_model(config, seed=0)


@pytest.mark.parametrize("overlap", [True, False])
def test_every_token_is_scored_once(tokenizer, texts, overlap):
    held_out = HeldOut(tokenizer, texts[:5], length=64, overlap=overlap)
    expected = []
    for text in texts[:5]:
        expected += [*tokenizer.encode(text, add_special_tokens=False).ids, 0]
    scored = []
    for inputs, targets, counts in held_out.batches(4):
        assert inputs.shape == targets.shape == counts.shape and inputs.shape[1] <= 64
        scored += targets[counts].tolist()
    assert sorted(scored) == sorted(expected)
    assert held_out.tokens == len(expected)
    assert held_out.bytes == sum(len(text.encode()) for text in texts[:5])


def test_uniform_model_needs_nine_bits_per_token(model, tokenizer, texts):
    held_out = HeldOut(tokenizer, texts[:2], length=64)
    with torch.no_grad():
        model.model.norm.weight.zero_()  # all logits are 0
    bits = bits_per_byte(model, held_out)
    model.model.norm.weight.data.fill_(1.0)
    assert bits == pytest.approx(math.log2(512) * held_out.tokens / held_out.bytes, rel=1e-5)


def test_padding_changes_nothing(model, tokenizer, texts):
    held_out = HeldOut(tokenizer, texts[:3], length=64)
    assert bits_per_byte(model, held_out, rows=1) == pytest.approx(
        bits_per_byte(model, held_out, rows=7), rel=1e-4
    )
