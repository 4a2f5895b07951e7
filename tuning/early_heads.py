"""Trains heads that read a frozen model's early layers, for PPD (arXiv 2307.05908).

    python -m tuning.early_heads models/code-large --output models/code-large-heads --minutes 5

A head is h + up (down h) before the model's norm and output matrix, which are unchanged. It starts as the
linear map from rows to their final hidden states (reduced-rank regression). With --train it then learns the
output distribution of the model. Rows are computed once. Run the command again to resume after an
interruption.

Prints the match rate: the share of held-out tokens for which the model's greedy token is among the k best of a
layer, with the model's output matrix ("shared") and with a head. With --draft-vocabulary also for candidates
below that id ("frequent"), as with the parameter of PPD.

    python -m tuning.early_heads MODEL --output FOLDER --shipped --draft-vocabulary 16384

only measures the heads in FOLDER and adds the results to their report.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from tuning import (
    adapter_file,
    bita_prompts,
    calibration,
    corpus,
    early_features,
    frozen_model,
    own_answers,
    resumable,
)
from tuning.calibration import Sample
from tuning.early_features import Features
from tuning.frozen_model import FrozenModel
from tuning.schedule import Budget
from tuning.windows import TokenStream

CANDIDATES = (1, 3, 5)
BLOCK = 512  # rows whose logits are there at once
CURVE = 8  # share of held-out rows for intermediate checks: one in this many


@dataclass(frozen=True)
class Settings:
    """Settings of a training."""

    seed: int = 1
    rank: int = 64
    windows: int = 256  # of documents, to learn from
    window: int = 256  # tokens
    code_prompts: int = 0  # answers to them, to learn from, too
    function_prompts: int = 0
    chat_prompts: int = 0
    new_tokens: int = 128  # of an answer
    checked: int = 48  # held-out texts of each sort
    rows_per_batch: int = 512
    rate: float = 1e-3
    warmup_steps: int = 10


class EarlyHead(torch.nn.Module):
    """down [r, hidden], up [hidden, r]; adds nothing before it is fitted."""

    def __init__(self, hidden: int, rank: int):
        super().__init__()
        self.down = torch.nn.Parameter(torch.zeros(rank, hidden))
        self.up = torch.nn.Parameter(torch.zeros(hidden, rank))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.float()
        return rows + rows @ self.down.T @ self.up.T

    @torch.no_grad()
    def fit(self, early: torch.Tensor, top: torch.Tensor) -> None:
        """The map of this rank that brings `early` nearest to `top`, both [rows, hidden].

        The last norm divides rows by their size, so directions are compared: a row's own size says
        nothing, and rows of huge size do not outweigh others.
        """
        a, b = (torch.nn.functional.normalize(part.float(), dim=1) for part in (early, top))
        square = a.T @ a
        ridge = 1e-3 * square.diagonal().mean() * torch.eye(len(square))
        whole = torch.linalg.solve(square + ridge, a.T @ (b - a))  # rows: a -> a + a @ whole
        # Of what it adds, the directions that matter most (Izenman 1975).
        added = whole.T @ square @ whole
        directions = torch.linalg.eigh(added).eigenvectors[:, -self.up.shape[1] :]
        self.up.copy_(directions)
        self.down.copy_((whole @ directions).T)

    def tensors(self) -> dict[str, torch.Tensor]:
        """By the names that an adapter's file has."""
        return {"down.weight": self.down, "up.weight": self.up}


class EarlyHeads(torch.nn.ModuleDict):
    """A head for each layer."""

    def __init__(self, layers: list[int], hidden: int, rank: int):
        super().__init__({str(layer): EarlyHead(hidden, rank) for layer in layers})

    def of(self, layer: int) -> EarlyHead:
        return self[str(layer)]


class Batches:
    """Batch n depends on the seed and n alone."""

    def __init__(self, features: Features, settings: Settings):
        self.features, self.settings = features, settings
        self.per_epoch = max(1, len(features) // settings.rows_per_batch)

    def rows(self, step: int) -> torch.Tensor:
        epoch, within = divmod(step, self.per_epoch)
        seeded = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.features), generator=seeded)
        size = self.settings.rows_per_batch
        return order[within * size : (within + 1) * size]


def loss_of(frozen: FrozenModel, heads: EarlyHeads, features: Features, rows: torch.Tensor):
    """Mean divergence of the heads' distributions from the model's own, nats, over all heads."""
    with torch.no_grad():
        own = early_features.read(frozen.model, features.top[rows]).float().log_softmax(-1)
    losses = []
    for layer, early in features.early.items():
        logits = early_features.read(frozen.model, heads.of(layer)(early[rows])).float()
        losses.append(
            torch.nn.functional.kl_div(
                logits.log_softmax(-1), own, reduction="batchmean", log_target=True
            )
        )
    return torch.stack(losses).mean()


@torch.no_grad()
def match_rates(
    frozen: FrozenModel, features: Features, heads: EarlyHeads | None, ids: int | None = None
) -> dict:
    """Of each layer the shares of rows whose token, the model's likeliest, is among the first k of
    the token ids below `ids`, or of all."""
    hits = {layer: [0] * len(CANDIDATES) for layer in features.early}
    for at in range(0, len(features), BLOCK):
        rows = slice(at, at + BLOCK)
        token = early_features.read(frozen.model, features.top[rows]).argmax(-1, keepdim=True)
        for layer, early in features.early.items():
            hidden = early[rows] if heads is None else heads.of(layer)(early[rows])
            best = early_features.read(frozen.model, hidden)[:, :ids].topk(max(CANDIDATES)).indices
            for i, k in enumerate(CANDIDATES):
                hits[layer][i] += int((best[:, :k] == token).sum())
    return {
        layer: [round(n / len(features), 3) for n in by_candidates]
        for layer, by_candidates in hits.items()
    }


def windows(frozen: FrozenModel, texts: list[str], count: int, length: int, seed: int):
    """Beginnings of statements and what the document has behind them, as if it were an answer."""
    stream = TokenStream(frozen.tokenizer, texts)
    begins = frozen.tokenizer.encode("a").ids[0] == stream.end_of_text
    pieces = calibration.cut_prompts(stream, count, length - 1, length - 1, seed)
    return [Sample(p[:1], p[1:]) if begins else Sample(p[1:2], p[2:]) for p in pieces]


def texts_of(
    frozen: FrozenModel, settings: Settings, arguments: argparse.Namespace
) -> tuple[list[Sample], dict[str, list[Sample]]]:
    """(for training, held-out by sort)."""
    learned, held_out = bita_prompts.answers(frozen, settings, arguments)
    parts = corpus.split(corpus.read_documents(arguments.stdlib))
    training, checked = ([document.text for document in part] for part in parts)
    learned += windows(frozen, training, settings.windows, settings.window, settings.seed)
    files = windows(frozen, checked, settings.checked, settings.window, settings.seed)
    return learned, {"files": files, **held_out}


def features_of(
    frozen: FrozenModel, name: str, samples: list[Sample], layers: list[int], work: Path
) -> Features:
    sample = adapter_file.fingerprint_of(frozen_model.tensors_of(frozen.model))
    key = own_answers.identity(
        frozen, sample, layers=layers, tokens=[s.prompt + s.output for s in samples]
    )
    return early_features.stored(
        work / f"rows-{name}-{key}.pt",
        lambda: early_features.compute(frozen.model, samples, layers, f"rows of {name}"),
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--output", type=Path, required=True, help="a folder in it for each head")
    parser.add_argument("--layers", type=int, nargs="+", help="default: from half of them on")
    parser.add_argument(
        "--shared-only",
        action="store_true",
        help="train nothing: how often the model's own output matrix is right, and no more",
    )
    parser.add_argument(
        "--train",
        type=int,
        nargs="*",
        help="of these layers; the others keep what regression found (default: all)",
    )
    parser.add_argument("--write", type=int, nargs="*", help="of these layers (default: --train's)")
    parser.add_argument(
        "--draft-vocabulary", type=int, help="match rates of candidates below this id, too"
    )
    parser.add_argument(
        "--shipped",
        action="store_true",
        help="train nothing: add those of the heads in --output to its report",
    )
    resumable.add_arguments(parser, Settings(), "early_heads", keeps="rows")
    parsed = parser.parse_args(arguments)
    if parsed.shipped and parsed.draft_vocabulary is None:
        parser.error("--shipped: needs --draft-vocabulary, below which its rates are taken")
    return parsed


def layers_of(asked: list[int] | None, count: int) -> list[int]:
    """Those from half of the layers on, as PPD's exit layer may be."""
    allowed = range((count + 1) // 2, count)
    layers = asked or list(allowed)
    for layer in layers:
        if layer not in allowed:
            raise SystemExit(
                f"--layers: {layer}; allowed: {allowed[0]} to {allowed[-1]}, from half of the "
                f"model's {count} layers on"
            )
    return sorted(set(layers))


def some_of(flag: str, asked: list[int] | None, layers: list[int]) -> list[int]:
    """`asked`, which must be among the layers; all of these where nothing was asked."""
    for layer in asked or []:
        if layer not in layers:
            raise SystemExit(f"{flag}: {layer}; allowed: layers that have a head: {layers}")
    return layers if asked is None else sorted(set(asked))


def learn(
    frozen: FrozenModel,
    heads: EarlyHeads,
    training: Features,
    checked: dict[str, Features],
    settings: Settings,
    budget: Budget,
    folder: Path,
) -> resumable.Training:
    """Gradient steps for the heads of the layers that `training` has, on from its checkpoint."""
    work = resumable.Training(heads, settings.rate, settings.warmup_steps, folder)
    work.load()
    batches = Batches(training, settings)

    def check() -> dict:
        """The first candidates' rates, by layer."""
        return {
            name: [first for first, *_ in match_rates(frozen, rows.every(CURVE), heads).values()]
            for name, rows in checked.items()
        }

    work.run(lambda step: loss_of(frozen, heads, training, batches.rows(step)), budget, check)
    work.save()
    return work


def read_heads(folder: Path) -> EarlyHeads:
    """Those that were written there, by layer."""
    tensors = {
        int(head.name.removeprefix("layer-")): load_file(head / "adapter.safetensors")
        for head in folder.glob("layer-*")
    }
    if not tensors:
        raise SystemExit(f"--output: {folder}; allowed with --shipped: a folder of heads")
    rank, hidden = next(iter(tensors.values()))["down.weight"].shape
    heads = EarlyHeads(sorted(tensors), hidden, rank)
    for layer, weights in tensors.items():
        heads.of(layer).load_state_dict(
            {name.removesuffix(".weight"): tensor for name, tensor in weights.items()}
        )
    return heads


def tell_shipped(frozen: FrozenModel, arguments: argparse.Namespace) -> dict:
    """The report of the heads in `arguments.output`, with the match rates among frequent tokens on
    the texts that it was made with."""
    report = json.loads((arguments.output / "training.json").read_text())
    settings = replace(
        Settings(**report["settings"]), windows=0, code_prompts=0, function_prompts=0
    )
    heads = read_heads(arguments.output)
    layers = [int(layer) for layer in heads]
    ids = arguments.draft_vocabulary
    report |= {"draft_vocabulary": ids, "frequent": {}}
    _, held_out = texts_of(frozen, settings, arguments)
    for name, samples in held_out.items():
        rows = features_of(frozen, name, samples, layers, arguments.work)
        print(name, "among all:", match_rates(frozen, rows, heads))
        report["frequent"][name] = match_rates(frozen, rows, heads, ids)
    return report


def write_report(arguments: argparse.Namespace, report: dict) -> None:
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "training.json").write_text(json.dumps(report) + "\n")
    print(json.dumps(report, indent=1))


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    settings = Settings(**{name: getattr(arguments, name) for name in vars(Settings())})
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    frozen = frozen_model.load(arguments.model, dtype)
    if arguments.shipped:
        write_report(arguments, tell_shipped(frozen, arguments))
        return
    layers = layers_of(arguments.layers, frozen.shape["layers"])
    train = some_of("--train", arguments.train, layers)
    written = train if arguments.write is None else some_of("--write", arguments.write, layers)
    budget = None
    if train and not arguments.shared_only:
        budget = Budget(minutes=arguments.minutes, steps=arguments.steps)
    learned, held_out = texts_of(frozen, settings, arguments)
    checked = {
        name: features_of(frozen, name, samples, layers, arguments.work)
        for name, samples in held_out.items()
    }

    def rates(heads: EarlyHeads | None, ids: int | None = None) -> dict:
        return {name: match_rates(frozen, rows, heads, ids) for name, rows in checked.items()}

    report = {
        "settings": vars(settings),
        "layers": frozen.shape["layers"],
        "checked_rows": {name: len(rows) for name, rows in checked.items()},
        "precision": arguments.precision,
        "shared": rates(None),
    }
    if arguments.shared_only:
        write_report(arguments, report)
        return
    training = features_of(frozen, "training", learned, layers, arguments.work)
    heads = EarlyHeads(layers, frozen.shape["hidden_size"], settings.rank)
    for layer, early in training.early.items():
        heads.of(layer).fit(early, training.top)
    report |= {"rows": len(training), "learned": train}
    if budget:
        few = {name: rows.only(train) for name, rows in checked.items()}
        report["fitted"] = {name: match_rates(frozen, rows, heads) for name, rows in few.items()}
        # The checkpoint is keyed by the settings.
        key = own_answers.identity(
            frozen,
            adapter_file.fingerprint_of(frozen_model.tensors_of(frozen.model)),
            settings=vars(settings),
            layers=layers,
            train=train,
            learned=[own_answers.token_lists(s) for s in learned],
        )
        folder = arguments.work / f"{arguments.output.name}-{key}"
        work = learn(frozen, heads, training.only(train), few, settings, budget, folder)
        report |= {"steps": work.step, "curve": work.curve}
        report["minutes"] = round(work.seconds / 60, 1)
    report["trained"] = rates(heads)
    if arguments.draft_vocabulary:
        ids = arguments.draft_vocabulary
        report |= {"draft_vocabulary": ids, "frequent": rates(heads, ids)}
    for layer in written:
        to = arguments.output / f"layer-{layer}"
        adapter_file.write(to, "head", frozen.model, heads.of(layer).tensors(), layer=layer)
    write_report(arguments, report)


if __name__ == "__main__":
    main()
