"""Training data of LLM-to-SLM: prompts with continuations, and the large model's encoder states of the prompts,
computed once and cached in bf16."""

import hashlib
import json
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import AutoConfig, PreTrainedModel

from tuning import calibration, frozen_model, fusion, projector_file
from tuning.functions import DOCSTRING, NAME, Example
from tuning.windows import TokenStream

# Behind a function, before what is to be said of it.
ASKED = {
    DOCSTRING: "\n# In one line, what this function does:\n#",
    NAME: "\n# What this function is called, where it says _:\n#",
}


def key_of(*parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class Reader:
    """A large model, loaded on first use."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.bfloat16):
        self.path, self.dtype = path, dtype

    @cached_property
    def model(self) -> PreTrainedModel:
        return frozen_model.load_weights(self.path, self.dtype)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return frozen_model.load_tokenizer(self.path)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Layers, and the width of their rows."""
        if self.path.suffix == ".gguf":
            fields = gguf.GGUFReader(self.path).fields
            of = fields["general.architecture"].contents()
            names = ("block_count", "embedding_length")
            return tuple(fields[f"{of}.{name}"].contents() for name in names)
        config = AutoConfig.from_pretrained(self.path)
        return config.num_hidden_layers, config.hidden_size

    @cached_property
    def key(self) -> str:
        """Fingerprint of the model."""
        single = self.path.suffix == ".gguf"
        digest = hashlib.sha256()
        for file in [self.path] if single else sorted(self.path.glob("*.safetensors")):
            with file.open("rb") as bytes_of:
                digest.update(hashlib.file_digest(bytes_of, "sha256").digest())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Text:
    """Token ids of a small model: the prompt and its continuation."""

    prompt: list[int]
    answer: list[int]
    kind: str = ""  # of functions: what is asked of it


def continuations(
    stream: TokenStream, count: int, prompts: tuple[int, int], answer: int, seed: int
) -> list[Text]:
    """Source files cut anywhere behind `prompts` tokens at least and at most, and the next `answer`."""
    length = prompts[1] + answer
    texts = calibration.cut_prompts(stream, count, length, length, seed)
    cuts = np.random.default_rng(seed).integers(prompts[0], prompts[1] + 1, count)
    return [Text(t[:c], t[c : c + answer]) for t, c in zip(texts, cuts.tolist(), strict=True)]


def asked(example: Example) -> str:
    """A function, and behind it what is asked of it: what decoders read. The answer begins with a blank."""
    return example.source.removeprefix(f"{example.task}: ") + ASKED[example.task]


def of_functions(
    examples: list[Example],
    tasks: tuple[str, ...],
    tokenizer: Tokenizer,
    end: int,
    count: int,
    prompts: tuple[int, int],
    answer: int,
    seed: int,
) -> list[Text]:
    """Functions, and their docstrings' first lines or their names with `end`: of each of `tasks` as many;
    too long ones are left out."""
    texts, shuffled = [], examples[:]
    random.Random(seed).shuffle(shuffled)
    for task in tasks:
        found: list[Text] = []
        for example in shuffled:
            if len(found) == count // len(tasks):
                break
            if example.task != task:
                continue
            prompt = tokenizer.encode(asked(example)).ids
            said = tokenizer.encode(" " + example.target, add_special_tokens=False).ids
            if prompts[0] <= len(prompt) <= prompts[1] and len(said) < answer:
                found.append(Text(prompt, [*said, end], task))
        texts += found
    random.Random(seed).shuffle(texts)
    return texts


@dataclass(frozen=True)
class Batch:
    """`ids` [texts, longest], the prompts and answers; `prompt` and `answer` [texts], how many of each;
    `rows` [texts, longest prompt, large's hidden], the one beside each of a prompt's tokens."""

    ids: torch.Tensor
    prompt: torch.Tensor
    answer: torch.Tensor
    rows: torch.Tensor

    @cached_property
    def distance(self) -> torch.Tensor:
        """How far behind its prompt the token is that a row says, from 0: [texts, longest]."""
        return torch.arange(self.ids.shape[1]) + 1 - self.prompt[:, None]

    @cached_property
    def says(self) -> torch.Tensor:
        """Which rows say a token of an answer: [texts, longest]."""
        return (self.distance >= 0) & (self.distance < self.answer[:, None])

    @property
    def said(self) -> torch.Tensor:
        """The answers' tokens, as `says` has them in a row."""
        return self.ids.roll(-1, 1)[self.says]


class Samples:
    """Texts with the large model's rows of their prompts.

    `read`: each prompt in the large model's tokens. `beside` [samples, longest prompt]: which of its rows
    goes to which token of the prompt. `rows` [all rows, hidden] in bf16, those of sample i from `first[i]`.
    """

    def __init__(self, texts: list[Text]):
        whole = [t.prompt + t.answer for t in texts]
        self.ids = pad(whole)
        self.prompt = torch.tensor([len(t.prompt) for t in texts])
        self.answer = torch.tensor([len(t.answer) for t in texts])
        self.length = self.prompt + self.answer
        self.kinds = [t.kind for t in texts]
        self.read = [t.prompt for t in texts]
        self.beside = pad([list(range(len(r))) for r in self.read])
        self.rows = torch.empty(0)

    @property
    def first(self) -> torch.Tensor:
        return torch.tensor([0, *(len(r) for r in self.read)]).cumsum(0)

    def __len__(self) -> int:
        return len(self.read)

    def read_with(self, large: Tokenizer, small: Tokenizer) -> None:
        """The prompts as another tokenizer has them."""
        read, beside = [], []
        theirs, ours = fusion.Pieces(large), fusion.Pieces(small)
        for own in self.read:
            text = small.decode(own)
            ids = large.encode(text).ids
            read.append(ids)
            beside.append(
                fusion.aligned_rows(theirs.ends(ids, text), ours.ends(own, text)).tolist()
            )
        self.read, self.beside = read, pad(beside)

    def fill(self, large: Reader, layer: int, file: Path, at_once: int = 16) -> dict:
        """Computes `rows`, or takes them from `file`; parts that are done are kept. Returns what a
        projector's file says of the large model."""
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            order = sorted(range(len(self)), key=lambda i: len(self.read[i]))
            parts = []
            for at in tqdm(range(0, len(order), at_once), unit="batch", desc="reading"):
                part = file.with_suffix(f".{at}.part")
                if not part.exists():
                    save(self._rows(large.model, layer, order[at : at + at_once]), part)
                parts.append(part)
            by_length = [row for part in parts for row in torch.load(part)]
            places = np.argsort(order)
            rows = torch.cat([by_length[place] for place in places])
            save({"rows": rows, "source": projector_file.source_of(large.model)}, file)
            for part in parts:
                part.unlink()
        kept = torch.load(file, mmap=True)
        self.rows = kept["rows"]
        return kept["source"]

    @torch.no_grad()
    def _rows(self, large: PreTrainedModel, layer: int, some: list[int]) -> list[torch.Tensor]:
        read = [self.read[i] for i in some]
        if large.config.is_encoder_decoder:  # whose rows see what is behind them
            rows = [fusion.hidden_rows(large, torch.tensor([ids]), layer)[0] for ids in read]
        else:
            rows = fusion.hidden_rows(large, pad(read), layer)
        return [r[: len(ids)].bfloat16().clone() for r, ids in zip(rows, read, strict=True)]

    def batch(self, index: torch.Tensor, read: torch.Tensor | None = None) -> Batch:
        """`read`: samples whose rows they are conditioned on (default: their own). Rows after a shorter prompt repeat
        its last one."""
        read = index if read is None else read
        prompt, answer = self.prompt[index], self.answer[index]
        place = torch.arange(int(prompt.max())).minimum(self.prompt[read, None] - 1)
        at = self.first[read, None] + self.beside[read].gather(1, place)
        ids = self.ids[index, : int((prompt + answer).max())]
        return Batch(ids, prompt, answer, self.rows[at].float() if len(self.rows) else self.rows)

    def standard(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of each number of a row. Rows between two layers have numbers of very
        different size, and a training gets nowhere with them as they are."""
        some = self.rows[: 1 << 16].float()
        return some.mean(0), some.std(0) + 1e-6


def others(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples, and beside each another one of its kind whose prompt is as long. Those with no such one are
    left out."""
    alike: dict[tuple[int, str], list[int]] = {}
    for i, key in enumerate(zip(samples.prompt.tolist(), samples.kinds, strict=True)):
        alike.setdefault(key, []).append(i)
    groups = [torch.tensor(alike[key]) for key in sorted(alike) if len(alike[key]) > 1]
    none = torch.empty(0, dtype=torch.long)
    return torch.cat([none, *groups]), torch.cat([none, *(g.roll(1) for g in groups)])


def strangers(samples: Samples, seed: int) -> torch.Tensor:
    """Of each sample another one of its kind, about as long (the longest one's is short): [samples]. Which
    one is the seed's. SystemExit for a kind of which there is but one."""
    random = torch.Generator().manual_seed(seed)
    length = samples.prompt + 8 * torch.rand(len(samples), generator=random)
    partner = torch.empty(len(samples), dtype=torch.long)
    for kind in sorted(set(samples.kinds)):
        mine = torch.tensor([i for i, k in enumerate(samples.kinds) if k == kind])
        if len(mine) < 2:
            raise SystemExit(
                f"--rows other: 1 sample {kind}".rstrip() + "; allowed: 2 or more of a kind"
            )
        order = mine[length[mine].argsort(stable=True)]
        partner[order] = order.roll(-1)
    return partner


def pad(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([r + [0] * (longest - len(r)) for r in rows])


def save(what, file: Path) -> None:
    """An incomplete file never gets its name."""
    beside = file.with_name(file.name + ".new")
    torch.save(what, beside)
    beside.replace(file)
