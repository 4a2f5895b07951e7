"""tuning/seq2seq.py: encoder-decoder models: training, resuming, alignment, shipped files."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration

from tuning import seq2seq
from tuning.functions import DOCSTRING, NAME
from tuning.pairs import Batches, Pair
from tuning.schedule import Budget
from tuning.seq2seq_shapes import SHAPES, multiplications_per_token, new_model, t5
from tuning.vocabulary import train_source_tokenizer

RECIPE = seq2seq.Recipe(names=8, docstrings=8, warmup_steps=2)
TINY = dict(hidden=32, encoder=2, decoder=2, heads=2, inner=48, vocabulary=512)


@pytest.fixture(scope="module")
def pairs():
    """Names: the source's first token. Docstrings: the source backwards."""
    random = np.random.default_rng(1)
    made = []
    for task, kind in ((NAME, 2), (DOCSTRING, 3)):
        for source in random.integers(4, 36, (64, 3)).tolist():
            target = source[:1] if task == NAME else source[::-1]
            made.append(Pair(task, [kind, *source, 1], [*target, 1]))
    return made


def trainer(pairs, file, steps):
    batches = Batches(pairs, {NAME: RECIPE.names, DOCSTRING: RECIPE.docstrings}, RECIPE.seed)
    return seq2seq.Trainer(new_model(t5(**TINY), 1), batches, RECIPE, Budget(steps=steps), file)


def test_training_learns_and_a_resumed_one_has_the_same_losses(pairs, tmp_path):
    whole = trainer(pairs, tmp_path / "whole.pt", 60)
    losses = [whole.step() for _ in range(60)]
    assert whole.step() is None
    assert losses[-1] < losses[0] / 2
    first = trainer(pairs, tmp_path / "parts.pt", 60)
    parts = [first.step() for _ in range(5)]
    first.save()
    first.step()  # lost: done after the checkpoint
    second = trainer(pairs, tmp_path / "parts.pt", 60)
    assert second.resumed and second.state.step == 5
    parts += [second.step() for _ in range(4)]
    assert parts == losses[:9]
    loss = seq2seq.held_out_loss(whole.model, {NAME: pairs[:64]}, bfloat16=False)[NAME]
    assert loss < losses[0] / 2


def test_queries_move_less_than_other_matrices():
    model = new_model(t5(**TINY), 1)
    muon, adam = seq2seq.optimizers(model, RECIPE, bfloat16=False)
    queries, matrices = muon.param_groups
    assert queries["peak"] == pytest.approx(matrices["peak"] / 4)  # heads of 16
    assert len(queries["params"]) == 2 + 2 * 2
    counted = sum(len(g["params"]) for o in (muon, adam) for g in o.param_groups)
    assert counted == len(list(model.parameters()))
    assert any(p is model.shared.weight for p in adam.param_groups[0]["params"])


def test_answers_are_greedy_and_end(pairs):
    model = new_model(t5(**TINY), 1)
    answers = list(seq2seq.write(model, [p.source for p in pairs[:5]], 7, rows=2))
    for pair, answer in zip(pairs, answers, strict=False):
        row = torch.tensor([pair.source])
        alone = model.generate(row, max_new_tokens=7, do_sample=False)[0, 1:].tolist()
        assert answer == alone[: len(answer)] and len(answer) <= 7
        assert 1 not in answer[:-1] and (len(answer) == 7 or answer[-1] == 1)
    own = [Pair(NAME, p.source, a) for p, a in zip(pairs, answers, strict=False)]
    assert seq2seq.agreement(model, own) == 1


def test_answers_of_the_large_one_are_kept(pairs, tmp_path):
    model = new_model(t5(**TINY), 1)
    file = tmp_path / "work" / "answers.json"
    first = seq2seq.relabelled(model, pairs[:3], False, file)
    assert [pair.source for pair in first] == [pair.source for pair in pairs[:3]]
    assert first[0].target == next(seq2seq.write(model, [pairs[0].source], 48))
    other = new_model(t5(**TINY), 2)
    assert seq2seq.relabelled(other, pairs[:3], False, file) == first


def test_the_exported_model_is_the_trained_one(texts, tmp_path):
    tokenizer = train_source_tokenizer(texts, size=512)
    model = new_model(t5(**TINY), 1)
    seq2seq.export(model, tokenizer, tmp_path)
    loaded = T5ForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.shared.weight, model.shared.weight.bfloat16())
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == 0 and generation["eos_token_id"] == 1
    ids = AutoTokenizer.from_pretrained(tmp_path)("name: def _():\n    pass").input_ids
    assert ids == tokenizer.encode("name: def _():\n    pass").ids and ids[-1] == 1


def test_a_small_pass_costs_at_most_a_fifth():
    cost = {
        role: multiplications_per_token(t5(**shape, vocabulary=4096), source=128, target=16)
        for role, shape in SHAPES.items()
    }
    assert 5 * cost["small"] <= cost["large"]


def test_quality_counts_names_and_words(texts, monkeypatch):
    tokenizer = train_source_tokenizer(texts, size=512)
    targets = {NAME: ["read", "close"], DOCSTRING: ["Return the sum.", "Close it."]}
    answers = iter(["read", "open", "return a sum", "nothing"])
    pairs = {
        task: [Pair(task, [5, 1], tokenizer.encode(text).ids) for text in some]
        for task, some in targets.items()
    }
    monkeypatch.setattr(
        seq2seq,
        "write",
        lambda model, sources, n: [tokenizer.encode(next(answers)).ids for _ in sources],
    )
    assert seq2seq.quality(None, tokenizer, pairs) == {
        "names_right": 0.5,
        "docstrings_rouge_l": pytest.approx(1 / 3, abs=1e-4),
    }
