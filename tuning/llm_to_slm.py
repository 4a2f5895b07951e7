"""Trains LLM-to-SLM (arXiv 2402.16844): the large model reads a prompt, the small one goes on with it.

    python -m tuning.llm_to_slm --large models/code-large --small models/code-small \\
        --layer 8 --train full --write-small models/code-small-told \\
        --output models/code-small-told-projector

The large model is frozen, and its hidden rows of each prompt are computed once and kept in bf16. The
projector is trained, and with it the small model: not at all (frozen), by low-rank additions that are
merged when it is written (lora), or whole (full). `--untold` trains the small model alike without what the
large one says: what a tuned pair is to be compared with. The loss is that of the text right behind the
prompt. Models with other tokenizers may read: rows are aligned by bytes (tuning/fusion.py); no
deployment takes such pairs yet. An interrupted
training goes on where it was saved.
"""

import argparse
import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from tuning import (
    calibration,
    checkpoint,
    corpus,
    frozen_model,
    fusion,
    low_rank,
    projector_file,
)
from tuning.frozen_model import FrozenModel
from tuning.schedule import cosine_factor
from tuning.windows import TokenStream

DISTANCES = (4, 12)  # where held-out likelihoods are divided, in tokens behind the prompt


@dataclass(frozen=True)
class Settings:
    """What shapes a training beside the models and the documents; weight decay, warm-up and the
    projector's rate as in the paper."""

    layer: int
    fusion: str = "add"
    train: str = "full"  # the small model: "frozen", "lora" or "full"
    told: bool = True
    rank: int = 16  # of lora
    seed: int = 1
    samples: int = 4096
    shortest_prompt: int = 16
    longest_prompt: int = 96
    answer: int = 32  # tokens behind the prompt
    batch: int = 16
    steps: int = 512
    rate: float = 1e-3
    small_rate: float = 3e-4
    weight_decay: float = 0.1
    warmup: float = 0.1
    checked: int = 256  # held-out samples

    @property
    def length(self) -> int:
        return self.longest_prompt + self.answer


def answer_losses(
    logits: torch.Tensor, ids: torch.Tensor, prompt: torch.Tensor, answer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative log-likelihoods in nats of the `answer` tokens behind each prompt, and how far behind
    it each is, from 0. Both [tokens]."""
    distance = torch.arange(1, ids.shape[1]) - prompt[:, None]
    behind = (distance >= 0) & (distance < answer)
    losses = nn.functional.cross_entropy(
        logits[:, :-1][behind].float(), ids[:, 1:][behind], reduction="none"
    )
    return losses, distance[behind]


class Samples:
    """Texts cut into a prompt and what follows, with the large model's rows of the prompts.

    `ids` [samples, tokens] and `prompt` [samples], in the small model's tokens; `read` [samples, rows],
    the prompts in the large model's, and `beside` [samples, longest prompt]: which row goes to which
    token.
    """

    def __init__(self, texts: list[list[int]], prompt: np.ndarray):
        self.ids = torch.tensor(texts)
        self.prompt = torch.from_numpy(prompt)
        longest = int(prompt.max())
        self.read = self.ids[:, :longest]
        self.beside: torch.Tensor | None = None  # none: row i is token i's
        self.rows = torch.empty(0)

    @classmethod
    def cut(cls, stream: TokenStream, count: int, settings: Settings) -> "Samples":
        length, seed = settings.length, settings.seed
        texts = calibration.cut_prompts(stream, count, length, length, seed)
        random = np.random.default_rng(seed)
        lengths = random.integers(settings.shortest_prompt, settings.longest_prompt + 1, count)
        return cls(texts, lengths)

    def read_with(self, large: FrozenModel, small: FrozenModel) -> None:
        """The prompts as another tokenizer has them."""
        read, beside = [], []
        for ids, n in zip(self.ids.tolist(), self.prompt.tolist(), strict=True):
            own = ids[:n]
            text = small.tokenizer.decode(own)
            read.append(large.tokenizer.encode(text).ids)
            cuts = (
                fusion.piece_bytes(large.tokenizer, read[-1]),
                fusion.piece_bytes(small.tokenizer, own),
            )
            beside.append(fusion.aligned_rows(*cuts).tolist())
        rows, tokens = max(map(len, read)), max(map(len, beside))
        self.read = torch.tensor([r + [0] * (rows - len(r)) for r in read])
        self.beside = torch.tensor([b + [0] * (tokens - len(b)) for b in beside])

    def fill(self, large: PreTrainedModel, layer: int, file: Path, at_once: int = 32) -> None:
        """`rows`: [samples, longest prompt, hidden] in bf16, from `file` where it is there. Parts that
        are done are kept."""
        if not file.exists():
            parts = []
            for at in tqdm(range(0, len(self.read), at_once), unit="batch", desc="reading"):
                part = file.with_suffix(f".{at}.part")
                if not part.exists():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with torch.no_grad():
                        rows = fusion.hidden_rows(large, self.read[at : at + at_once], layer)
                    torch.save(rows.bfloat16(), part.with_suffix(".new"))
                    part.with_suffix(".new").replace(part)
                parts.append(part)
            torch.save(torch.cat([torch.load(part) for part in parts]), file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
            for part in parts:
                part.unlink()
        self.rows = torch.load(file, mmap=True)

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids, prompts and the row beside each of their tokens, [batch, longest prompt, hidden]; no
        longer than these prompts want."""
        rows, prompt = self.rows[index].float(), self.prompt[index]
        if self.beside is not None:
            beside = self.beside[index].unsqueeze(-1).expand(-1, -1, rows.shape[-1])
            rows = rows.gather(1, beside)
        longest = int(prompt.max())
        end = self.ids.shape[1] - int(self.prompt.max()) + longest
        return self.ids[index, :end], prompt, rows[:, :longest]


def standardized(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of each number of a row, over what prompts have. Rows between two layers
    have numbers of very different size, and a training gets nowhere with them as they are."""
    rows = samples.rows[:512].float()
    if samples.beside is None:
        kept = torch.arange(rows.shape[1]) < samples.prompt[: len(rows), None]
    else:
        kept = torch.arange(rows.shape[1]) <= samples.beside[: len(rows)].amax(1, keepdim=True)
    return rows[kept].mean(0), rows[kept].std(0) + 1e-6


class Told(nn.Module):
    """A projector that meets rows of mean 0 and deviation 1, and the small model."""

    def __init__(self, small: PreTrainedModel, mean: torch.Tensor, deviation: torch.Tensor, s):
        super().__init__()
        self.small, self.settings = small, s
        hidden = small.get_input_embeddings().weight.shape[1]
        self.projector = fusion.new_projector(len(mean), hidden, s.seed)
        if s.fusion == "replace":  # as large as the embeddings that it stands for
            scale = float(small.get_input_embeddings().weight.std())
            nn.init.normal_(self.projector[2].weight, std=scale * hidden**-0.5)
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, ids, prompt, rows) -> torch.Tensor:
        if not self.settings.told:
            return self.small(input_ids=ids, use_cache=False).logits
        projected = self.projector((rows - self.mean) / self.deviation)
        return fusion.fused_logits(self.small, projected, ids, prompt, self.settings.fusion)

    def folded(self) -> nn.Sequential:
        """The projector of rows as they are."""
        first, _, second = self.projector
        hidden, large = first.weight.shape
        folded = fusion.new_projector(large, second.weight.shape[0], 0)
        assert hidden == folded[0].weight.shape[0]
        with torch.no_grad():
            folded[0].weight.copy_(first.weight / self.deviation)
            folded[0].bias.copy_(first.bias - (first.weight / self.deviation) @ self.mean)
            folded[2].load_state_dict(second.state_dict())
        return folded


def train(
    told: Told,
    samples: Samples,
    settings: Settings,
    file: Path,
    save_every: int = 32,
) -> None:
    """Trains in place. Which samples a step sees depends on the seed and the step alone."""
    small = told.small.requires_grad_(settings.train == "full")
    tuned = [p for p in small.parameters() if p.requires_grad]
    if settings.train == "lora":
        tuned = low_rank.add(small, settings.rank, settings.seed)
    groups = [
        {"params": list(told.projector.parameters()), "peak": settings.rate},
        {"params": tuned, "peak": settings.small_rate},
    ]
    optimizer = torch.optim.AdamW(groups, settings.rate, weight_decay=settings.weight_decay)
    warmup = round(settings.warmup * settings.steps)
    first = 0
    if file.exists():
        saved = torch.load(file)
        first = saved["step"]
        told.load_state_dict(saved["told"])
        optimizer.load_state_dict(saved["optimizer"])
    per_epoch = len(samples.ids) // settings.batch
    steps = range(first, settings.steps)
    bar = tqdm(steps, unit="step", initial=first, total=settings.steps, mininterval=5)
    for step in bar:
        epoch = torch.Generator().manual_seed(settings.seed * 1000 + step // per_epoch)
        order = torch.randperm(len(samples.ids), generator=epoch)
        at = step % per_epoch * settings.batch
        ids, prompt, rows = samples.batch(order[at : at + settings.batch])
        loss = answer_losses(told(ids, prompt, rows), ids, prompt, settings.answer)[0].mean()
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * cosine_factor(step / settings.steps, step, warmup)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        if (step + 1) % save_every == 0:
            state = {"step": step + 1, "told": told.state_dict()}
            state["optimizer"] = optimizer.state_dict()
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, file.with_suffix(".part"))
            file.with_suffix(".part").replace(file)
    if settings.train == "lora":
        low_rank.merge(small)
    small.requires_grad_(False)


@torch.no_grad()
def likelihoods(models: dict[str, object], samples: Samples, answer: int) -> dict[str, dict]:
    """Nats per token behind the prompts for each of `models`, functions of a batch to logits: in all,
    and by the distance from the prompt."""
    firsts, lasts = (1, *(d + 1 for d in DISTANCES)), (*DISTANCES, answer)
    names = [f"{a} to {b}" for a, b in zip(firsts, lasts, strict=True)]
    measured = {}
    for model, logits_of in models.items():
        losses, distances = [], []
        for index in torch.arange(len(samples.ids)).split(32):
            ids, prompt, rows = samples.batch(index)
            some, where = answer_losses(logits_of(ids, prompt, rows), ids, prompt, answer)
            losses.append(some)
            distances.append(where)
        loss, distance = torch.cat(losses), torch.cat(distances)
        part = torch.bucketize(distance, torch.tensor(DISTANCES), right=True)
        measured[model] = {"all": loss.mean().item()} | {
            name: loss[part == i].mean().item() for i, name in enumerate(names)
        }
    return measured


def key_of(*parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=Path, default=root / "models/code-large")
    parser.add_argument("--small", type=Path, default=root / "models/code-small")
    parser.add_argument("--layer", type=int, help="of the large model (default: its last)")
    parser.add_argument("--fusion", choices=["add", "replace"], default="add")
    parser.add_argument("--train", choices=["frozen", "lora", "full"], default=Settings.train)
    parser.add_argument("--untold", action="store_true", help="the small model alone")
    parser.add_argument("--write-small", type=Path, help="where the tuned small model goes")
    parser.add_argument("--output", type=Path, help="where the projector goes")
    parser.add_argument("--report", type=Path, help="where settings and likelihoods go (JSON)")
    for name in ("samples", "longest_prompt", "answer", "batch", "steps", "checked", "seed"):
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=int, default=getattr(Settings, name))
    for name in ("rate", "small_rate"):
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=float, default=getattr(Settings, name))
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/tandem/llm_to_slm")
    return parser.parse_args(arguments)


def settings_of(arguments: argparse.Namespace, large: PreTrainedModel) -> Settings:
    layers = large.config.num_hidden_layers
    layer = arguments.layer or layers
    if not 1 <= layer <= layers:
        raise SystemExit(f"--layer: {layer}; allowed: 1 to {layers}")
    if arguments.untold and arguments.train == "frozen":
        raise SystemExit("--untold: nothing is trained; allowed with --train lora or full")
    if not arguments.untold and (arguments.output is None):
        raise SystemExit("--output: missing; allowed: a folder for the projector")
    if arguments.output and arguments.train != "frozen" and arguments.write_small is None:
        raise SystemExit(f"--write-small: missing; --train {arguments.train} changes the model")
    names = ("fusion", "train", "seed", "samples", "longest_prompt", "answer", "batch", "steps")
    same = {name: getattr(arguments, name) for name in (*names, "checked", "rate", "small_rate")}
    return Settings(layer=layer, told=not arguments.untold, **same)


def read_samples(
    arguments: argparse.Namespace, settings: Settings, large: FrozenModel, small: FrozenModel
) -> tuple[Samples, Samples, bool]:
    """For training and for checking; and whether the models share their tokens."""
    shared = large.tokenizer.get_vocab() == small.tokenizer.get_vocab()
    reader = projector_file.sample_of(large.model)
    both = []
    for part, documents, count in zip(
        ("training", "held_out"),
        corpus.split(corpus.read_documents(arguments.stdlib)),
        (settings.samples, settings.checked),
        strict=True,
    ):
        stream = TokenStream(small.tokenizer, [document.text for document in documents])
        samples = Samples.cut(stream, count, settings)
        if not shared:
            samples.read_with(large, small)
        cut = settings.answer, settings.shortest_prompt, settings.longest_prompt, settings.seed
        name = key_of(part, count, settings.layer, cut, reader, shared, len(stream))
        samples.fill(large.model, settings.layer, arguments.work / f"rows-{name}.pt")
        both.append(samples)
    return both[0], both[1], shared


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    large, small = frozen_model.load(arguments.large), frozen_model.load(arguments.small)
    settings = settings_of(arguments, large.model)
    training, held_out, shared = read_samples(arguments, settings, large, small)
    begins = projector_file.sample_of(small.model)
    run = key_of(asdict(settings), projector_file.sample_of(large.model), begins)
    told = Told(small.model, *standardized(training), settings)
    models = {"small": lambda ids, prompt, rows: small.model(input_ids=ids, use_cache=False).logits}
    if shared:
        models["large"] = lambda ids, *_: large.model(input_ids=ids, use_cache=False).logits
    measured = likelihoods(models, held_out, settings.answer)
    train(told, training, settings, arguments.work / f"training-{run}.pt")
    if arguments.write_small:
        checkpoint.export(small.model, small.tokenizer, arguments.write_small)
        small.model.to(torch.bfloat16).float()  # as it was written
    if settings.told:
        projector_file.save(
            arguments.output,
            told.folded(),
            large.model,
            small.model,
            settings.layer,
            settings.fusion,
            "shared" if shared else "aligned",
        )
    name = "llm_to_slm" if settings.told else "small, tuned alone"
    measured |= likelihoods({name: told}, held_out, settings.answer)
    report = {"settings": asdict(settings), "nats": measured, "command": sys.argv[1:]}
    text = json.dumps(report, indent=2)
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
