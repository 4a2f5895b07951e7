"""A calibration set: greedy answers of a large model to prompts cut from documents.

BiLD section 3.5.1: inputs x of the target domain, and y = argmax p_L(y | x).
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from measure.serving import Client, at_once
from tuning.windows import TokenStream

IGNORED = -100  # a label that no loss counts


@dataclass(frozen=True)
class Sample:
    """A prompt and the tokens of the large model's answer, including an end token."""

    prompt: list[int]
    output: list[int]


def cut_prompts(
    stream: TokenStream, count: int, shortest: int, longest: int, seed: int
) -> list[list[int]]:
    """`count` distinct prompts: END_OF_TEXT, then `shortest` to `longest` tokens of one document.

    Each begins at a statement in column 0 and ends anywhere. The same seed gives the same prompts.
    """
    if not 1 <= shortest <= longest:
        raise ValueError(f"prompts of {shortest} to {longest} tokens: 1 <= shortest <= longest")
    random = np.random.default_rng(seed)
    prompts: dict[tuple[int, ...], None] = {}  # in the order of their drawing
    for start in random.permutation(stream.starts):
        if len(prompts) == count:
            break
        length = int(random.integers(shortest, longest + 1))
        piece = stream.ids[start : start + length].tolist()
        if len(piece) == length and stream.end_of_text not in piece:
            prompts[(stream.end_of_text, *piece)] = None
    if len(prompts) < count:
        raise ValueError(f"only {len(prompts)} prompts in {len(stream)} tokens, wanted {count}")
    return [list(prompt) for prompt in prompts]


def write_outputs(
    client: Client, model: str, prompts: list[list[int]], new_tokens: int, streams: int, end: int
) -> list[Sample]:
    """`model`'s greedy outputs of at most `new_tokens` tokens, in the order of the prompts."""

    def write(prompt: list[int]) -> Sample:
        choice = client.complete(client.request(model, prompt, new_tokens))
        tokens = [token.id for token in choice.tokens]
        reason = client.messages.FinishReason.Name(choice.finished.finish_reason)
        if reason == "FINISH_REASON_EOS":
            tokens.append(end)
        elif reason != "FINISH_REASON_MAX_TOKENS":
            raise RuntimeError(f"a calibration output ended with {reason}")
        return Sample(prompt, tokens)

    done = at_once(write, prompts, streams)
    return list(tqdm(done, total=len(prompts), unit="output", mininterval=5))


def key(weights: Path, **settings) -> str:
    """A name for what these weights write under these settings."""
    digest = hashlib.sha256(weights.read_bytes())
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def save(samples: list[Sample], file: Path) -> None:
    """Writes a file that `load` reads; an incomplete one never gets its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new.npz")
    np.savez_compressed(
        beside,
        tokens=np.concatenate([np.array(s.prompt + s.output, dtype=np.int32) for s in samples]),
        prompts=np.array([len(s.prompt) for s in samples]),
        outputs=np.array([len(s.output) for s in samples]),
    )
    beside.rename(file)


def load(file: Path) -> list[Sample]:
    with np.load(file) as arrays:
        tokens = arrays["tokens"].tolist()
        lengths = zip(arrays["prompts"].tolist(), arrays["outputs"].tolist(), strict=True)
    samples, at = [], 0
    for prompt, output in lengths:
        middle, end = at + prompt, at + prompt + output
        samples.append(Sample(tokens[at:middle], tokens[middle:end]))
        at = end
    return samples


def pad(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, labels), each [samples, longest]: label i of a row is what follows its input i.

    Only outputs are labels. Padding is at the end, which changes nothing before it.
    """
    longest = max(len(s.prompt) + len(s.output) for s in samples) - 1
    inputs = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full_like(inputs, IGNORED)
    for row, sample in enumerate(samples):
        whole = torch.tensor(sample.prompt + sample.output)
        inputs[row, : len(whole) - 1] = whole[:-1]
        first = len(sample.prompt) - 1
        labels[row, first : len(whole) - 1] = whole[first + 1 :]
    return inputs, labels


class Batches:
    """The samples in batches, each epoch in another order; batch n depends on the seed alone.

    Samples of like length go together: of GROUP batches' samples, sorted by length.
    """

    GROUP = 16

    def __init__(self, samples: list[Sample], samples_per_batch: int, seed: int):
        if len(samples) < samples_per_batch:
            raise ValueError(
                f"{len(samples)} samples are fewer than a batch of {samples_per_batch}"
            )
        self.samples = samples
        self.size = samples_per_batch
        self.seed = seed
        self.in_epoch = len(samples) // samples_per_batch

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Batch number `step` as `pad` gives it."""
        epoch, within = divmod(step, self.in_epoch)
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.samples))[: self.in_epoch * self.size]
        cuts = range(0, len(order), self.GROUP * self.size)
        sorted_groups = [
            sorted(
                order[cut : cut + self.GROUP * self.size],
                key=lambda i: len(self.samples[i].prompt) + len(self.samples[i].output),
            )
            for cut in cuts
        ]
        flat = np.concatenate(sorted_groups).reshape(self.in_epoch, self.size)
        flat = random.permutation(flat)  # so that an epoch does not end with the longest
        return pad([self.samples[i] for i in flat[within]])
