"""Pairs of token sequences, and training batches for encoder-decoder models."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from tuning.calibration import IGNORED
from tuning.functions import Example
from tuning.vocabulary import END


@dataclass(frozen=True)
class Pair:
    """What the encoder reads and what the decoder writes, both with the end of text."""

    task: str
    source: list[int]
    target: list[int]


def read_pairs(
    examples: Sequence[Example], tokenizer: Tokenizer, longest_source: int, longest_target: int
) -> list[Pair]:
    """The examples in tokens: sources are cut, so that they end with END all the same; examples with
    a longer target are left out."""
    end = tokenizer.token_to_id(END)
    sources = tokenizer.encode_batch_fast([e.source for e in examples], add_special_tokens=False)
    targets = tokenizer.encode_batch_fast([e.target for e in examples], add_special_tokens=False)
    return [
        Pair(example.task, [*source.ids[: longest_source - 1], end], [*target.ids, end])
        for example, source, target in zip(examples, sources, targets, strict=True)
        if len(target.ids) < longest_target
    ]


def encode(pairs: Sequence[Pair], padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs [pairs, longest source], labels [pairs, longest target]); labels of no token are IGNORED."""
    inputs = torch.full((len(pairs), max(len(p.source) for p in pairs)), padding)
    labels = torch.full((len(pairs), max(len(p.target) for p in pairs)), IGNORED)
    for row, pair in enumerate(pairs):
        inputs[row, : len(pair.source)] = torch.tensor(pair.source)
        labels[row, : len(pair.target)] = torch.tensor(pair.target, dtype=torch.long)
    return inputs, labels


class Batches:
    """Batches with a fixed number of pairs of each task; batch n depends on the seed alone.

    Each task goes through its pairs epoch by epoch, each in another order. Of GROUP batches the
    pairs of a task are sorted by their sources' lengths, so that there is little padding.
    """

    GROUP = 16

    def __init__(self, pairs: Sequence[Pair], of_task: dict[str, int], seed: int):
        self.seed = seed
        self.of_task = of_task
        self.pairs = {task: [p for p in pairs if p.task == task] for task in of_task}
        for task, count in of_task.items():
            if len(self.pairs[task]) < count:
                raise ValueError(f"{len(self.pairs[task])} pairs of {task} are fewer than {count}")

    def _order(self, task: str, epoch: int) -> np.ndarray:
        key = (self.seed, epoch, sorted(self.of_task).index(task))
        return np.random.default_rng(key).permutation(len(self.pairs[task]))

    def batch(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Batch number `step`, each task's part as `encode` gives it: names are much shorter than
        docstrings, and together they would be mostly padding."""
        group, place = divmod(step, self.GROUP)
        place = np.random.default_rng((self.seed, group)).permutation(self.GROUP)[place]
        parts = []
        for task, count in self.of_task.items():
            first = group * self.GROUP * count
            mine = self._range(task, first, self.GROUP * count)
            mine.sort(key=lambda pair: len(pair.source))
            parts.append(encode(mine[place * count : (place + 1) * count]))
        return parts

    def _range(self, task: str, first: int, count: int) -> list[Pair]:
        size = len(self.pairs[task])
        orders = {
            epoch: self._order(task, epoch)
            for epoch in range(first // size, (first + count - 1) // size + 1)
        }
        return [self.pairs[task][orders[n // size][n % size]] for n in range(first, first + count)]
