"""Trains BiTA's masks and prompts for a frozen model (arXiv 2401.12522).

    python -m tuning.bita models/code-large --output models/code-large-bita --minutes 40

The model answers prompts greedily. Each mask learns to predict its token of these answers. The model itself
stays unchanged. Run the command again to resume after an interruption. Prints tokens per pass on held-out
prompts, by tree. With --large, the masks learn the answers of another model, for which this one drafts.
With --rank, mask rows also learn low-rank additions to the model's matrices (arXiv 2507.11851).
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tuning import (
    adapter_file,
    bita_prompts,
    bita_trees,
    calibration,
    frozen_model,
    mask_rows,
    own_answers,
    resumable,
)
from tuning.calibration import Sample
from tuning.frozen_model import FrozenModel
from tuning.mask_rows import MaskParameters
from tuning.schedule import Budget

DEPTHS = ("all", "cycled")
CURVE = 3  # share of held-out answers for intermediate checks: one in this many


@dataclass(frozen=True)
class Settings:
    """Settings of a training."""

    seed: int = 1
    masks: int = 3
    prompts: int = 16
    prompting: str = "deep"  # or "shallow"
    rank: int = 0  # of low-rank additions for mask rows; 0: none
    matrices: str = ""  # with additions, as ends of names: "q_proj,down_proj"; empty: all
    addition_rate: float = 1.5e-3  # learning rate of these
    vocabulary: int = 0  # learns only tokens below it, as a draft vocabulary offers; 0: all
    code_prompts: int = 2048
    function_prompts: int = 0
    chat_prompts: int = 0
    new_tokens: int = 128
    checked: int = 48  # held-out prompts of each sort
    samples_per_batch: int = 16
    groups: int = 48  # of masks in a sample
    depths: str = "all"  # masks of a batch's groups, or "cycled": 1 to M of them, batch by batch
    rate: float = 3e-2
    warmup_steps: int = 20


class Groups:
    """Batches of answers, and in each the rows that masks are attached to.

    Batch n depends on the seed and n alone. Answers of like length go together.
    """

    def __init__(self, samples: list[Sample], settings: Settings):
        if settings.depths not in DEPTHS:
            raise ValueError(f"depths {settings.depths}: allowed: {', '.join(DEPTHS)}")
        self.samples = [s for s in samples if len(s.output) > settings.masks]
        self.settings = settings
        size = settings.samples_per_batch
        by_length = sorted(self.samples, key=lambda s: len(s.prompt) + len(s.output))
        self.batches = [by_length[i : i + size] for i in range(0, len(by_length), size)]

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(tokens [samples, length], rows [samples, groups], labels [samples, groups, masks]).

        Masks are M, or with depths "cycled" the first 1, 2, .. M of them, and the fewer they are the
        more groups: a tree's first depth counts most, and the deeper masks cost the most rows.
        """
        epoch, within = divmod(step, len(self.batches))
        order = np.random.default_rng((self.settings.seed, epoch)).permutation(len(self.batches))
        random = np.random.default_rng((self.settings.seed, epoch, within))
        chosen = self.batches[order[within]]
        masks = self.settings.masks
        depth = 1 + step % masks if self.settings.depths == "cycled" else masks
        groups = self.settings.groups * masks // depth
        count = min(groups, max(len(s.output) for s in chosen) - 1)
        rows = []
        for sample in chosen:
            # From the prompt's last row on, as long as m_1 has a token to learn.
            first, last = len(sample.prompt) - 1, len(sample.prompt) + len(sample.output) - 3
            every = np.arange(first, last + 1)
            rows.append(np.sort(random.choice(every, count, replace=len(every) < count)))
        at = torch.tensor(np.stack(rows))
        return padded(chosen), at, labels_of(chosen, at, depth)


def padded(samples: list[Sample]) -> torch.Tensor:
    longest = max(len(s.prompt) + len(s.output) for s in samples)
    whole = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        text = torch.tensor(sample.prompt + sample.output)
        whole[row, : len(text)] = text
    return whole


def labels_of(samples: list[Sample], at: torch.Tensor, masks: int) -> torch.Tensor:
    """m_i of a group at row k learns token k + 1 + i; what lies behind the answer is ignored."""
    labels = torch.full((*at.shape, masks), calibration.IGNORED)
    for row, sample in enumerate(samples):
        text = torch.tensor(sample.prompt + sample.output)
        which = at[row][:, None] + 2 + torch.arange(masks)
        known = which < len(text)
        labels[row][known] = text[which[known]]
    return labels


def loss_of(
    contexts: mask_rows.Contexts,
    own: MaskParameters,
    batch: tuple[torch.Tensor, ...],
    vocabulary: int = 0,
) -> torch.Tensor:
    """Mean cross-entropy of the masks' tokens among the first `vocabulary` ids (0: all), nats."""
    tokens, at, labels = batch
    past = contexts.of(tokens)
    hidden = mask_rows.hidden_rows(contexts.model, own, past, at, labels.shape[-1])
    counts = labels != calibration.IGNORED
    if vocabulary > 0:
        counts &= labels < vocabulary
    head = contexts.model.lm_head.weight[: vocabulary or None]
    logits = torch.nn.functional.linear(hidden[counts], head).float()
    return torch.nn.functional.cross_entropy(logits, labels[counts])


@torch.no_grad()
def held_out_ranks(
    model: torch.nn.Module, own: MaskParameters, samples: list[Sample], rows: int = 8
) -> list[np.ndarray]:
    """Of each answer [n, M]: which candidate of m_i at row n its token is, from 1."""
    masks = own.masks.shape[0]
    answers = []
    ordered = sorted(samples, key=lambda s: len(s.prompt) + len(s.output))
    for first in range(0, len(ordered), rows):
        chosen = ordered[first : first + rows]
        past = mask_rows.context(model, padded(chosen))
        count = max(len(s.output) for s in chosen)
        begin = torch.tensor([len(s.prompt) - 1 for s in chosen])
        at = begin[:, None] + torch.arange(count)
        end = torch.tensor([len(s.prompt) + len(s.output) - 1 for s in chosen])
        at = torch.minimum(at, end[:, None])
        labels = labels_of(chosen, at, masks)
        hidden = mask_rows.hidden_rows(model, own, past, at)
        for row, sample in enumerate(chosen):
            rank = ranks_of(model.lm_head(hidden[row]).float(), labels[row])
            answers.append(rank[: len(sample.output)])
    return answers


def ranks_of(logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Rank of each label, from 1, by its logits [.., vocabulary]; ignored labels have the worst."""
    right = logits.gather(-1, labels.clamp(min=0)[..., None])
    rank = 1 + (logits > right).sum(-1)
    rank[labels == calibration.IGNORED] = bita_trees.WORST
    return rank.clamp(max=bita_trees.WORST).numpy()


def summary(answers: list[np.ndarray], masks: int) -> dict:
    """How often a mask's first candidate and one of its first five is right; tokens per pass."""
    every = np.concatenate(answers)
    table = {}
    for kind in bita_trees.KINDS:
        for candidates in (1,) if kind in ("chain", "straightforward") else (2, 3, 5):
            if kind == "full" and candidates > 3:
                continue
            tree = bita_trees.tree(kind, masks, candidates)
            mean, histogram = bita_trees.tokens_per_pass(tree, answers)
            table[f"{kind} k={candidates}"] = {
                "tokens_per_pass": round(mean, 3),
                "rows": tree.rows(masks),
                "accept_lengths": histogram.tolist(),
            }
    return {
        "first": [round(float((every[:, i] == 1).mean()), 3) for i in range(masks)],
        "five": [round(float((every[:, i] <= 5).mean()), 3) for i in range(masks)],
        "trees": table,
    }


class Training(resumable.Training):
    """Trains masks and prompts for a frozen model, from random values or those of `begin`."""

    def __init__(
        self,
        frozen: FrozenModel,
        settings: Settings,
        folder: Path,
        begin: MaskParameters | None = None,
    ):
        own = MaskParameters(
            frozen.model,
            settings.masks,
            settings.prompts,
            settings.seed,
            settings.prompting,
            settings.rank,
            settings.matrices,
        )
        if begin is not None:
            own.begin(begin)
        rates = {"additions": settings.addition_rate}
        super().__init__(own, settings.rate, settings.warmup_steps, folder, rates)
        self.frozen, self.settings = frozen, settings

    def learn(self, samples: list[Sample], budget: Budget, check: Callable[[], dict]) -> None:
        groups = Groups(samples, self.settings)
        contexts = mask_rows.Contexts(self.frozen.model)
        vocabulary = self.settings.vocabulary

        def loss_at(step: int) -> torch.Tensor:
            return loss_of(contexts, self.own, groups.batch(step), vocabulary)

        self.run(loss_at, budget, check)


def identity(frozen: FrozenModel, settings: Settings, samples: list[Sample], **more) -> str:
    """Key of the checkpoint: model, settings and answers."""
    return own_answers.identity(
        frozen,
        adapter_file.fingerprint_of(frozen_model.tensors_of(frozen.model)),
        settings=vars(settings),
        learned=[own_answers.token_lists(s) for s in samples],
        **more,
    )


def trainings(adapter: Path) -> list[dict]:
    """Earlier trainings of an adapter in order, from training.json, without final results."""
    file = adapter / "training.json"
    if not file.exists():
        return []
    last = json.loads(file.read_text())
    return [*last.pop("earlier", []), {k: v for k, v in last.items() if k != "held_out"}]


def writer_of(frozen: FrozenModel, large: Path | None, dtype: torch.dtype) -> FrozenModel:
    """The model whose answers the masks learn."""
    if large is None:
        return frozen
    writer = frozen_model.load(large, dtype)
    if writer.tokenizer.get_vocab() != frozen.tokenizer.get_vocab():
        raise SystemExit(f"--large: {large}; allowed: a model with the same token ids")
    return writer


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--output", type=Path, required=True, help="a new folder, see `extras`")
    parser.add_argument(
        "--begin",
        type=Path,
        help="an adapter to continue from, with as many prompts and no additions or those of at least this rank",
    )
    parser.add_argument("--large", type=Path, help="a model whose answers the masks learn")
    parser.add_argument(
        "--answers", type=Path, help="""JSON lines {"prompt", "answer"}: answers to learn as well"""
    )
    resumable.add_arguments(parser, Settings(), "bita", keeps="answers")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    settings = Settings(**{name: getattr(arguments, name) for name in vars(Settings())})
    budget = Budget(minutes=arguments.minutes, steps=arguments.steps)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    frozen = frozen_model.load(arguments.model, dtype)
    writer = writer_of(frozen, arguments.large, dtype)
    training, held_out = bita_prompts.answers(writer, settings, arguments)
    del writer  # its memory
    if arguments.answers:
        training = training + bita_prompts.written(frozen, arguments.answers)
    begin = arguments.begin and mask_rows.shipped(frozen.model, arguments.begin)
    begun = begin and adapter_file.fingerprint_of(begin.state_dict())
    key = identity(frozen, settings, training, begin=begun)
    folder = arguments.work / f"{arguments.output.name}-{key}"
    work = Training(frozen, settings, folder, begin)
    work.load()

    def ranks(every: int = 1) -> dict[str, list[np.ndarray]]:
        return {
            name: held_out_ranks(frozen.model, work.own, samples[::every])
            for name, samples in held_out.items()
        }

    def check() -> dict:
        tree = bita_trees.tree("efficient", settings.masks, 5)
        return {
            name: round(bita_trees.tokens_per_pass(tree, answers)[0], 3)
            for name, answers in ranks(CURVE).items()
        }

    # Includes the trainings of the adapter that this one starts from.
    earlier = trainings(arguments.begin) if begin else []
    if begin and work.step == 0:
        work.curve.append({"step": 0, "seconds": 0, **check()})
    work.learn(training, budget, check)
    work.save()
    mask_rows.write(arguments.output, frozen.model, work.own, torch.float16)
    report = {
        "settings": vars(settings),
        "answers": len(training),
        "tokens": sum(len(s.output) for s in training),
        "steps": work.step,
        "minutes": round(work.seconds / 60, 1),
        "precision": arguments.precision,
        **({"large": arguments.large.name} if arguments.large else {}),
        "curve": work.curve,
        **({"earlier": earlier} if earlier else {}),
        "held_out": {name: summary(answers, settings.masks) for name, answers in ranks().items()},
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "training.json").write_text(json.dumps(report) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
