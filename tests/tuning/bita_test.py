"""tuning/bita.py: masks learn to predict a frozen model's text, and the trees built from them."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tuning import (
    adapter_file,
    bita,
    bita_ablation,
    bita_answers,
    bita_page,
    bita_trees,
    frozen_model,
    mask_rows,
)
from tuning.calibration import Sample
from tuning.schedule import Budget
from tuning.shapes import llama, new_model

SETTINGS = bita.Settings(masks=2, prompts=4, samples_per_batch=8, groups=6, warmup_steps=2)


@pytest.fixture(scope="module")
def frozen():
    config = llama(hidden=32, layers=2, heads=4, key_value_heads=2, inner=48, vocabulary=512)
    model = new_model(config, 3).eval().requires_grad_(False)
    return frozen_model.FrozenModel(model, tokenizer=None, ends=(0,))


@pytest.fixture(scope="module")
def written():
    """A text of one repeated token. A model with random weights predicts no other."""
    prompts = np.random.default_rng(1).integers(1, 512, (64, 5)).tolist()
    return [Sample(p, [77] * 12) for p in prompts]


def rank_of(own, frozen, samples):
    ranks = np.concatenate(bita.held_out_ranks(frozen.model, own, samples))
    return (ranks == 1).mean(0).tolist()  # the last rows' masks have no token to predict


def trained(frozen, written, folder, steps):
    training = bita.Training(frozen, SETTINGS, folder)
    training.load()
    training.learn(written[:48], Budget(steps=steps), lambda: {})
    training.save()
    return training


def test_masks_learn_the_tokens_that_decoding_asks_of_them(frozen, written, tmp_path):
    before = {name: tensor.clone() for name, tensor in frozen.model.state_dict().items()}
    training = trained(frozen, written, tmp_path, 60)
    assert min(rank_of(training.own, frozen, written[48:])) > 0.5
    fresh = mask_rows.MaskParameters(frozen.model, 2, 4, seed=1)
    assert max(rank_of(fresh, frozen, written[48:])) < 0.1
    for name, tensor in frozen.model.state_dict().items():
        assert torch.equal(tensor, before[name]), "nothing of the model changes"


def test_a_training_begins_with_what_is_shipped(frozen, written, tmp_path):
    own = trained(frozen, written, tmp_path / "first", 20).own
    adapter_file.write(tmp_path / "adapter", "masks", frozen.model, own.tensors(frozen.model))
    begin = mask_rows.shipped(frozen.model, tmp_path / "adapter")
    made = bita.Training(frozen, SETTINGS, tmp_path / "second", begin)
    for a, b in zip(own.parameters(), made.own.parameters(), strict=True):
        assert torch.equal(a, b)
    other = dataclasses.replace(SETTINGS, prompts=5)
    with pytest.raises(RuntimeError, match="size mismatch"):
        bita.Training(frozen, other, tmp_path / "third", begin)


def test_labels_are_one_further_than_a_rows_own(written):
    sample = Sample([1, 2, 3], [10, 11, 12, 13])
    labels = bita.labels_of([sample], torch.tensor([[2, 4]]), 2)
    assert labels.tolist() == [[[11, 12], [13, -100]]]


def test_an_interrupted_training_resumes_with_the_same_result(frozen, written, tmp_path):
    whole = trained(frozen, written, tmp_path / "whole", 4)
    half = bita.Training(frozen, SETTINGS, tmp_path / "half")
    groups = bita.Groups(written[:48], SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(groups.batch(9), groups.batch(9), strict=True))

    class Enough(Exception):
        pass

    def stop():
        half.save()
        raise Enough

    with pytest.raises(Enough):
        half.learn(written[:48], Budget(steps=4), stop)
    assert 0 < half.step < 4
    resumed = trained(frozen, written, tmp_path / "half", 4)
    for a, b in zip(whole.own.parameters(), resumed.own.parameters(), strict=True):
        assert torch.equal(a, b)


def test_depths_are_cycled_at_about_as_many_rows(written):
    settings = dataclasses.replace(SETTINGS, depths="cycled", groups=4)
    groups = bita.Groups(written, settings)
    shapes = [groups.batch(step)[2].shape for step in range(4)]
    assert [tuple(shape) for shape in shapes] == [(8, 8, 1), (8, 4, 2), (8, 8, 1), (8, 4, 2)]
    with pytest.raises(ValueError, match="deep: allowed: all, cycled"):
        bita.Groups(written, dataclasses.replace(SETTINGS, depths="deep"))


def test_masks_learn_with_cycled_depths(frozen, written, tmp_path):
    settings = dataclasses.replace(SETTINGS, depths="cycled")
    training = bita.Training(frozen, settings, tmp_path)
    training.learn(written[:48], Budget(steps=60), dict)
    assert min(rank_of(training.own, frozen, written[48:])) > 0.5


def test_the_first_masks_rows_do_not_depend_on_how_many_there_are(frozen):
    own = mask_rows.MaskParameters(frozen.model, 3, 3, seed=1)
    text = torch.randint(0, 500, (2, 9), generator=torch.Generator().manual_seed(1))
    at = torch.tensor([[3, 6], [2, 8]])
    contexts = mask_rows.Contexts(frozen.model)
    with torch.no_grad():
        whole = mask_rows.hidden_rows(frozen.model, own, contexts.of(text), at)
        first = mask_rows.hidden_rows(frozen.model, own, contexts.of(text), at, masks=1)
    assert first.shape == (2, 2, 1, 32)
    assert torch.allclose(whole[:, :, :1], first, atol=1e-5)


def test_contexts_are_computed_once_as_long_as_they_fit(frozen):
    text = torch.arange(1, 13).reshape(2, 6)
    fresh = mask_rows.context(frozen.model, text)
    bytes_of_one = sum(layer.keys.nbytes + layer.values.nbytes for layer in fresh.layers)
    contexts = mask_rows.Contexts(frozen.model, limit=bytes_of_one)
    first = contexts.of(text)
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1)
    with torch.no_grad():
        mask_rows.hidden_rows(frozen.model, own, first, torch.tensor([[2], [3]]))
    again = contexts.of(text.clone())
    assert again is first
    for kept, new in zip(again.layers, fresh.layers, strict=True):
        assert torch.equal(kept.keys, new.keys) and torch.equal(kept.values, new.values)
    other = text.reshape(3, 4)  # the same tokens, as three texts
    assert contexts.of(other).layers[0].keys.shape[0] == 3
    assert contexts.of(other) is not contexts.of(other), "no room"


def test_mask_rows_see_their_own_text_and_nothing_else(frozen):
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1)
    text = torch.randint(0, 500, (1, 9), generator=torch.Generator().manual_seed(1))

    def rows(tokens, at):
        with torch.no_grad():
            past = mask_rows.context(frozen.model, tokens)
            return mask_rows.hidden_rows(frozen.model, own, past, torch.tensor([at]))[0]

    both = rows(text, [4, 8])
    cut = rows(text[:, :5], [4])
    assert torch.allclose(both[0], cut[0], atol=1e-5), "text behind a group's row is not seen"
    other = text.clone()
    other[0, 4] += 1
    assert not torch.allclose(rows(other, [4])[0], cut[0], atol=1e-3)
    with torch.no_grad():
        own.masks[1] += 1
    assert torch.allclose(rows(text, [4])[0][0], cut[0][0], atol=1e-5), "m_1 does not see m_2"


def test_shallow_prompts_are_rows_that_the_model_runs(frozen, written, tmp_path):
    settings = dataclasses.replace(SETTINGS, prompting="shallow")
    training = bita.Training(frozen, settings, tmp_path)
    before = training.own.inputs.detach().clone()
    training.learn(written[:48], Budget(steps=40), lambda: {})
    assert not torch.equal(training.own.inputs, before), "they learn"
    assert min(rank_of(training.own, frozen, written[48:])) > 0.3
    # What a server is given, as deep prompts, says the same.
    tensors = training.own.tensors(frozen.model)
    deep = mask_rows.MaskParameters(frozen.model, settings.masks, settings.prompts, seed=1)
    with torch.no_grad():
        for to, name in (
            (deep.masks, "masks"),
            (deep.keys, "prompt.keys"),
            (deep.values, "prompt.values"),
        ):
            to.copy_(tensors[name])
        text = torch.tensor([written[0].prompt + written[0].output])
        at = torch.tensor([[5, 8]])
        past = mask_rows.context(frozen.model, text)
        rows = [mask_rows.hidden_rows(frozen.model, own, past, at) for own in (training.own, deep)]
    assert torch.allclose(rows[0], rows[1], atol=1e-5)
    with pytest.raises(ValueError, match="deep, shallow"):
        mask_rows.MaskParameters(frozen.model, 2, 4, 1, "wide")


def test_additions_are_of_mask_rows_alone(frozen, written, tmp_path):
    settings = dataclasses.replace(SETTINGS, rank=2)
    training = bita.Training(frozen, settings, tmp_path)
    assert training.rates == [settings.rate, settings.addition_rate]
    plain = mask_rows.MaskParameters(frozen.model, settings.masks, settings.prompts, settings.seed)
    text = torch.tensor([written[0].prompt + written[0].output])
    at = torch.tensor([[5, 8]])

    @torch.no_grad()
    def both(own):
        past = mask_rows.context(frozen.model, text)
        return past, mask_rows.hidden_rows(frozen.model, own, past, at)

    before, begin = both(training.own)
    assert torch.equal(begin, both(plain)[1]), "they begin at zero"
    training.learn(written[:48], Budget(steps=40), dict)
    with torch.no_grad():  # of masks and prompts as they were
        for name in ("masks", "keys", "values"):
            getattr(training.own, name).copy_(getattr(plain, name))
    after, end = both(training.own)
    assert not torch.allclose(begin, end, atol=1e-3), "they learn"
    for a, b in zip(before.layers, after.layers, strict=True):
        assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


def test_additions_are_stored_in_fp8(frozen, tmp_path):
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1, rank=2, matrices="q_proj,down_proj")
    names = list(frozen_model.layer_matrices(frozen.model))
    assert own.matrices == [name for name in names if name.endswith(("q_proj", "down_proj"))]
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for addition in own.additions:
            addition.up.copy_(torch.randn(addition.up.shape, generator=random))
        own.additions[0].up.zero_()
        own.additions[1].down[0] *= 1000  # ranks of other sizes keep their precision
    mask_rows.write(tmp_path, frozen.model, own)
    read = mask_rows.shipped(frozen.model, tmp_path)
    assert read.matrices == own.matrices
    assert torch.equal(read.masks, own.masks)
    for a, b in zip(read.additions, own.additions, strict=True):
        for rank in range(2):
            want, got = (torch.outer(m.up[:, rank], m.down[rank]) for m in (b, a))
            assert (got - want).norm() <= 0.05 * want.norm()
    mask_rows.write(tmp_path, frozen.model, mask_rows.MaskParameters(frozen.model, 2, 3, seed=1))
    assert not mask_rows.shipped(frozen.model, tmp_path).additions, "no files of earlier ones"


def test_additions_of_a_higher_rank_are_reduced(frozen):
    trained = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1, rank=3)
    with torch.no_grad():
        for addition in trained.additions:
            addition.up[:, 0] = 1
            addition.up[:, 1:] = 1e-3  # little beside the first rank
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=2, rank=1)
    own.begin(trained)
    assert torch.equal(own.masks, trained.masks)
    for a, b in zip(own.additions, trained.additions, strict=True):
        want = b.up @ b.down
        assert (a.up @ a.down - want).norm() < 1e-2 * want.norm()
    other = mask_rows.MaskParameters(frozen.model, 2, 3, seed=2, rank=1, matrices="q_proj")
    with pytest.raises(RuntimeError, match="additions"):
        other.begin(trained)


def test_factors_of_a_file_get_equal_sizes(frozen, tmp_path):
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1, rank=2)
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for addition in own.additions:
            addition.up.copy_(0.01 * torch.randn(addition.up.shape, generator=random))
    mask_rows.write(tmp_path, frozen.model, own)
    trained = mask_rows.shipped(frozen.model, tmp_path)
    own.begin(trained)
    for a, b in zip(own.additions, trained.additions, strict=True):
        product = b.up @ b.down
        assert (a.up @ a.down - product).norm() < 1e-4 * product.norm()
        assert b.down.norm() > 10 * a.down.norm(), "as they are stored"
        assert torch.isclose(a.up.norm(), a.down.norm(), rtol=1e-3)


def test_further_masks_begin_as_the_last_trained_one(frozen):
    more = mask_rows.MaskParameters(frozen.model, 4, 3, seed=2, rank=2)
    plain = mask_rows.MaskParameters(frozen.model, 2, 3, seed=3)
    more.begin(plain)
    assert torch.equal(more.masks, plain.masks[[0, 1, 1, 1]])
    assert torch.equal(more.keys, plain.keys)
    assert not more.additions[0].up.any(), "they still begin at zero"
    fewer = mask_rows.MaskParameters(frozen.model, 1, 3, seed=2)
    fewer.begin(plain)
    assert torch.equal(fewer.masks, plain.masks[:1])


def test_the_answers_are_of_a_model_with_the_same_token_ids(frozen, monkeypatch):
    def model(**ids):
        tokenizer = SimpleNamespace(get_vocab=lambda: ids)
        return frozen_model.FrozenModel(frozen.model, tokenizer, ends=(0,))

    models = {"same": model(a=0, b=1), "other": model(a=1, b=0)}
    monkeypatch.setattr(frozen_model, "load", lambda path, dtype: models[path.name])
    own = model(a=0, b=1)
    assert bita.writer_of(own, None, torch.float32) is own
    assert bita.writer_of(own, Path("same"), torch.float32) is models["same"]
    with pytest.raises(SystemExit, match="--large: other; allowed: .* the same token ids"):
        bita.writer_of(own, Path("other"), torch.float32)


def test_a_vocabulary_limits_what_is_learned(frozen, written):
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1)
    contexts = mask_rows.Contexts(frozen.model)
    batch = bita.Groups(written[:48], SETTINGS).batch(0)
    most = int(batch[2].max()) + 1
    losses = [bita.loss_of(contexts, own, batch, v).item() for v in (0, 512, most)]
    assert losses[0] == losses[1] > losses[2], "fewer tokens to tell from each other"


def test_the_adapter_says_whose_it_is(frozen, tmp_path):
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1)
    adapter_file.write(tmp_path, "masks", frozen.model, own.tensors(frozen.model))
    about = json.loads((tmp_path / "adapter.json").read_text())
    assert about["kind"] == "masks"
    assert about["base"] == {
        "vocab_size": 512,
        "hidden_size": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "fingerprint": adapter_file.fingerprint_of(frozen_model.tensors_of(frozen.model)),
    }
    lower = frozen.model.to(torch.bfloat16)
    same = adapter_file.fingerprint_of(frozen_model.tensors_of(lower))
    frozen.model.to(torch.float32)
    assert same == about["base"]["fingerprint"], "of a model in fp32 and in bf16"


@pytest.mark.parametrize(
    ("kind", "masks", "candidates", "nodes", "rows"),
    [
        ("efficient", 3, 5, 15, 64),
        ("spine", 3, 2, 6, 19),
        ("triangle", 3, 5, 12, 52),
        ("full", 3, 2, 14, 60),
        ("chain", 3, 5, 3, 16),
        ("straightforward", 3, 5, 3, 7),
    ],
)
def test_trees_have_the_sizes_that_the_server_s_have(kind, masks, candidates, nodes, rows):
    tree = bita_trees.tree(kind, masks, candidates)
    assert (len(tree.paths), tree.rows(masks)) == (nodes, rows)


def test_accept_lengths_of_a_text_that_is_known():
    right = np.ones((9, 2), dtype=int)
    lengths = bita_trees.accept_lengths
    # Tokens 2 and 3 are predicted at row 0, 4 is the text's own; and so on.
    assert lengths(bita_trees.tree("chain", 2, 1), right) == [2, 2, 2]
    # The masks are spent, a pass has none, and they are there again.
    assert lengths(bita_trees.tree("straightforward", 2, 1), right) == [2, 0, 2, 0]
    assert lengths(bita_trees.tree("efficient", 2, 2), 2 * right) == [1, 1, 1, 1]
    assert lengths(bita_trees.tree("full", 2, 2), 2 * right) == [2, 2, 2]
    assert lengths(bita_trees.tree("efficient", 2, 2), 3 * right) == [0] * 8
    # A candidate of the second rank has no masks in a spine: what the root's saw beyond it is used.
    mixed = right.copy()
    mixed[:, 0] = 2
    assert lengths(bita_trees.tree("spine", 2, 2), mixed)[:2] == [1, 1]


def test_tables_of_trees_and_variants(frozen, written, tmp_path):
    adapter = tmp_path / "adapter"
    own = mask_rows.MaskParameters(frozen.model, 2, 3, seed=1)
    adapter_file.write(adapter, "masks", frozen.model, own.tensors(frozen.model))
    read = mask_rows.shipped(frozen.model, adapter)
    for a, b in zip(own.parameters(), read.parameters(), strict=True):
        assert torch.equal(a, b)
    right = [np.ones((9, 2), dtype=int)]
    assert bita_ablation.tokens_per_pass(right, "chain", 2, 1) == 3
    assert bita_ablation.tokens_per_pass(right, "chain", 1, 1) == 2
    rows = bita_ablation.tree_table({"code": right}, 2).splitlines()
    assert len(rows) == 2 + 2 * len(bita_ablation.TREES)
    settings = dataclasses.replace(SETTINGS, prompts=0)
    held_out = {"code": written[48:]}
    found = bita_ablation.train(frozen, settings, written[:48], held_out, 3, tmp_path)
    kept = list(tmp_path.rglob("steps-3.json"))
    kept[0].write_text(json.dumps(found | {"read": "again"}))
    again = bita_ablation.train(frozen, settings, written[:48], held_out, 3, tmp_path)
    assert again == found | {"read": "again"}, "kept"
    for other, answers in (
        (dataclasses.replace(settings, groups=5), written[:48]),
        (settings, written[:40]),
    ):
        fresh = bita_ablation.train(frozen, other, answers, held_out, 3, tmp_path)
        assert "read" not in fresh, "what was trained otherwise is another variant"
    assert "no prompts" in bita_ablation.variant_table({"no prompts": found})


def test_a_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n")
    bita_ablation.put(page, "x", "new")
    assert page.read_text() == "a\n<!-- x: begin -->\n\nnew\n<!-- x: end -->\nb\n"


def test_a_page_lists_all_trainings_and_the_end_of_the_last(tmp_path):
    random = np.random.default_rng(1)
    held_out = {
        text: bita.summary([random.integers(1, 9, (40, 2))], masks=2) for text in ("code", "chat")
    }
    settings = {"samples_per_batch": 8, "groups": 32}

    def training(steps, *curve):
        return {
            "settings": settings,
            "answers": 9,
            "tokens": 99,
            "steps": steps,
            "minutes": 2.5,
            "curve": [dict(zip(("step", "seconds", "code"), row, strict=True)) for row in curve],
        }

    first = training(7, (7, 150, 1.25))
    last = {**training(3, (0, 0, 1.2), (3, 60, 1.5)), "earlier": [first], "held_out": held_out}
    assert bita.trainings(tmp_path) == []
    (tmp_path / "training.json").write_text(json.dumps(last))
    both = bita.trainings(tmp_path)
    assert both == [first, training(3, (0, 0, 1.2), (3, 60, 1.5))]
    page = bita_page.section(both, held_out)
    assert "1. 9 answers (99 tokens), 7 steps of 8 answers with 32 mask groups" in page
    assert "| 1 | 7 | 2 | - | 1.25 |\n| 2 | 0 | 0 | - | 1.20 |\n| 2 | 3 | 1 | - | 1.50 |" in page
    trees = held_out["code"]["trees"]["spine k=2"], held_out["chat"]["trees"]["spine k=2"]
    figures = " | ".join(f"{found['tokens_per_pass']:.2f}" for found in trees)
    assert f"| spine, k = 2 | {trees[0]['rows']} | {figures} |" in page
    kept = next(line for line in page.splitlines() if line.startswith("| chat | "))
    assert sum(map(int, kept.split("|")[2:-1])) in range(98, 103), "percent"


def test_fewer_answers_are_a_part_of_more(written):
    parts = bita_answers.nested(written, [16, 32, 64], seed=1)
    assert [len(part) for part in parts.values()] == [16, 32, 64]
    for few, more in ((16, 32), (32, 64)):
        assert parts[more][:few] == parts[few]
    assert parts[16] != written[:16], "a random part"


def test_each_number_of_answers_is_trained_once(frozen, written, tmp_path, monkeypatch):
    held_out = {"text": written[56:]}

    def of(count, steps):
        part = bita_answers.nested(written[:56], [count], 1)[count]
        return bita_answers.trained(frozen, SETTINGS, part, held_out, steps, tmp_path)

    found = {"16": of(16, 60), "48": of(48, 60)}
    table = bita_answers.curve_table(found, SETTINGS.masks)
    assert "| 16 | 192 | 480 |" in table and "| 48 | 576 | 480 |" in table
    assert "text: efficient, k = 5" in table
    tree = bita_trees.tree("efficient", SETTINGS.masks, 5)
    mean, _ = bita_trees.tokens_per_pass(tree, found["48"]["ranks"]["text"])
    assert f"| {mean:.2f} ± " in table and mean > 2
    monkeypatch.setattr(bita.Training, "learn", None)  # a training would fail
    again = of(16, 60)
    for one, two in zip(found["16"]["ranks"]["text"], again["ranks"]["text"], strict=True):
        assert np.array_equal(one, two)
