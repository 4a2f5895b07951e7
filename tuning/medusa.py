"""Tokens per pass with Medusa's heads (arXiv 2401.10774) and with BiTA's masks (arXiv 2401.12522, figure 7).

    python -m tuning.medusa models/code-large --adapter models/code-large-bita --minutes 6 \\
        --humaneval HumanEval.jsonl.gz --write

Head i of a row reads its last hidden state h and predicts the token i behind the row's own prediction: the model's
output matrix of h + SiLU(W h + b). With `--outputs own` each head also trains a copy of that matrix, as Medusa's
authors do. The model is frozen (Medusa-1). Heads learn the model's greedy answers to the prompts that the adapter was
trained with.

Trees and acceptance are the same for both. The rows of a pass differ: masks are rows, heads are not. Run the command
again to resume after an interruption.
"""

import argparse
import datetime
import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from measure import machine
from measure.paths import ROOT
from measure.report import put, table
from tuning import (
    adapter_file,
    bita,
    bita_ablation,
    bita_prompts,
    bita_trees,
    calibration,
    conditioned_difference,
    frozen_model,
    mask_rows,
    own_answers,
    resumable,
)
from tuning.bita_trees import Tree
from tuning.calibration import Sample
from tuning.schedule import Budget

PAGE = bita_ablation.PAGE
TREES = (*bita_ablation.TREES, ("full", 3))
OUTPUTS = ("shared", "own")


@dataclass(frozen=True)
class Settings:
    """Settings of a training. Prompts are those of the adapter."""

    seed: int = 1  # of batches
    checked: int = 64  # held-out prompts of each sort
    rows_per_batch: int = 512
    rate: float = 1e-3
    warmup_steps: int = 20


@dataclass(frozen=True)
class Prompts:
    """As in an adapter's training.json."""

    seed: int
    masks: int
    new_tokens: int
    code_prompts: int
    checked: int
    function_prompts: int = 0
    chat_prompts: int = 0

    @classmethod
    def of(cls, adapter: Path, checked: int) -> "Prompts":
        report = json.loads((adapter / "training.json").read_text())
        if "earlier" in report:
            raise SystemExit(f"{adapter}: several trainings; allowed: adapters of one training")
        names = {field.name for field in fields(cls)}
        known = {name: value for name, value in report["settings"].items() if name in names}
        return replace(cls(**known), checked=checked)


class Heads(torch.nn.Module):
    """W and b are zero at first, so each head begins with the model's own prediction."""

    def __init__(self, model: PreTrainedModel, heads: int, outputs: str):
        super().__init__()
        hidden = model.config.hidden_size
        self.weight = torch.nn.Parameter(torch.zeros(heads, hidden, hidden))
        self.bias = torch.nn.Parameter(torch.zeros(heads, hidden))
        shared = model.get_output_embeddings().weight
        self.outputs = None
        if outputs == "own":
            self.outputs = torch.nn.Parameter(shared.detach().float().repeat(heads, 1, 1))
        self.shared = [shared]  # in a list, so that it is no parameter of this module

    def forward(self, rows: torch.Tensor, head: int) -> torch.Tensor:
        """Logits of one head, from rows [n, hidden]."""
        rows = rows.float()
        inner = torch.nn.functional.silu(rows @ self.weight[head].T + self.bias[head])
        output = self.shared[0].float() if self.outputs is None else self.outputs[head]
        return (rows + inner) @ output.T


@torch.no_grad()
def last_rows(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Hidden states that the output matrix reads, [texts, length, hidden]."""
    return model.base_model(input_ids=tokens, use_cache=False).last_hidden_state


def features(
    model: PreTrainedModel, sample: Sample, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows [n, hidden], labels [n, heads]) of an answer of n tokens: the prompt's last row, and all others that see
    the answer but its last one. Head i at row k has token k + 1 + i, as bita.labels_of."""
    at = len(sample.prompt) - 1 + torch.arange(len(sample.output))
    rows = last_rows(model, bita.padded([sample]))[0, at]
    return rows, bita.labels_of([sample], at[None], heads)[0]


def loss_of(heads: Heads, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the heads' tokens, nats."""
    losses = [
        torch.nn.functional.cross_entropy(
            heads(rows, head), labels[:, head], ignore_index=calibration.IGNORED
        )
        for head in range(labels.shape[1])
    ]
    return torch.stack(losses).mean()


@torch.no_grad()
def held_out_ranks(heads: Heads, texts: list[tuple]) -> list[np.ndarray]:
    """As bita.held_out_ranks: of each answer [n, heads]. `texts`: features of each."""
    every = range(len(heads.weight))
    return [
        bita.ranks_of(torch.stack([heads(rows, i) for i in every], 1), labels)
        for rows, labels in texts
    ]


def tree_of(kind: str, masks: int, candidates: int) -> Tree:
    """The same candidates as bita_trees.tree. Heads read every row, as if each had masks."""
    paths = bita_trees.tree(kind, masks, candidates).paths
    return Tree(paths, set(paths))


def tokens_per_pass(tree: Tree, answers: list[np.ndarray]) -> tuple[float, float]:
    """Mean, and its standard error over answers."""
    lengths = [bita_trees.accept_lengths(tree, ranks) for ranks in answers]
    counted = [(len(one) + sum(one), len(one)) for one in lengths if one]
    return conditioned_difference.mean_and_error(*map(list, zip(*counted, strict=True)))


def tree_table(masks: dict[str, list], heads: dict[str, dict[str, list]], count: int) -> str:
    """`masks`: ranks by text. `heads`: the same by outputs."""
    rows = []
    for kind, candidates in TREES:
        both = bita_trees.tree(kind, count, candidates), tree_of(kind, count, candidates)
        cells = [str(both[0].rows(count)), str(both[1].rows(0))]
        for text in masks:
            found = [tokens_per_pass(both[0], masks[text])]
            found += [tokens_per_pass(both[1], ranks[text]) for ranks in heads.values()]
            cells += [f"{mean:.2f} ± {error:.2f}" for mean, error in found]
        rows.append([f"{kind}, k = {candidates}", *cells])
    names = ["BiTA", *(f"Medusa, {outputs}" for outputs in heads)]
    head = [f"tree, M = {count}", "BiTA's rows", "Medusa's rows"]
    return table([*head, *(f"{text}: {name}" for text in masks for name in names)], rows)


def train(
    heads: Heads,
    settings: Settings,
    learned: list[tuple],
    held_out: dict[str, list[tuple]],
    budget: Budget,
    folder: Path,
) -> resumable.Training:
    """`learned`, `held_out`: features of each answer."""
    work = resumable.Training(heads, settings.rate, settings.warmup_steps, folder)
    work.load()
    rows, labels = (torch.cat(part) for part in zip(*learned, strict=True))
    known = labels[:, 0] != calibration.IGNORED
    rows, labels = rows[known], labels[known]
    size = settings.rows_per_batch
    per_epoch = max(1, len(rows) // size)

    def loss_at(step: int) -> torch.Tensor:
        epoch, within = divmod(step, per_epoch)
        random = torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch)
        some = torch.randperm(len(rows), generator=random)[within * size : (within + 1) * size]
        return loss_of(heads, rows[some], labels[some])

    def check() -> dict:
        tree = tree_of("efficient", labels.shape[1], 5)
        return {
            text: round(tokens_per_pass(tree, held_out_ranks(heads, some[:: bita.CURVE]))[0], 3)
            for text, some in held_out.items()
        }

    work.run(loss_at, budget, check)
    work.save()
    return work


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--adapter", type=Path, required=True, help="BiTA's masks for it")
    parser.add_argument("--outputs", nargs="+", choices=OUTPUTS, default=list(OUTPUTS))
    resumable.add_arguments(parser, Settings(), "bita", keeps="answers")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    settings = Settings(**{name: getattr(arguments, name) for name in vars(Settings())})
    budget = Budget(minutes=arguments.minutes, steps=arguments.steps)
    prompts = Prompts.of(arguments.adapter, settings.checked)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    frozen = frozen_model.load(arguments.model, dtype)
    model, count = frozen.model, prompts.masks
    training, held_out = bita_prompts.answers(frozen, prompts, arguments)
    own = mask_rows.shipped(model, arguments.adapter)
    masks = {text: bita.held_out_ranks(model, own, samples) for text, samples in held_out.items()}
    learned = [features(model, sample, count) for sample in training]
    known = {text: [features(model, s, count) for s in some] for text, some in held_out.items()}
    heads, lines = {}, [["BiTA", f"{sum(p.numel() for p in own.parameters()):,}", "-", "-", "-"]]
    for outputs in arguments.outputs:
        key = own_answers.identity(
            frozen,
            adapter_file.fingerprint_of(frozen_model.tensors_of(model)),
            settings=vars(settings),
            learned=[own_answers.token_lists(s) for s in training],
            outputs=outputs,
        )
        folder = arguments.work / f"medusa-{key}"
        work = train(Heads(model, count, outputs), settings, learned, known, budget, folder)
        heads[outputs] = {text: held_out_ranks(work.own, some) for text, some in known.items()}
        size = sum(p.numel() for p in work.own.parameters())
        epochs = work.step * settings.rows_per_batch / sum(len(rows) for rows, _ in learned)
        minutes = work.seconds / 60
        lines.append(
            [f"Medusa, {outputs}", f"{size:,}", str(work.step), f"{epochs:.1f}", f"{minutes:.1f}"]
        )
    conditions = [
        ["command", "`python -m tuning.medusa " + " ".join(sys.argv[1:]) + "`"],
        ["commit", machine.commit(ROOT)],
        ["date", str(datetime.date.today())],
        ["processor", f"{machine.processor()}, {arguments.threads or machine.cores()} threads"],
        ["answers", f"{len(training)}, {sum(len(s.output) for s in training):,} tokens"],
        ["held-out", f"{settings.checked} prompts of each sort"],
    ]
    text = "\n\n".join(
        [
            tree_table(masks, heads, count),
            table(["", "trained parameters", "steps", "epochs", "minutes"], lines),
            table(["condition", ""], conditions),
        ]
    )
    print(text)
    if arguments.write:
        put(PAGE, "medusa", text + "\n")


if __name__ == "__main__":
    main()
