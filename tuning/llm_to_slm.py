"""Trains LLM-to-SLM (arXiv 2402.16844): the small model continues a prompt, conditioned on the large one.

    python -m tuning.llm_to_slm --large models/code-large --small models/code-small \\
        --layer 8 --train full --write-small models/code-small-conditioned \\
        --output models/code-small-conditioned-projector

The large model is frozen; its encoder states of each prompt are computed once and cached in bf16
(tuning/conditioned_samples.py). The projector is trained, with the small model frozen (frozen), with low-rank
additions that are merged at the end (lora), or with all its weights (full). `--unconditioned` trains the small
model without conditioning, as a baseline. Baselines for a frozen small model: `--rows other` conditions on
other texts, which teaches only the form of answers, and `--large` can be the small model itself.
`python -m tuning.conditioned_difference` compares reports. The loss is that of the answer: the rest of a source
file after a cut; with `--task docstring` the docstring of a function; with `--task functions` the docstring or
the name, in equal numbers. The models can have distinct tokenizers: rows are aligned by bytes
(tuning/fusion.py). An interrupted training resumes from its checkpoint.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from tuning import (
    checkpoint,
    conditioned_samples,
    corpus,
    frozen_model,
    functions,
    fusion,
    low_rank,
    projector_file,
)
from tuning.conditioned_samples import Batch, Reader, Samples, key_of
from tuning.frozen_model import FrozenModel
from tuning.schedule import cosine_factor
from tuning.windows import TokenStream

DISTANCES = (4, 12)  # where held-out likelihoods are divided, in tokens behind the prompt
HELD_OUT_FUNCTIONS = 0.05  # share of files that are held out
TASKS = {"docstring": (functions.DOCSTRING,), "functions": (functions.DOCSTRING, functions.NAME)}
GROUP = 16  # batches whose texts are sorted by length together


@dataclass(frozen=True)
class Settings:
    """Settings of a training; weight decay, warm-up and the projector's rate as in the paper."""

    layer: int
    fusion: str = "add"
    train: str = "full"  # the small model: "frozen", "lora" or "full"
    conditioned: bool = True
    rows: str = (
        "own"  # or "other": always conditioned on another text (conditioned_samples.strangers)
    )
    task: str = "continue"  # or one of TASKS
    rank: int = 16  # of lora
    linear: bool = False  # one matrix for a projector, which no file of one holds
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
    bfloat16: bool = False  # products in training


def answer_losses(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Negative log-likelihoods in nats of the answers' tokens, from the logits of what says them."""
    return nn.functional.cross_entropy(logits.float(), batch.said, reduction="none")


class Conditioned(nn.Module):
    """A projector that meets rows of mean 0 and deviation 1, and the small model."""

    def __init__(self, small: PreTrainedModel, mean: torch.Tensor, deviation: torch.Tensor, s):
        super().__init__()
        self.small, self.settings = small, s
        hidden = small.get_input_embeddings().weight.shape[1]
        new = fusion.linear_projector if s.linear else fusion.new_projector
        self.projector = new(len(mean), hidden, s.seed)
        if s.fusion == "replace":  # as large as the embeddings that it stands for
            scale, last = float(small.get_input_embeddings().weight.std()), self.projector[-1]
            nn.init.normal_(last.weight, std=scale * last.weight.shape[1] ** -0.5)
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of the rows that say the answers: [rows, vocabulary]."""
        if not self.settings.conditioned:
            return fusion.head_logits(self.small, batch.says, input_ids=batch.ids)
        projected = self.projector((batch.rows - self.mean) / self.deviation)
        return fusion.fused_logits(
            self.small, projected, batch.ids, batch.prompt, self.settings.fusion, batch.says
        )

    def folded(self) -> nn.Sequential:
        """The projector of rows as they are."""
        return fusion.folded(self.projector, self.mean, self.deviation)

    def trained(self) -> dict[str, torch.Tensor]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def texts_of_step(samples: Samples, s: Settings, step: int) -> torch.Tensor:
    """Which texts a step sees, by the seed and the step alone. Those of GROUP batches are sorted by length,
    so that there is little padding, and the batches are in another order again."""
    per_epoch = len(samples) // s.batch
    epoch, place = divmod(step, per_epoch)
    random = torch.Generator().manual_seed(s.seed * 1000 + epoch)
    order = torch.randperm(len(samples), generator=random)
    group = place // GROUP * GROUP
    mine = order[group * s.batch : min(group + GROUP, per_epoch) * s.batch]
    batches = mine[samples.length[mine].argsort(stable=True)].view(-1, s.batch)
    return batches[torch.randperm(len(batches), generator=random)[place - group]]


def read_of(samples: Samples, s: Settings, index: torch.Tensor, epoch: int) -> torch.Tensor | None:
    """Samples whose rows condition the samples `index` in an epoch; None: their own."""
    if s.rows == "own":
        return None
    return conditioned_samples.strangers(samples, s.seed * 1000 + epoch)[index]


def train(
    conditioned: Conditioned,
    samples: Samples,
    settings: Settings,
    file: Path,
    save_every: int = 32,
    minutes: float = math.inf,
) -> list[float]:
    """Trains in place; the loss of each step, of fewer than wanted if `minutes` are over."""
    small = conditioned.small.requires_grad_(settings.train == "full")
    conditioned.projector.requires_grad_(settings.conditioned)
    tuned = [p for p in small.parameters() if p.requires_grad]
    if settings.train == "lora":
        tuned = low_rank.add(small, settings.rank, settings.seed)
    projector = [p for p in conditioned.projector.parameters() if p.requires_grad]
    groups = [{"params": projector, "peak": settings.rate}] if projector else []
    groups += [{"params": tuned, "peak": settings.small_rate}] if tuned else []
    optimizer = torch.optim.AdamW(groups, settings.rate, weight_decay=settings.weight_decay)
    warmup = round(settings.warmup * settings.steps)
    losses: list[float] = []
    if file.exists():
        saved = torch.load(file)
        losses = saved["losses"]
        conditioned.load_state_dict(saved["conditioned"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
    first, end = len(losses), time.monotonic() + 60 * minutes
    bar = tqdm(
        range(first, settings.steps), "training", settings.steps, initial=first, mininterval=5
    )
    for step in bar:
        index = texts_of_step(samples, settings, step)
        epoch = step // (len(samples) // settings.batch)
        batch = samples.batch(index, read_of(samples, settings, index, epoch))
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.bfloat16):
            logits = conditioned(batch)
        loss = answer_losses(logits, batch).mean()
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * cosine_factor(step / settings.steps, step, warmup)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(projector + tuned, 1.0)
        optimizer.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
        over = time.monotonic() > end
        if over or (step + 1) % save_every == 0:
            state = {
                "losses": losses,
                "conditioned": conditioned.trained(),
                "optimizer": optimizer.state_dict(),
            }
            file.parent.mkdir(parents=True, exist_ok=True)
            conditioned_samples.save(state, file)
        if over:
            break
    if settings.train == "lora":
        low_rank.merge(small)
    conditioned.requires_grad_(False)
    return losses


@torch.no_grad()
def likelihoods(
    models: dict[str, Callable[[Batch], torch.Tensor]],
    samples: Samples,
    some: torch.Tensor | None = None,
    read: torch.Tensor | None = None,
    texts: dict[str, list[float]] | None = None,
) -> dict[str, dict]:
    """Nats per token of the answers for each of `models`, from a batch to logits: in all, by the distance
    from the prompt, and by kind where there are several. Of the samples `some` (all), with the large model's
    rows of `read` (the same). `texts` is given each model's nats of each whole answer."""
    some = torch.arange(len(samples)) if some is None else some
    read = some if read is None else read
    firsts, lasts = (1, *(d + 1 for d in DISTANCES)), (*DISTANCES, int(samples.answer.max()))
    names = [f"{a} to {b}" for a, b in zip(firsts, lasts, strict=True)]
    kinds = sorted(set(samples.kinds))
    kind_of = torch.tensor([kinds.index(kind) for kind in samples.kinds])
    measured = {}
    for model, logits_of in models.items():
        losses, distances, asked = [], [], []
        for index, rows_of in zip(some.split(16), read.split(16), strict=True):
            batch = samples.batch(index, rows_of)
            losses.append(answer_losses(logits_of(batch), batch))
            distances.append(batch.distance[batch.says])
            asked.append(kind_of[index].repeat_interleave(batch.answer))
        loss, distance = torch.cat(losses), torch.cat(distances)
        part = torch.bucketize(distance, torch.tensor(DISTANCES), right=True)
        measured[model] = {"all": loss.mean().item()} | {
            name: loss[part == i].mean().item() for i, name in enumerate(names)
        }
        if len(kinds) > 1:
            kind = torch.cat(asked)
            measured[model] |= {k: loss[kind == i].mean().item() for i, k in enumerate(kinds)}
        if texts is not None:
            answers = loss.split(samples.answer[some].tolist())
            texts[model] = [round(answer.sum().item(), 4) for answer in answers]
    return measured


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
    parser.add_argument("--task", choices=["continue", *TASKS], default=Settings.task)
    parser.add_argument("--unconditioned", action="store_true", help="the small model alone")
    parser.add_argument(
        "--rows",
        choices=["own", "other"],
        default=Settings.rows,
        help="what the large model says of each text, or always of another one (default: own)",
    )
    parser.add_argument("--bfloat16", action="store_true", help="products in training")
    parser.add_argument("--write-small", type=Path, help="where the tuned small model goes")
    parser.add_argument("--output", type=Path, help="where the projector goes")
    parser.add_argument("--report", type=Path, help="where settings and likelihoods go (JSON)")
    sizes = ("samples", "shortest_prompt", "longest_prompt", "answer", "batch", "steps", "checked")
    for name in (*sizes, "rank", "seed"):
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=int, default=getattr(Settings, name))
    for name in ("rate", "small_rate"):
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=float, default=getattr(Settings, name))
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="then it stops; a later run resumes"
    )
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/tandem/llm_to_slm")
    return parser.parse_args(arguments)


def settings_of(arguments: argparse.Namespace, layers: int) -> Settings:
    """`layers`: of the large model."""
    layer = arguments.layer or layers
    if not 1 <= layer <= layers:
        raise SystemExit(f"--layer: {layer}; allowed: 1 to {layers}")
    if arguments.unconditioned and arguments.train == "frozen":
        raise SystemExit("--unconditioned: nothing is trained; allowed with --train lora or full")
    if arguments.rows == "other" and (arguments.unconditioned or arguments.output):
        option = "--unconditioned" if arguments.unconditioned else "--output"
        raise SystemExit(f"--rows: other; allowed with {option}: own")
    if arguments.rank < 1:
        raise SystemExit(f"--rank: {arguments.rank}; allowed: 1 or more")
    if arguments.output and arguments.train != "frozen" and arguments.write_small is None:
        raise SystemExit(f"--write-small: missing; --train {arguments.train} changes the model")
    names = (
        "fusion",
        "train",
        "rows",
        "task",
        "rank",
        "seed",
        "samples",
        "shortest_prompt",
        "longest_prompt",
    )
    names += ("answer", "batch", "steps", "checked", "rate", "small_rate", "bfloat16")
    same = {name: getattr(arguments, name) for name in names}
    return Settings(layer=layer, conditioned=not arguments.unconditioned, **same)


def texts_of(arguments: argparse.Namespace, s: Settings, small: FrozenModel) -> list[list]:
    """For training and for checking."""
    documents = corpus.read_documents(arguments.stdlib)
    prompts, counts = (s.shortest_prompt, s.longest_prompt), (s.samples, s.checked)
    if s.task in TASKS:
        both = functions.split(documents, HELD_OUT_FUNCTIONS)
        asked, end = TASKS[s.task], small.ends[0]
        return [
            conditioned_samples.of_functions(
                examples, asked, small.tokenizer, end, count, prompts, s.answer, s.seed
            )
            for examples, count in zip(both, counts, strict=True)
        ]
    streams = [
        TokenStream(small.tokenizer, [document.text for document in part])
        for part in corpus.split(documents)
    ]
    return [
        conditioned_samples.continuations(stream, count, prompts, s.answer, s.seed)
        for stream, count in zip(streams, counts, strict=True)
    ]


def read_samples(
    arguments: argparse.Namespace, s: Settings, large: Reader, small: FrozenModel, shared: bool
) -> tuple[Samples, Samples, dict]:
    """For training and for checking; and what a projector's file says of the large model."""
    both, source = [], {}
    parts = zip(texts_of(arguments, s, small), ("--batch", "--checked"), (s.batch, 1), strict=True)
    for texts, option, least in parts:
        if len(texts) < least:
            raise SystemExit(
                f"--task {s.task}: found {len(texts)} samples for {option}; allowed: {least} or more"
            )
        samples = Samples(texts)
        if not shared:
            samples.read_with(large.tokenizer, small.tokenizer)
        name = key_of(samples.read, s.layer, large.key)
        if s.conditioned:
            source = samples.fill(large, s.layer, arguments.work / f"rows-{name}.pt")
        both.append(samples)
    return both[0], both[1], source


def matched_counts(samples: Samples) -> dict[str, int]:
    """By kind, the number of texts that can be conditioned on another one (conditioned_samples.others)."""
    some, _ = conditioned_samples.others(samples)
    return dict(sorted(Counter(samples.kinds[i] or "all" for i in some.tolist()).items()))


def held_out_likelihoods(
    conditioned: Conditioned, held_out: Samples, texts: dict[str, list[float]] | None = None
) -> dict[str, dict]:
    """Of a trained pair, conditioned as it was in training, and what of it is not owed to reading this prompt.
    `texts`: as of likelihoods."""
    s = conditioned.settings
    name = "llm_to_slm" if s.conditioned else "small, tuned alone"
    everybody = torch.arange(len(held_out))
    measured = likelihoods(
        {name: conditioned}, held_out, read=read_of(held_out, s, everybody, 0), texts=texts
    )
    some, others = conditioned_samples.others(held_out)
    if s.conditioned and s.rows == "own" and len(some) > 0:
        measured |= likelihoods(
            {"conditioned on another prompt": conditioned}, held_out, some, others
        )
        measured |= likelihoods(
            {"the same texts, conditioned on their own": conditioned}, held_out, some
        )
    return measured


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    large = Reader(arguments.large)
    small = frozen_model.load(arguments.small)
    settings = settings_of(arguments, large.shape[0])
    shared = large.tokenizer.get_vocab() == small.tokenizer.get_vocab()
    training, held_out, source = read_samples(arguments, settings, large, small, shared)
    run = key_of(asdict(settings), large.key, projector_file.fingerprint_of(small.model))
    width = large.shape[1]
    standard = (
        training.standard() if settings.conditioned else (torch.zeros(width), torch.ones(width))
    )
    conditioned = Conditioned(small.model, *standard, settings)
    models = {"small": lambda b: fusion.head_logits(small.model, b.says, input_ids=b.ids)}
    if shared:
        whole = large.model.float()
        models["large"] = lambda b: fusion.head_logits(whole, b.says, input_ids=b.ids)
    texts: dict[str, list[float]] = {}
    measured = likelihoods(models, held_out, texts=texts)
    file, minutes = arguments.work / f"training-{run}.pt", arguments.minutes
    losses = train(conditioned, training, settings, file, minutes=minutes)
    if len(losses) < settings.steps:
        sys.exit(f"{len(losses)} of {settings.steps} steps; the same command continues")
    if arguments.write_small:
        checkpoint.export(small.model, small.tokenizer, arguments.write_small)
        small.model.to(torch.bfloat16).float()  # as it was written
    if settings.conditioned and arguments.output:
        tokens, layer = "shared" if shared else "aligned", settings.layer
        projector_file.save(
            arguments.output,
            conditioned.folded(),
            source,
            small.model,
            layer,
            settings.fusion,
            tokens,
        )
    measured |= held_out_likelihoods(conditioned, held_out, texts)
    answers = {"kinds": held_out.kinds, "tokens": held_out.answer.tolist(), "nats": texts}
    report = {
        "models": {"large": arguments.large.name, "small": arguments.small.name},
        "settings": asdict(settings) | {"samples": len(training), "checked": len(held_out)},
        "matched": matched_counts(held_out),
        "nats": measured,
        "losses": [round(sum(losses[i : i + 32]) / 32, 4) for i in range(0, len(losses) - 31, 32)],
        "command": sys.argv[1:],
    }
    print(json.dumps(report, indent=2))
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(json.dumps(report | {"texts": answers}, indent=2) + "\n")


if __name__ == "__main__":
    main()
