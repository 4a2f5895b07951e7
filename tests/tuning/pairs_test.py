"""tuning/pairs.py: what is cut, padded and drawn."""

import pytest
import torch

from tuning.calibration import IGNORED
from tuning.functions import DOCSTRING, NAME, Example
from tuning.pairs import Batches, Pair, encode, read_pairs
from tuning.vocabulary import train_source_tokenizer


def test_sources_are_cut_and_long_targets_left_out(texts):
    tokenizer = train_source_tokenizer(texts, size=512)
    examples = [
        Example(NAME, "name: def _(self):\n    return self", "me"),
        Example(DOCSTRING, "docstring: def f():\n    pass", "Say nothing at all about this."),
    ]
    pairs = read_pairs(examples, tokenizer, longest_source=6, longest_target=5)
    assert [pair.task for pair in pairs] == [NAME]
    whole = tokenizer.encode(examples[0].source).ids
    assert whole[-1] == tokenizer.token_to_id("</s>") == 1
    assert pairs[0].source == [*whole[:5], 1]
    assert pairs[0].target == tokenizer.encode("me").ids
    longer = read_pairs(examples, tokenizer, longest_source=600, longest_target=500)
    assert longer[0].source == whole and len(longer) == 2


def test_padding_is_no_label():
    inputs, labels = encode([Pair(NAME, [5, 6, 1], [7, 1]), Pair(NAME, [8, 1], [9, 4, 1])])
    assert inputs.tolist() == [[5, 6, 1], [8, 1, 0]]
    assert labels.tolist() == [[7, 1, IGNORED], [9, 4, 1]]


def pairs(task, count, first):
    return [Pair(task, [first + i] * (1 + i % 7), [first + i, 1]) for i in range(count)]


def test_an_epoch_sees_every_pair_once_and_mixes_tasks():
    both = [*pairs(NAME, 64, 100), *pairs(DOCSTRING, 32, 1000)]
    batches = Batches(both, {NAME: 4, DOCSTRING: 2}, seed=3)

    def firsts(step):
        return [t for _, labels in batches.batch(step) for t in labels[:, 0].tolist()]

    seen = [firsts(step) for step in range(Batches.GROUP)]
    assert all(sum(t < 1000 for t in batch) == 4 and len(batch) == 6 for batch in seen)
    assert sorted(t for batch in seen for t in batch) == sorted(p.target[0] for p in both)
    later = [firsts(step) for step in range(16, 32)]
    assert later != seen and sorted(sum(later, [])) == sorted(sum(seen, []))
    again = Batches(both, {NAME: 4, DOCSTRING: 2}, seed=3)
    assert torch.equal(again.batch(21)[0][0], batches.batch(21)[0][0])


def test_no_task_is_padded_to_anothers_length():
    longer = [Pair(DOCSTRING, [5] * 9, [5] * 30) for _ in range(16)]
    parts = Batches([*pairs(NAME, 32, 100), *longer], {NAME: 2, DOCSTRING: 1}, seed=1).batch(3)
    assert [tuple(labels.shape) for _, labels in parts] == [(2, 2), (1, 30)]


def test_batches_have_sources_of_like_length():
    batches = Batches(pairs(NAME, 128, 100), {NAME: 8}, seed=1)
    inputs = [batches.batch(step)[0][0] for step in range(16)]
    padded = sum(int((batch == 0).sum()) for batch in inputs)
    assert padded < 128


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="3 pairs of name are fewer than 4"):
        Batches(pairs(NAME, 3, 100), {NAME: 4}, seed=1)
