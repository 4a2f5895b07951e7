"""Greedy answers of a model to prompts: the training data of BiTA.

Prompts come from documents, or from the model: it completes the header of a user message with a question
(arXiv 2406.08464), and then answers it.
"""

from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from tuning import calibration
from tuning.calibration import Sample
from tuning.frozen_model import FrozenModel

ROWS = 64  # prompts at once
USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


@torch.no_grad()
def write(
    frozen: FrozenModel,
    prompts: list[list[int]],
    new_tokens: int,
    ends: tuple[int, ...],
    temperature: float = 0,
    seed: int = 0,
    title: str = "answers",
    top_p: float = 0.98,
    top_k: int = 0,
) -> list[Sample]:
    """At most `new_tokens` tokens behind each prompt, an end included; greedy at temperature 0.
    `top_k` 0: no limit."""
    torch.manual_seed(seed)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    written: dict[int, Sample] = {}
    for first in tqdm(range(0, len(order), ROWS), unit="batch", desc=title, mininterval=5):
        chosen = order[first : first + ROWS]
        longest = max(len(prompts[i]) for i in chosen)
        ids = torch.tensor([[0] * (longest - len(prompts[i])) + prompts[i] for i in chosen])
        real = torch.tensor(
            [[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in chosen]
        )
        draws = dict(do_sample=True, temperature=temperature, top_p=top_p, top_k=top_k)
        out = frozen.model.generate(
            input_ids=ids,
            attention_mask=real,
            max_new_tokens=new_tokens,
            eos_token_id=list(ends),
            pad_token_id=ends[0],
            **(draws if temperature > 0 else dict(do_sample=False)),
        )[:, longest:].tolist()
        for i, tokens in zip(chosen, out, strict=True):
            end = next((n for n, t in enumerate(tokens) if t in ends), len(tokens) - 1)
            written[i] = Sample(prompts[i], tokens[: end + 1])
    return [written[i] for i in range(len(prompts))]


def questions(frozen: FrozenModel, count: int, longest: int, seed: int) -> list[list[int]]:
    """`count` chat prompts whose questions the model wrote itself, up to where its answer begins."""
    encode = frozen.tokenizer.encode
    user = encode(USER, add_special_tokens=False).ids
    turn = encode(ASSISTANT, add_special_tokens=False).ids
    asked = write(frozen, [user] * count, longest, (turn[0],), 1.0, seed, "questions")
    return [user + [t for t in s.output if t != turn[0]] + turn for s in asked]


def stored(file: Path, make) -> list[Sample]:
    """Cached result of `make()`."""
    if not file.exists():
        calibration.save(make(), file)
    return calibration.load(file)


def identity(frozen: FrozenModel, sample: str, **settings) -> str:
    """A name for what this model writes under these settings. `sample`: adapter_file.fingerprint_of()."""
    import hashlib
    import json

    text = json.dumps({"fingerprint": sample, "dtype": str(frozen.model.dtype), **settings})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lists(held_out: dict[str, list[Sample]]) -> dict:
    """For identity(): all tokens, by sort."""
    return {name: [token_lists(s) for s in samples] for name, samples in held_out.items()}


def token_lists(sample: Sample) -> list[list[int]]:
    return [list(map(int, part)) for part in (sample.prompt, sample.output)]


def tokens_of(samples: list[Sample]) -> np.ndarray:
    return np.concatenate([np.array(s.prompt + s.output) for s in samples])
