"""LLM-to-SLM's training on models of a few thousand weights."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tuning import fusion, llm_to_slm, projector_file
from tuning.shapes import llama, new_model

LARGE = llama(hidden=24, layers=3, heads=3, key_value_heads=1, inner=32, vocabulary=60)
SMALL = llama(hidden=16, layers=2, heads=2, key_value_heads=1, inner=24, vocabulary=60)
SETTINGS = llm_to_slm.Settings(
    layer=2, samples=24, shortest_prompt=3, longest_prompt=12, answer=8, batch=8, steps=6
)


@pytest.fixture
def models():
    return new_model(LARGE, seed=1).eval(), new_model(SMALL, seed=2).eval()


@pytest.fixture
def samples(models, tmp_path):
    torch.manual_seed(3)
    texts = torch.randint(1, 60, (SETTINGS.samples, SETTINGS.length + 1)).tolist()
    prompts = np.random.default_rng(3).integers(3, 13, SETTINGS.samples)
    samples = llm_to_slm.Samples(texts, prompts)
    samples.fill(models[0], SETTINGS.layer, tmp_path / "rows.pt", at_once=10)
    return samples


def told(small, samples, settings=SETTINGS):
    return llm_to_slm.Told(small, *llm_to_slm.standardized(samples), settings)


def test_rows_are_computed_once(models, samples, tmp_path):
    whole = fusion.hidden_rows(models[0], samples.read, SETTINGS.layer).bfloat16()
    assert torch.equal(samples.rows, whole)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.pt"]
    again = llm_to_slm.Samples(samples.ids.tolist(), samples.prompt.numpy())
    again.fill(None, SETTINGS.layer, tmp_path / "rows.pt")
    assert torch.equal(again.rows, whole)


@torch.no_grad()
def test_a_new_projector_adds_nothing(models, samples):
    ids, prompt, rows = samples.batch(torch.arange(4))
    pair = told(models[1], samples)
    assert torch.equal(pair(ids, prompt, rows), models[1](input_ids=ids).logits)
    replaced = told(models[1], samples, replace(SETTINGS, fusion="replace"))
    assert not torch.allclose(replaced(ids, prompt, rows), pair(ids, prompt, rows))


@torch.no_grad()
def test_the_written_projector_takes_rows_as_they_are(models, samples):
    pair = told(models[1], samples)
    torch.nn.init.normal_(pair.projector[2].weight)
    rows = samples.batch(torch.arange(4))[2]
    standard = pair.projector((rows - pair.mean) / pair.deviation)
    torch.testing.assert_close(pair.folded()(rows), standard, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("what", ["frozen", "lora", "full"])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(samples, tmp_path, what):
    settings = replace(SETTINGS, train=what, rank=2)

    class Stop(Exception):
        pass

    def fresh():
        return told(new_model(SMALL, seed=2).eval(), samples, settings)

    whole, cut, again = fresh(), fresh(), fresh()
    llm_to_slm.train(whole, samples, settings, tmp_path / "whole", 3)
    batch, seen = samples.batch, []

    def failing(index):
        seen.append(index)
        if len(seen) == 5:
            raise Stop
        return batch(index)

    samples.batch = failing
    with pytest.raises(Stop):
        llm_to_slm.train(cut, samples, settings, tmp_path / "cut", 3)
    samples.batch = batch
    llm_to_slm.train(again, samples, settings, tmp_path / "cut", 3)
    ends, wants = again.state_dict(), whole.state_dict()
    assert ends.keys() == wants.keys()
    assert all(torch.equal(ends[name], wants[name]) for name in wants)
    assert not torch.equal(whole.projector[2].weight, torch.zeros(16, 16))
    moved = not torch.equal(
        whole.small.model.layers[0].mlp.up_proj.weight,
        new_model(SMALL, seed=2).model.layers[0].mlp.up_proj.weight,
    )
    assert moved == (what != "frozen")


def test_losses_are_of_the_tokens_right_behind_the_prompt(samples):
    ids, prompt, _ = samples.batch(torch.arange(4))
    logits = torch.zeros(4, ids.shape[1], 60)
    losses, distance = llm_to_slm.answer_losses(logits, ids, prompt, 5)
    assert len(losses) == 20 and sorted(set(distance.tolist())) == [0, 1, 2, 3, 4]
    logits[0, prompt[0] - 1, ids[0, prompt[0]]] = 50  # the row that says the first of them
    first = llm_to_slm.answer_losses(logits, ids, prompt, 5)[0][0]
    assert first < 1e-6


def test_the_file_says_what_it_was_made_for(models, tmp_path):
    large, small = models
    projector = fusion.new_projector(24, 16, seed=1)
    projector_file.save(tmp_path, projector, large, small, layer=2, fusion="add")
    about = json.loads((tmp_path / "adapter.json").read_text())
    assert about["layer"] == 2 and about["fusion"] == "add" and about["tokens"] == "shared"
    assert about["source"]["sample"] == projector_file.sample_of(large)
    assert about["base"]["sample"] == projector_file.sample_of(small) != about["source"]["sample"]
    with torch.no_grad():
        small.model.norm.weight[0] += 1
    assert projector_file.sample_of(small) != about["base"]["sample"]
