"""The projector's training on models of a few thousand weights."""

import json

import pytest
import torch

from tuning import llm_to_slm, projector_file
from tuning.shapes import llama, new_model

LARGE = llama(hidden=24, layers=3, heads=3, key_value_heads=1, inner=32, vocabulary=60)
SMALL = llama(hidden=16, layers=2, heads=2, key_value_heads=1, inner=24, vocabulary=60)
SETTINGS = llm_to_slm.Settings(
    layer=2, samples=24, length=20, shortest_prompt=3, longest_prompt=12, batch=8, steps=6
)


@pytest.fixture
def models():
    return new_model(LARGE, seed=1).eval(), new_model(SMALL, seed=2).eval()


def samples_of(large):
    samples = llm_to_slm.Samples.__new__(llm_to_slm.Samples)
    torch.manual_seed(3)
    samples.ids = torch.randint(1, 60, (SETTINGS.samples, SETTINGS.length))
    samples.prompt = torch.randint(3, 13, (SETTINGS.samples,))
    with torch.no_grad():
        rows = llm_to_slm.hidden_rows(large, samples.ids[:, :12], SETTINGS.layer)
    samples.rows = rows.bfloat16()
    return samples


@torch.no_grad()
def test_a_new_projector_adds_nothing(models):
    large, small = models
    samples = samples_of(large)
    ids, prompt, rows = samples.batch(torch.arange(4))
    projector = llm_to_slm.new_projector(24, 16, seed=1)
    fused = llm_to_slm.fused_logits(small, projector(rows), ids, prompt, "add")
    assert torch.equal(fused, small(input_ids=ids).logits)
    replaced = llm_to_slm.fused_logits(small, projector(rows), ids, prompt, "replace")
    assert not torch.allclose(replaced, fused)


def test_an_interrupted_training_ends_as_an_uninterrupted_one(models, tmp_path):
    large, small = models
    samples = samples_of(large)

    class Stop(Exception):
        pass

    whole = llm_to_slm.new_projector(24, 16, seed=1)
    llm_to_slm.train(small, whole, samples, SETTINGS, False, tmp_path / "whole", 3)
    projector = llm_to_slm.new_projector(24, 16, seed=1)
    batch, seen = samples.batch, []

    def failing(index):
        seen.append(index)
        if len(seen) == 5:
            raise Stop
        return batch(index)

    samples.batch = failing
    with pytest.raises(Stop):
        llm_to_slm.train(small, projector, samples, SETTINGS, False, tmp_path / "cut", 3)
    samples.batch = batch
    again = llm_to_slm.new_projector(24, 16, seed=9)
    llm_to_slm.train(small, again, samples, SETTINGS, False, tmp_path / "cut", 3)
    assert torch.equal(again[2].weight, whole[2].weight)
    assert not torch.equal(whole[2].weight, torch.zeros(16, 16))


def test_the_file_says_what_it_was_made_for(models, tmp_path):
    large, small = models
    projector = llm_to_slm.new_projector(24, 16, seed=1)
    projector_file.save(tmp_path, projector, large, small, layer=2, fusion="add")
    about = json.loads((tmp_path / "adapter.json").read_text())
    assert about["layer"] == 2 and about["fusion"] == "add" and about["tokens"] == "shared"
    assert about["source"]["sample"] == projector_file.sample_of(large)
    assert about["base"]["sample"] == projector_file.sample_of(small) != about["source"]["sample"]
    with torch.no_grad():
        small.model.norm.weight[0] += 1
    assert projector_file.sample_of(small) != about["base"]["sample"]
