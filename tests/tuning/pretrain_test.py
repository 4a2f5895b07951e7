"""tuning/pretrain.py: an interrupted training resumes exactly like an uninterrupted one."""

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

from tuning import checkpoint
from tuning.pretrain import Recipe, Trainer
from tuning.schedule import Budget
from tuning.shapes import llama, new_model
from tuning.windows import TokenStream, Windows

RECIPE = Recipe(tokens_per_batch=256, short=32, long=64, warmup_steps=2, compile=False)


@pytest.fixture(scope="module")
def stream(tokenizer, texts):
    return TokenStream(tokenizer, texts[:10])


def trainer(stream, folder, steps=12):
    config = llama(hidden=32, layers=2, heads=2, key_value_heads=1, inner=48, vocabulary=512)
    return Trainer(
        Accelerator(cpu=True),
        new_model(config, RECIPE.seed),
        Windows(stream, RECIPE.tokens_per_batch, RECIPE.short, RECIPE.long, RECIPE.seed),
        RECIPE,
        Budget(steps=steps),
        folder,
    )


def run(trainer, steps):
    return [trainer.step() for _ in range(steps)]


def test_resumed_training_has_the_same_losses(stream, tmp_path):
    whole = trainer(stream, tmp_path / "whole")
    losses = run(whole, 12)
    assert losses[-1] < losses[0] - 0.1
    assert whole.step() is None  # the budget is used up

    first = trainer(stream, tmp_path / "parts")
    assert not first.resumed
    parts = run(first, 5)
    first.save()
    run(first, 2)  # lost: done after the checkpoint
    second = trainer(stream, tmp_path / "parts")
    assert second.resumed and second.state.step == 5
    parts += run(second, 7)
    assert parts == losses
    assert second.state.tokens == whole.state.tokens == 12 * 256


def test_an_interrupted_save_leaves_the_last_checkpoint(stream, tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint"
    first = trainer(stream, folder)
    run(first, 2)
    first.save()
    run(first, 1)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(first.accelerator, "save_state", fail)
    with pytest.raises(OSError, match="disk full"):
        first.save()
    assert trainer(stream, folder).state.step == 2
    folder.rename(folder.with_name("checkpoint.old"))  # as between the two renames
    assert trainer(stream, folder).state.step == 2


def test_exported_model_is_the_trained_one(stream, tokenizer, tmp_path):
    trained = trainer(stream, tmp_path / "checkpoint")
    run(trained, 2)
    checkpoint.export(trained.unwrapped(), tokenizer, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.dtype == torch.bfloat16
    assert loaded.generation_config.eos_token_id == 0
    for name, value in trained.unwrapped().state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16()), name
    assert next(trained.unwrapped().parameters()).dtype == torch.float32
