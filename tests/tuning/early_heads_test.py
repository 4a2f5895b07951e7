"""tuning/early_heads.py: heads learn to predict a frozen model's output from early layers."""

import argparse
import json

import pytest
import torch
from safetensors.torch import load_file

from tuning import (
    adapter_file,
    early_features,
    early_heads,
    frozen_model,
    match_rates,
    resumable,
)
from tuning.calibration import Sample
from tuning.early_features import Features
from tuning.schedule import Budget
from tuning.shapes import llama, new_model

SETTINGS = early_heads.Settings(rank=8, rows_per_batch=32, warmup_steps=2, rate=3e-3)
LAYERS = [2, 3]


@pytest.fixture(scope="module")
def frozen():
    config = llama(hidden=32, layers=4, heads=4, key_value_heads=2, inner=48, vocabulary=96)
    model = new_model(config, 3).eval().requires_grad_(False)
    for matrix in model.parameters():
        matrix.mul_(3)  # so that layers change what rows say
    return frozen_model.FrozenModel(model, tokenizer=None, ends=(0,))


@pytest.fixture(scope="module")
def samples():
    texts = torch.randint(1, 96, (24, 24), generator=torch.Generator().manual_seed(1)).tolist()
    return [Sample(text[:n], text[n : 24 - n]) for n, text in enumerate(texts, 1) if n < 9]


@pytest.fixture(scope="module")
def features(frozen, samples):
    return early_features.compute(frozen.model, samples, LAYERS, "rows")


def test_rows_are_those_that_write_the_output(frozen, samples, features):
    assert len(features) == sum(len(s.output) for s in samples)
    ordered = sorted(samples, key=lambda s: len(s.prompt) + len(s.output))
    ids = torch.tensor([ordered[0].prompt + ordered[0].output])
    rows = slice(len(ordered[0].prompt) - 1, ids.shape[1] - 1)
    first = slice(0, len(ordered[0].output))
    with torch.no_grad():
        top = frozen.model(input_ids=ids).logits[0, rows]
        read = early_features.read(frozen.model, features.top[first])
        assert torch.allclose(read, top, atol=0.1), "bf16"
        layers, frozen.model.model.layers = frozen.model.model.layers, frozen.model.model.layers[:3]
        early = frozen.model(input_ids=ids).logits[0, rows]
        frozen.model.model.layers = layers
        read = early_features.read(frozen.model, features.early[3][first])
        assert torch.allclose(read, early, atol=0.1)
        assert not torch.allclose(early, top, atol=0.5)


def test_the_fit_finds_a_map_of_its_rank():
    random = torch.Generator().manual_seed(1)
    early = torch.randn(400, 16, generator=random) * torch.rand(400, 1, generator=random)
    u, v = torch.randn(2, 16, 3, generator=random)
    top = 7 * (early + early @ u @ v.T)  # another size says nothing to a norm
    head = early_heads.EarlyHead(16, 3)
    direction = torch.nn.functional.normalize
    assert torch.equal(head(early), early)
    before = (direction(early) - direction(top)).norm()
    head.fit(early, top)
    after = (direction(head(early)) - direction(top)).norm()
    assert after < 0.5 * before


def losses(frozen, heads, features):
    with torch.no_grad():
        rows = torch.arange(len(features))
        return float(early_heads.loss_of(frozen, heads, features, rows))


def training(frozen, features, folder):
    heads = early_heads.EarlyHeads(LAYERS, 32, SETTINGS.rank)
    for layer, early in features.early.items():
        heads.of(layer).fit(early, features.top)
    made = resumable.Training(heads, SETTINGS.rate, SETTINGS.warmup_steps, folder)
    made.load()
    return made


def run(made, frozen, features, steps, check=dict):
    batches = early_heads.Batches(features, SETTINGS)
    made.run(
        lambda step: early_heads.loss_of(frozen, made.own, features, batches.rows(step)),
        Budget(steps=steps),
        check,
    )
    made.save()


def test_heads_learn_what_the_model_says(frozen, features, tmp_path):
    before = {name: tensor.clone() for name, tensor in frozen.model.state_dict().items()}
    made = training(frozen, features, tmp_path)
    shared = losses(frozen, early_heads.EarlyHeads(LAYERS, 32, SETTINGS.rank), features)
    run(made, frozen, features, 40)
    assert losses(frozen, made.own, features) < 0.7 * shared
    for name, tensor in frozen.model.state_dict().items():
        assert torch.equal(tensor, before[name]), "nothing of the model changes"
    rates = early_heads.match_rates(frozen, features, made.own)
    plain = early_heads.match_rates(frozen, features, None)
    for layer in LAYERS:
        assert rates[layer][0] > plain[layer][0]
        assert rates[layer] == sorted(rates[layer]), "more candidates, more matches"


def test_an_interrupted_training_resumes_with_the_same_result(frozen, features, tmp_path):
    whole = training(frozen, features, tmp_path / "whole")
    run(whole, frozen, features, 4)

    class Enough(Exception):
        pass

    half = training(frozen, features, tmp_path / "half")

    def stop():
        half.save()
        raise Enough

    with pytest.raises(Enough):
        run(half, frozen, features, 4, stop)
    assert 0 < half.step < 4
    resumed = training(frozen, features, tmp_path / "half")
    run(resumed, frozen, features, 4)
    for a, b in zip(whole.own.parameters(), resumed.own.parameters(), strict=True):
        assert torch.equal(a, b)


def test_heads_that_are_not_trained_keep_what_regression_found(frozen, features, tmp_path):
    heads = early_heads.EarlyHeads(LAYERS, 32, SETTINGS.rank)
    for layer, early in features.early.items():
        heads.of(layer).fit(early, features.top)
    before = {layer: heads.of(layer).up.detach().clone() for layer in LAYERS}
    few = features.only([3])
    work = early_heads.learn(
        frozen, heads, few, {"files": few}, SETTINGS, Budget(steps=10), tmp_path
    )
    assert work.step == 10
    assert [len(seen["files"]) for seen in work.curve] == [1] * len(work.curve)
    assert torch.equal(heads.of(2).up, before[2])
    assert not torch.equal(heads.of(3).up, before[3])


def test_rows_are_computed_once(features, tmp_path):
    file = tmp_path / "rows.pt"
    first = early_features.stored(file, lambda: features)
    again = early_features.stored(file, lambda: pytest.fail("they are there"))
    assert torch.equal(first.top, again.top)
    assert torch.equal(first.early[3], again.early[3])
    part = Features({3: again.early[3]}, again.top).every(3)
    assert torch.equal(part.early[3], again.early[3][::3])


def test_the_adapter_says_which_layer_it_reads(frozen, tmp_path):
    head = early_heads.EarlyHead(32, 5)
    adapter_file.write(tmp_path, "head", frozen.model, head.tensors(), layer=3)
    about = json.loads((tmp_path / "adapter.json").read_text())
    assert (about["kind"], about["layer"], about["base"]["layers"]) == ("head", 3, 4)
    tensors = load_file(tmp_path / "adapter.safetensors")
    assert {n: list(t.shape) for n, t in tensors.items()} == {
        "down.weight": [5, 32],
        "up.weight": [32, 5],
    }


def test_frequent_tokens_alone(frozen, features):
    heads = early_heads.EarlyHeads(LAYERS, 32, 4)
    all_ids = early_heads.match_rates(frozen, features, heads)
    assert early_heads.match_rates(frozen, features, heads, 96) == all_ids
    few = early_heads.match_rates(frozen, features, heads, 8)
    top = early_features.read(frozen.model, features.top).argmax(-1)
    could_be = float((top < 8).float().mean())
    assert 0 < could_be < 1
    for layer in LAYERS:
        assert few[layer][-1] <= round(could_be, 3), "others are never proposed"
        assert few[layer][-1] > 0


def test_rates_of_shipped_heads_are_those_below_a_vocabulary(capsys):
    with pytest.raises(SystemExit):
        early_heads.parse_arguments(["model.gguf", "--output", "heads", "--shipped"])
    assert "--draft-vocabulary" in capsys.readouterr().err


def test_heads_that_were_written_are_read_again(frozen, tmp_path):
    with pytest.raises(SystemExit, match="allowed with --shipped: a folder of heads"):
        early_heads.read_heads(tmp_path)
    heads = early_heads.EarlyHeads(LAYERS, 32, 5)
    for n, tensor in enumerate(heads.parameters()):
        torch.nn.init.normal_(tensor, generator=torch.Generator().manual_seed(n))
    for layer in LAYERS:
        adapter_file.write(
            tmp_path / f"layer-{layer}",
            "head",
            frozen.model,
            heads.of(layer).tensors(),
            layer=layer,
        )
    again = early_heads.read_heads(tmp_path)
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    for layer in LAYERS:
        assert torch.equal(again.of(layer)(rows), heads.of(layer)(rows))


@pytest.mark.parametrize(("layers", "count"), [([3], 8), ([8], 8), ([4, 9], 9)])
def test_layers_out_of_range_are_refused(layers, count):
    with pytest.raises(SystemExit, match="allowed: "):
        early_heads.layers_of(layers, count)
    assert early_heads.layers_of(None, 9) == [5, 6, 7, 8]


def test_layers_without_a_head_cannot_be_trained_or_written():
    assert early_heads.some_of("--train", None, [4, 5]) == [4, 5]
    assert early_heads.some_of("--train", [], [4, 5]) == []
    with pytest.raises(SystemExit, match="--write: 6; allowed: layers that have a head: "):
        early_heads.some_of("--write", [4, 6], [4, 5])


def test_every_setting_can_be_given():
    given = early_heads.parse_arguments(["model", "--output", "heads", "--rank", "3"])
    assert isinstance(given, argparse.Namespace)
    assert given.rank == 3
    assert all(hasattr(given, name) for name in vars(SETTINGS))


def test_pages_show_what_was_found():
    report = {
        "settings": {"rank": 8},
        "shared": {"humaneval": {"3": [0.1, 0.2, 0.3]}},
        "trained": {"humaneval": {"3": [0.5, 0.6, 0.7]}},
        "rows": 10,
        "steps": 2,
        "minutes": 1.5,
    }
    assert "| 3 of 4 | 10 / 50 | 20 / 60 | 30 / 70 | 0.88 | 0.85 |" in match_rates.section(
        "m", 4, report
    )
    about = match_rates.about(report)
    assert about.startswith(
        "Heads of rank 8, by regression on 10 rows, trained in 2 steps (1.5 min"
    )
    about = match_rates.about(report | {"learned": [3, 5]})
    assert "on 10 rows; those of layers 3, 5 trained further in 2 steps (1.5 minutes" in about
    report |= {"draft_vocabulary": 4096, "frequent": {"humaneval": {"3": [0.4, 0.5, 0.6]}}}
    assert "| 3 of 4 | 10 / 50 / 40 | 20 / 60 / 50 | 30 / 70 / 60 | 0.88 | 0.85 |" in (
        match_rates.section("m", 4, report)
    )
    assert "shared / trained / trained, of the first 4096 token ids alone; lat" in (
        match_rates.about(report)
    )
    del report["frequent"]
    del report["steps"]
    assert "by regression on 10 rows.\n" in match_rates.about(report | {"learned": []})
    del report["trained"]
    report["checked_rows"] = {"humaneval": 480}
    assert "Own answers to HumanEval (480 tokens):\n\n| layer |" in match_rates.section(
        "m", 4, report
    )
    assert "| 3 of 4 | 10 | 20 | 30 | 0.97 | 0.95 |" in match_rates.section("m", 4, report)
