"""tuning/align.py: a small model learns to predict a large one's text."""

import numpy as np
import pytest
import torch

from tuning import align
from tuning.calibration import Sample
from tuning.shapes import llama, new_model

SETTINGS = align.Settings(samples_per_batch=8, steps=40, warmup_steps=2, rate=1.0)


@pytest.fixture(scope="module")
def model():
    config = llama(hidden=32, layers=1, heads=2, key_value_heads=1, inner=48, vocabulary=512)
    return lambda seed: new_model(config, seed).eval()


@pytest.fixture(scope="module")
def written():
    """What a large model of 64 tokens might write: it adds 13 to the last token."""
    prompts = np.random.default_rng(1).integers(1, 64, (96, 7)).tolist()
    return [Sample(p, [(p[-1] + 13 * i) % 64 for i in range(1, 13)]) for p in prompts]


def test_alignment_raises_agreement_on_prompts_never_seen(model, written):
    small = model(8)
    before = align.agreement(small, written[64:])
    assert before["tokens"] == 32 * 12
    align.align(small, written[:64], SETTINGS)
    after = align.agreement(small, written[64:])
    assert before["agreement"] < 0.1 and after["agreement"] > 0.8
    assert after["perplexity"] < before["perplexity"] / 10
    assert not small.training


def test_the_same_seed_gives_the_same_weights(model, written):
    settings = align.Settings(samples_per_batch=8, steps=3, warmup_steps=2)
    results = [model(8), model(8)]
    for small in results:
        align.align(small, written, settings)
    states = [small.state_dict() for small in results]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(
        states[0]["model.norm.weight"], model(8).state_dict()["model.norm.weight"]
    )


def test_a_model_agrees_with_its_own_writing(model, written):
    prompts = torch.tensor([sample.prompt for sample in written])
    ids = model(7).generate(prompts, max_new_tokens=5, do_sample=False, eos_token_id=None)
    own = [Sample(row[:7], row[7:]) for row in ids.tolist()]
    assert align.agreement(model(7), own, rows=5)["agreement"] == 1
    other = [Sample(s.prompt, [(s.output[0] + 1) % 512]) for s in own]
    assert align.agreement(model(7), other)["agreement"] == 0


def test_prompts_are_not_learned(model, written):
    """The loss does not look at how likely prompts are."""
    small = model(8)
    one = align.calibration.pad(written[:1])
    loss = align.output_loss(small, *one)
    logits = small(input_ids=one[0]).logits[0, 6:].log_softmax(-1)
    expected = -logits.gather(-1, torch.tensor(written[0].output).unsqueeze(-1)).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_every_setting_is_an_option():
    arguments = align.parse_arguments(["--steps", "7", "--rate", "0.5", "--longest-prompt", "99"])
    assert (arguments.steps, arguments.rate, arguments.longest_prompt) == (7, 0.5, 99)
    for name, value in vars(align.Settings()).items():
        if name not in ("steps", "rate", "longest_prompt"):
            assert getattr(arguments, name) == value, name
