"""tuning/calibration.py: prompts are cut where texts begin, and only outputs are learned."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from tuning import calibration
from tuning.calibration import IGNORED, Batches, Sample
from tuning.windows import TokenStream


@pytest.fixture(scope="module")
def stream(tokenizer, texts):
    return TokenStream(tokenizer, texts[:10])


def samples(count):
    """Prompts of 2 to 5 tokens and outputs of 1 to 7, no two samples the same."""
    return [
        Sample(list(range(i, i + 2 + i % 4)), list(range(100 + i, 101 + i + i % 7)))
        for i in range(count)
    ]


def test_prompts_begin_at_statements_within_one_document(stream):
    prompts = calibration.cut_prompts(stream, 200, 4, 20, seed=3)
    assert prompts == calibration.cut_prompts(stream, 200, 4, 20, seed=3)
    assert prompts != calibration.cut_prompts(stream, 200, 4, 20, seed=4)
    assert len({tuple(prompt) for prompt in prompts}) == 200
    lengths = {len(prompt) - 1 for prompt in prompts}
    assert min(lengths) == 4 and max(lengths) == 20
    ids = stream.ids.tolist()
    starts = {tuple(ids[start : start + 4]) for start in stream.starts}
    for prompt in prompts:
        assert prompt[0] == stream.end_of_text and stream.end_of_text not in prompt[1:]
        assert tuple(prompt[1:5]) in starts


def test_too_many_prompts_are_refused(stream):
    with pytest.raises(ValueError, match=r"only \d+ prompts"):
        calibration.cut_prompts(stream, 10**6, 4, 20, seed=0)
    with pytest.raises(ValueError, match="1 <= shortest"):
        calibration.cut_prompts(stream, 10, 5, 4, seed=0)


class Server:
    """Answers a prompt with its first token + 1, + 2, ..., ending as asked."""

    messages = SimpleNamespace(FinishReason=SimpleNamespace(Name=lambda reason: reason))

    def __init__(self, reason):
        self.reason = reason

    def request(self, model, prompt, new_tokens):
        return prompt, new_tokens

    def complete(self, request):
        prompt, count = request
        tokens = [SimpleNamespace(id=prompt[0] + 1 + i) for i in range(count)]
        return SimpleNamespace(tokens=tokens, finished=SimpleNamespace(finish_reason=self.reason))


def test_outputs_keep_the_order_and_their_end():
    prompts = [[10 * i] for i in range(9)]
    written = calibration.write_outputs(
        Server("FINISH_REASON_MAX_TOKENS"), "m", prompts, 2, streams=4, end=0
    )
    assert written == [Sample([10 * i], [10 * i + 1, 10 * i + 2]) for i in range(9)]
    written = calibration.write_outputs(
        Server("FINISH_REASON_EOS"), "m", prompts[1:2], 2, streams=1, end=0
    )
    assert written == [Sample([10], [11, 12, 0])]
    with pytest.raises(RuntimeError, match="TIME_LIMIT"):
        calibration.write_outputs(
            Server("FINISH_REASON_TIME_LIMIT"), "m", prompts, 2, streams=1, end=0
        )


def test_samples_survive_a_file(tmp_path):
    file = tmp_path / "folder" / "set.npz"
    calibration.save(samples(20), file)
    assert calibration.load(file) == samples(20)
    assert [path.name for path in file.parent.iterdir()] == ["set.npz"]


def test_only_outputs_are_labels():
    inputs, labels = calibration.pad([Sample([5, 6, 7], [8, 9]), Sample([1], [2])])
    assert inputs.tolist() == [[5, 6, 7, 8], [1, 0, 0, 0]]
    assert labels.tolist() == [[IGNORED, IGNORED, 8, 9], [2, IGNORED, IGNORED, IGNORED]]


def test_an_epoch_has_every_sample_once_and_the_next_another_order():
    batches = Batches(samples(37), samples_per_batch=4, seed=1)
    assert batches.in_epoch == 9
    epochs = []
    for first in (0, 9):
        labels = [batches.batch(step)[1] for step in range(first, first + 9)]
        epochs.append([row[row != IGNORED].tolist() for batch in labels for row in batch])
    for outputs in epochs:
        assert len(outputs) == 36
        assert len({tuple(output) for output in outputs}) == 36
    assert epochs[0] != epochs[1]
    again = Batches(samples(37), samples_per_batch=4, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(again.batch(11), batches.batch(11), strict=True))


def test_samples_of_like_length_go_together():
    batches = Batches(samples(128), samples_per_batch=8, seed=1)  # a whole group
    padded = [batches.batch(step)[0].numel() for step in range(batches.in_epoch)]
    used = sum(len(s.prompt) + len(s.output) - 1 for s in samples(128))
    assert sum(padded) < 1.15 * used
    unsorted = (
        itertools.batched(samples(128), 8)
        if hasattr(itertools, "batched")
        else [samples(128)[i : i + 8] for i in range(0, 128, 8)]
    )
    assert sum(calibration.pad(list(some))[0].numel() for some in unsorted) > 1.15 * used


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="fewer than a batch"):
        Batches(samples(3), samples_per_batch=4, seed=0)
