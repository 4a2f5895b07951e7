"""Trains LLM-to-SLM (arXiv 2402.16844) on the encoder-decoder pair. The large model encodes a function. The small
model, conditioned on its encoder states, writes the first line of the docstring or the name.

    python -m tuning.conditioned_encoders --steps 1500 --write-small build/conditioned \\
        --output build/conditioned/projector --report build/conditioned.json

The large model is frozen; its encoder states are computed once and cached in bf16. The output of the projector
enters the small model's encoder (section 4.1), which is trained too or frozen (--train frozen).
`--unconditioned` trains the small model without conditioning, as a baseline. The commands of the shipped models
are in their training.json. Run a command again to resume after an interruption. For decoders see
tuning/llm_to_slm.py.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm
from transformers import T5ForConditionalGeneration

from tuning import conditioned_samples, corpus, fusion, projector_file, seq2seq
from tuning.functions import DOCSTRING, NAME
from tuning.pairs import Batches, Pair, encode
from tuning.pretrain import fast_at_bfloat16
from tuning.schedule import Budget
from tuning.seq2seq import Data, Recipe

# Low rates, as the small model is already trained.
LEARNING = Recipe(
    names=32,
    docstrings=32,
    warmup_steps=30,
    matrix_rate=0.001,
    vector_rate=0.0003,
    weight_decay=0.1,
    report_every=1,
)
LEAST_DEVIATION = 1e-6
# What has a rate of its own.
PARTS = {
    "matrix": "the small one's matrices",
    "vector": "its other numbers",
    "projector": "the projector",
}


class SourceRows:
    """Encoder states of a large model, by ids of the sources. `rows` [all tokens, hidden] in bf16."""

    def __init__(self, sources: list[tuple[int, ...]], rows: torch.Tensor):
        lengths = torch.tensor([0, *map(len, sources)])
        self.rows = rows
        self.first = dict(zip(sources, lengths.cumsum(0).tolist(), strict=False))

    @classmethod
    def read(
        cls,
        large: T5ForConditionalGeneration,
        pairs: list[Pair],
        folder: Path,
        bfloat16: bool = False,
        at_once: int = 64,
    ) -> "SourceRows":
        """Computes them, or takes them from `folder`."""
        sources = sorted({tuple(pair.source) for pair in pairs}, key=lambda ids: (len(ids), ids))
        name = conditioned_samples.key_of(projector_file.fingerprint_of(large), bfloat16, sources)
        file = folder / f"sources-{name}.pt"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            starts = tqdm(range(0, len(sources), at_once), "reading", unit="batch", mininterval=10)
            parts = [_said(large, sources[at : at + at_once], bfloat16) for at in starts]
            conditioned_samples.save(torch.cat(parts), file)
        return cls(sources, torch.load(file, mmap=True))

    def standard(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of each number of a row; of some rows from all of them."""
        some = self.rows[:: max(1, len(self.rows) >> 16)].float()
        return some.mean(0), some.std(0) + LEAST_DEVIATION

    def beside(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The rows of each source's tokens, of `ids` [sources, longest]: [sources, longest, hidden].
        Behind a source's end, any."""
        whole = zip(ids.tolist(), lengths.tolist(), strict=True)
        first = torch.tensor([self.first[tuple(row[:n])] for row, n in whole])
        at = first[:, None] + torch.arange(ids.shape[1])
        return self.rows[at.clamp(max=len(self.rows) - 1)].float()


@torch.no_grad()
def _said(large: T5ForConditionalGeneration, sources: list, bfloat16: bool) -> torch.Tensor:
    inputs, _ = encode([Pair(DOCSTRING, list(ids), []) for ids in sources])
    mask = inputs != large.config.pad_token_id
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        rows = large.get_encoder()(input_ids=inputs, attention_mask=mask).last_hidden_state
    return rows[mask].bfloat16()


class Conditioned(nn.Module):
    """A small model whose encoder is conditioned on the large model's encoder states of the same source. Has the
    interface of Transformers, so that tuning/seq2seq.py trains and measures it."""

    def __init__(self, small: T5ForConditionalGeneration, rows: SourceRows, kind: str, seed: int):
        super().__init__()
        self.small, self.rows, self.fusion = small, rows, kind
        hidden = small.config.d_model
        self.projector = fusion.new_projector(rows.rows.shape[1], hidden, seed)
        if kind == "replace":  # as large as the embeddings that it stands for
            scale = float(small.get_input_embeddings().weight.std())
            nn.init.normal_(self.projector[2].weight, std=scale * hidden**-0.5)
        mean, deviation = rows.standard()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    @property
    def config(self):
        return self.small.config

    def inputs(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Inputs of the small encoder: [sources, longest, hidden]."""
        lengths = mask.sum(1)
        rows = (self.rows.beside(ids, lengths) - self.mean) / self.deviation
        embedded = self.small.get_input_embeddings()(ids)
        return fusion.fused_rows(embedded, self.projector(rows), lengths, self.fusion)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor):
        return self.small(
            inputs_embeds=self.inputs(input_ids, attention_mask),
            attention_mask=attention_mask,
            decoder_input_ids=self.small.prepare_decoder_input_ids_from_labels(labels),
        )

    def generate(self, inputs: torch.Tensor, attention_mask: torch.Tensor, **options):
        encoded = self.small.get_encoder()(
            inputs_embeds=self.inputs(inputs, attention_mask), attention_mask=attention_mask
        )
        return self.small.generate(
            encoder_outputs=encoded, attention_mask=attention_mask, **options
        )

    def folded(self) -> nn.Sequential:
        """The projector of rows as they are."""
        return fusion.folded(self.projector, self.mean, self.deviation)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=Path, default=seq2seq.ROOT / "models/docstring-large")
    parser.add_argument("--small", type=Path, default=seq2seq.ROOT / "models/docstring-small")
    parser.add_argument("--fusion", choices=["add", "replace"], default="add")
    parser.add_argument("--train", choices=["frozen", "full"], default="full", help="the small one")
    parser.add_argument("--unconditioned", action="store_true", help="the small model alone")
    parser.add_argument("--steps", type=int, required=True, help="updates, all runs together")
    parser.add_argument("--dropout", type=float, default=0.2, help="of the small one, in training")
    parser.add_argument("--names", type=int, default=8192, help="pairs with a name, at most")
    of_step = "of a step (default: %(default)s)"
    for task in ("names", "docstrings"):
        default = getattr(LEARNING, task)
        parser.add_argument(f"--batch-{task}", type=int, default=default, help=of_step)
    peak = "of %s, at its peak (default: %%(default)s)"
    for part, of in PARTS.items():
        default = getattr(LEARNING, f"{part}_rate")
        parser.add_argument(f"--{part}-rate", type=float, default=default, help=peak % of)
    parser.add_argument("--write-small", type=Path, help="where the tuned small model goes")
    parser.add_argument("--output", type=Path, help="where the projector goes")
    parser.add_argument("--report", type=Path, help="where settings and likelihoods go (JSON)")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--seed", type=int, default=LEARNING.seed)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    home = Path.home() / ".cache/tandem"
    parser.add_argument("--data", type=Path, default=home / "seq2seq", help="pairs, tokenizer")
    parser.add_argument("--work", type=Path, default=home / "llm_to_slm", help="rows, checkpoints")
    given = parser.parse_args(arguments)
    if given.unconditioned and (given.train == "frozen" or given.output):
        parser.error(
            "--unconditioned: a small model alone; allowed without --train frozen and --output"
        )
    if given.output and given.train != "frozen" and given.write_small is None:
        parser.error("--write-small: missing; --train full changes the model")
    return given


def some_of(pairs: list[Pair], names: int, seed: int) -> list[Pair]:
    """All docstrings, and that many names, to limit the size of the encoder states."""
    mine = [pair for pair in pairs if pair.task == NAME]
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(mine), generator=random)[:names]
    return [*(p for p in pairs if p.task == DOCSTRING), *(mine[i] for i in chosen.tolist())]


def recipe_of(given: argparse.Namespace) -> Recipe:
    """`given`: seed, a step's pairs, and rates."""
    rates = {f"{part}_rate": getattr(given, f"{part}_rate") for part in PARTS}
    of_step = {"names": given.batch_names, "docstrings": given.batch_docstrings}
    return replace(LEARNING, seed=given.seed, **of_step, **rates)


def shared_tokenizer(large: Path, small: Path) -> Tokenizer:
    """Of both models, whose ids are the same."""
    files = [folder / "tokenizer.json" for folder in (large, small)]
    theirs, own = (Tokenizer.from_file(str(file)) for file in files)
    if theirs.to_str() != own.to_str():
        raise SystemExit(
            f"--small: {files[1]} is another tokenizer than {files[0]}; allowed: models of one tokenizer"
        )
    return theirs


def identity(given: argparse.Namespace, models: list[str], pairs: list[Pair]) -> str:
    """Key of the checkpoint: settings, fingerprints of `models`, and pairs."""
    how = [
        given.fusion,
        given.train,
        given.unconditioned,
        given.steps,
        given.bfloat16,
        given.dropout,
    ]
    learned = [[pair.task, pair.source, pair.target] for pair in pairs]
    return conditioned_samples.key_of(how, models, asdict(recipe_of(given)), learned)


def trainer_of(
    model: nn.Module, pairs: list[Pair], recipe: Recipe, given: argparse.Namespace, file: Path
):
    """`given`: steps, and `bfloat16`."""
    batches = Batches(pairs, {NAME: recipe.names, DOCSTRING: recipe.docstrings}, recipe.seed)
    budget = Budget(steps=given.steps)
    return seq2seq.Trainer(model, batches, recipe, budget, file, given.bfloat16)


def measured(model, tokenizer, held_out: dict[str, list[Pair]]) -> dict:
    """Of held-out pairs, in fp32: nats per token by task, names that are right, ROUGE-L of docstrings."""
    nats = seq2seq.held_out_loss(model, held_out, bfloat16=False)
    return {"nats": nats, **seq2seq.quality(model, tokenizer, held_out)}


def kept(file: Path, make: Callable[[], dict]) -> dict:
    """Cached result of `make`."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(make()))
        new.replace(file)
    return json.loads(file.read_text())


def write(given: argparse.Namespace, model: nn.Module, data: Data, large) -> None:
    """The tuned small model and the projector, where wanted; `model` becomes as they were written."""
    small = model if given.unconditioned else model.small
    if given.write_small:
        seq2seq.export(small, data.tokenizer, given.write_small)
        small.load_state_dict(seq2seq.load(given.write_small).state_dict())
    if given.output:
        layers = large.config.num_layers
        source = projector_file.source_of(large)
        projector_file.save(given.output, model.folded(), source, small, layers, given.fusion)


def settings_of(given: argparse.Namespace, pairs: int) -> dict:
    """As a report has them."""
    return asdict(recipe_of(given)) | {
        "conditioned": not given.unconditioned,
        "train": given.train,
        "fusion": given.fusion,
        "steps": given.steps,
        "samples": pairs,
        "most_names": given.names,
        "dropout": given.dropout,
        "precision": "bf16" if given.bfloat16 else "fp32",
    }


def main(arguments: list[str] | None = None) -> None:
    given = parse_arguments(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    given.bfloat16 = given.precision == "bf16" or (given.precision == "auto" and fast_at_bfloat16())
    tokenizer = shared_tokenizer(given.large, given.small)
    data = Data.read(given.stdlib, given.data, checked=sys.maxsize, tokenizer=tokenizer)
    shown = {task: pairs[: seq2seq.CHECKED] for task, pairs in data.held_out.items()}
    held_out = {NAME: shown[NAME], DOCSTRING: data.held_out[DOCSTRING]}
    pairs = some_of(data.training, given.names, given.seed)
    large, small = seq2seq.load(given.large), seq2seq.load(given.small, given.dropout)
    report = {}
    for name, alone in (("small", small), ("large", large)):
        texts = [[pair.source, pair.target] for some in held_out.values() for pair in some]
        key = conditioned_samples.key_of(projector_file.fingerprint_of(alone), texts)
        made = functools.partial(measured, alone, data.tokenizer, held_out)
        report[name] = kept(given.work / f"held-out-{key}.json", made)
    model = small
    if not given.unconditioned:
        asked = [pair for some in held_out.values() for pair in some]
        rows = SourceRows.read(large, [*pairs, *asked], given.work, given.bfloat16)
        model = Conditioned(small, rows, given.fusion, given.seed)
        small.requires_grad_(given.train == "full")
    recipe = recipe_of(given)
    run = identity(given, [projector_file.fingerprint_of(m) for m in (large, small)], pairs)
    trainer = trainer_of(model, pairs, recipe, given, given.work / f"conditioned-{run}.pt")
    at = trainer.state.step
    print(f"{len(pairs)} pairs, {'resumed' if trainer.resumed else 'starting'} at {at}", flush=True)
    if not seq2seq.train(trainer, shown):
        sys.exit("interrupted; the same command continues")
    write(given, model, data, large)
    name = "small, tuned alone" if given.unconditioned else "llm_to_slm"
    settings = settings_of(given, len(pairs))
    settings |= {"checked": {task: len(some) for task, some in held_out.items()}}
    report |= {name: measured(model, data.tokenizer, held_out), "settings": settings}
    report |= {"minutes": round(trainer.state.seconds / 60, 1), "curve": trainer.curve}
    text = json.dumps(report | {"command": sys.argv[1:]}, indent=1)
    if given.report:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
