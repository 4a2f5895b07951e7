"""tuning/windows.py: every batch is a function of seed and step, and an epoch is nearly a pass."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from tuning.windows import TokenStream, Windows


@pytest.fixture(scope="module")
def stream(tokenizer, texts):
    return TokenStream(tokenizer, texts)


def windows(stream, seed=3):
    return Windows(stream, tokens_per_batch=512, short=32, long=128, seed=seed)


def test_documents_are_separated(stream, texts):
    assert (stream.ids == stream.end_of_text).sum() == len(texts) + 1
    assert stream.ids[0] == stream.ids[-1] == stream.end_of_text


def test_vocabularies_may_be_large():
    words = {"<|endoftext|>": 70_000, "a": 69_999} | {f"w{i}": i for i in range(69_999)}
    stream = TokenStream(Tokenizer(models.WordLevel(words, unk_token="a")), ["a"])
    assert stream.ids.tolist() == [70_000, 69_999, 70_000]


def test_starts_are_statements_in_column_0(stream, tokenizer):
    for start in stream.starts[:200]:
        before = tokenizer.decode([stream.ids[start - 1]], skip_special_tokens=False)
        assert before.endswith("\n") or before == "<|endoftext|>"
        assert not tokenizer.decode([stream.ids[start]])[0].isspace()


def test_shapes_and_first_token(stream):
    for step in range(8):
        batch = windows(stream).batch(step, long_batches=1)
        assert batch.shape == ((4, 129) if step % 4 == 0 else (16, 33))
        assert (batch[:, 0] == stream.end_of_text).all()


def test_batches_repeat_by_seed_and_step(stream):
    first, again = windows(stream), windows(stream)
    again.batch(3, 1)
    for step in (0, 9, 3 * first.groups * 4 + 5):
        assert np.array_equal(first.batch(step, 1), again.batch(step, 1))
    assert not np.array_equal(first.batch(1, 1), windows(stream, seed=4).batch(1, 1))
    assert not np.array_equal(first.batch(1, 1), first.batch(1 + 4 * first.groups, 1))


def test_an_epoch_visits_every_place_once(stream, monkeypatch):
    cut = windows(stream)
    places = []

    def remember(cuts, length):
        places.extend(place for start in cuts for place in range(start, start + length))
        return cuts

    monkeypatch.setattr(cut, "_windows", remember)
    for step in range(4 * cut.groups):
        cut.batch(step, long_batches=2)
    assert len(set(places)) == len(places) == 512 * 4 * cut.groups
    assert max(places) < len(stream)


def test_too_few_tokens_and_uneven_lengths_are_refused(stream):
    with pytest.raises(ValueError, match="too few"):
        Windows(stream, tokens_per_batch=2**20, short=32, long=128, seed=0)
    with pytest.raises(ValueError, match="evenly"):
        Windows(stream, tokens_per_batch=500, short=32, long=128, seed=0)
