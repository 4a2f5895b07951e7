"""tuning/medusa.py: heads predict what their definition says, and are counted as BiTA's masks are."""

import json

import numpy as np
import pytest
import torch

from tuning import bita, bita_trees, medusa
from tuning.calibration import Sample
from tuning.medusa import Heads, Prompts, Settings
from tuning.schedule import Budget
from tuning.shapes import llama, new_model


@pytest.fixture(scope="module")
def model():
    config = llama(hidden=32, layers=2, heads=4, key_value_heads=2, inner=48, vocabulary=512)
    return new_model(config, 3).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def written():
    """After each prompt the same four tokens in turn. A model with random weights predicts no such text."""
    prompts = np.random.default_rng(1).integers(1, 512, (64, 5)).tolist()
    return [Sample(p, [77, 301, 8, 450] * 3) for p in prompts]


@pytest.mark.parametrize("outputs", medusa.OUTPUTS)
def test_untrained_heads_predict_as_the_model_does(model, outputs):
    tokens = torch.randint(0, 500, (2, 9), generator=torch.Generator().manual_seed(1))
    heads = Heads(model, 3, outputs)
    rows = medusa.last_rows(model, tokens).flatten(0, 1)
    with torch.no_grad():
        expected = model(input_ids=tokens).logits.flatten(0, 1)
        for head in range(3):
            assert torch.allclose(heads(rows, head), expected, atol=1e-5)


def test_a_head_is_a_residual_block_before_the_output_matrix(model):
    heads = Heads(model, 2, "shared")
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for part in heads.parameters():
            part.copy_(torch.randn(part.shape, generator=random))
        rows = torch.randn(5, 32, generator=random)
        inner = rows @ heads.weight[1].T + heads.bias[1]
        expected = model.lm_head(rows + inner * torch.sigmoid(inner))
        assert torch.allclose(heads(rows, 1), expected, atol=1e-4)
    assert sum(p.numel() for p in heads.parameters()) == 2 * (32 * 32 + 32)
    own = Heads(model, 2, "own")
    assert sum(p.numel() for p in own.parameters()) == 2 * (32 * 32 + 32 + 512 * 32)


def test_head_i_learns_the_token_i_behind_the_rows_own(model, written):
    rows, labels = medusa.features(model, written[0], 3)
    output = written[0].output
    assert rows.shape == (len(output), 32)
    assert labels[0].tolist() == output[1:4]  # the prompt's last row itself predicts output[0]
    assert labels[-2].tolist() == [output[-1], -100, -100]
    assert labels[-1].tolist() == [-100] * 3
    text = torch.tensor([written[0].prompt + output])
    assert torch.equal(rows[0], medusa.last_rows(model, text)[0, len(written[0].prompt) - 1])


@pytest.mark.parametrize("outputs", medusa.OUTPUTS)
def test_heads_learn_and_resume(model, written, outputs, tmp_path):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = Settings(rows_per_batch=64, rate=3e-2, warmup_steps=2)
    texts = [medusa.features(model, sample, 2) for sample in written]

    def trained(folder, steps):
        given = (Heads(model, 2, outputs), settings, texts[:48], {"code": texts[48:]})
        return medusa.train(*given, Budget(steps=steps), tmp_path / folder)

    def first_share(own):
        return (np.concatenate(medusa.held_out_ranks(own, texts[48:])) == 1).mean(0)

    assert max(first_share(Heads(model, 2, outputs))) < 0.1
    work = trained("whole", 60)
    assert min(first_share(work.own)) > 0.3  # the last rows' heads have no token to predict
    again = trained("whole", 60)
    assert again.step == 60
    for a, b in zip(work.own.parameters(), again.own.parameters(), strict=True):
        assert torch.equal(a, b)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), "nothing of the model changes"


def test_ranks_of_untrained_heads_are_those_of_the_models_own_logits(model, written):
    sample = written[0]
    texts = [medusa.features(model, sample, 2)]
    (ranks,) = medusa.held_out_ranks(Heads(model, 2, "shared"), texts)
    text = sample.prompt + sample.output
    logits = model(input_ids=torch.tensor([text])).logits[0]
    for n, row in enumerate(ranks):
        for i in range(2):
            at = len(sample.prompt) - 1 + n
            if at + 2 + i >= len(text):
                assert row[i] == bita_trees.WORST
                continue
            better = int((logits[at] > logits[at, text[at + 2 + i]]).sum())
            assert row[i] == min(1 + better, bita_trees.WORST)


def test_trees_have_the_same_candidates_and_no_rows_of_masks():
    for kind, candidates in medusa.TREES:
        theirs, ours = bita_trees.tree(kind, 3, candidates), medusa.tree_of(kind, 3, candidates)
        assert ours.paths == theirs.paths
        assert ours.rows(0) == 1 + len(theirs.paths) < theirs.rows(3)
    # Masks of the straightforward tree are spent after a pass; heads read the last accepted row.
    right = np.ones((9, 2), dtype=int)
    assert bita_trees.accept_lengths(bita_trees.tree("straightforward", 2, 1), right) == [
        2,
        0,
        2,
        0,
    ]
    assert bita_trees.accept_lengths(medusa.tree_of("straightforward", 2, 1), right) == [2, 2, 2]
    mean, error = medusa.tokens_per_pass(medusa.tree_of("chain", 2, 1), [right, 2 * right])
    # Passes of 3 tokens and of 1; the first token of each answer comes from a pass without drafts.
    lengths = [[2, 2, 2], [0] * 8]
    assert mean == pytest.approx((3 + 6 + 8) / (3 + 8)) and error > 0
    assert [
        bita_trees.accept_lengths(medusa.tree_of("chain", 2, 1), r) for r in (right, 2 * right)
    ] == lengths
    line = medusa.tree_table({"code": [right]}, {"shared": {"code": [right]}}, 2).splitlines()[2]
    assert line == "| efficient, k = 5 | 33 | 11 | 3.00 ± nan | 3.00 ± nan |"


def test_prompts_are_those_of_the_adapter(tmp_path):
    settings = {"seed": 4, "masks": 2, "new_tokens": 9, "code_prompts": 7, "checked": 3, "rate": 1}
    (tmp_path / "training.json").write_text(json.dumps({"settings": settings}))
    assert Prompts.of(tmp_path, 5) == Prompts(4, 2, 9, 7, checked=5)
    (tmp_path / "training.json").write_text(json.dumps({"settings": settings, "earlier": [{}]}))
    with pytest.raises(SystemExit, match="several trainings; allowed: adapters of one training"):
        Prompts.of(tmp_path, 5)
    shipped = Prompts.of(medusa.ROOT / "models/code-large-bita", 5)
    assert (shipped.masks, shipped.code_prompts, shipped.new_tokens) == (3, 1024, 128)


def test_ranks_are_shared_with_bita():
    logits = torch.tensor([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5]])
    ranks = bita.ranks_of(logits, torch.tensor([2, -100]))
    assert ranks.tolist() == [2, bita_trees.WORST]
