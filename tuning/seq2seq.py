"""Trains the encoder-decoder demo models: from functions of the standard library to names and docstrings.

    python -m tuning.seq2seq small --minutes 10      # writes models/docstring-small
    python -m tuning.seq2seq large --minutes 40      # writes models/docstring-large
    python -m tuning.seq2seq aligned --minutes 5     # writes models/docstring-small-aligned

The last one is the small model, fine-tuned on answers of the large one (prediction alignment, BiLD section 3.5.1).
Run a command again to resume after an interruption. See models/README.md.
"""

import argparse
import hashlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import GenerationConfig, T5ForConditionalGeneration

from tuning import corpus, functions
from tuning.calibration import IGNORED
from tuning.evaluate.quality import rouge_l_of_texts
from tuning.functions import DOCSTRING, NAME
from tuning.muon import Muon
from tuning.pairs import Batches, Pair, encode, read_pairs
from tuning.pretrain import fast_at_bfloat16
from tuning.schedule import Budget, TrainingState, rate_factor
from tuning.seq2seq_shapes import SHAPES, new_model, t5
from tuning.vocabulary import VOCABULARY_SIZE, save_source_tokenizer, train_source_tokenizer

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT_SHARE = 0.05  # of the files: docstrings are rare
LONGEST_SOURCE, LONGEST_TARGET = 112, 48  # tokens
CHECKED = 192  # held-out examples of each task that a report looks at


@dataclass(frozen=True)
class Recipe:
    """Settings of a training."""

    seed: int = 1
    names: int = 40  # examples of a batch
    docstrings: int = 24
    warmup_steps: int = 30
    matrix_rate: float = 0.02
    vector_rate: float = 0.01
    projector_rate: float = 0.003  # of the projector, if any
    weight_decay: float = 0.02
    report_every: float = 6  # minutes


ALIGNING = Recipe(
    names=16, docstrings=48, warmup_steps=10, matrix_rate=0.005, vector_rate=0.0025, report_every=3
)


def optimizers(model: T5ForConditionalGeneration, recipe: Recipe, bfloat16: bool) -> list:
    """Muon for the blocks' matrices, AdamW for the embedding, the biases by distance and the norms.

    Each group of parameters has its peak rate as "peak". T5 does not divide scores by the root of the head size. Its query matrices are smaller by that factor, and so
    are their updates.
    """
    queries, matrices, others, projector = [], [], [], []
    for name, parameter in model.named_parameters():
        if name.startswith("projector."):
            projector.append(parameter)
        elif parameter.ndim != 2 or "block" not in name or "relative_attention_bias" in name:
            others.append(parameter)
        else:
            (queries if name.endswith("Attention.q.weight") else matrices).append(parameter)
    rate = recipe.matrix_rate
    muon = Muon(
        [
            {"params": queries, "peak": rate * model.config.d_kv**-0.5},
            {"params": matrices, "peak": rate},
        ],
        weight_decay=recipe.weight_decay,
        dtype=torch.bfloat16 if bfloat16 else torch.float32,
    )
    groups = [{"params": others, "peak": recipe.vector_rate}]
    if projector:
        groups.append({"params": projector, "peak": recipe.projector_rate})
    return [muon, torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)]


class Trainer:
    """One model in training; `step` until it says None. Resumes from `file` if it is there."""

    def __init__(
        self,
        model: T5ForConditionalGeneration,
        batches: Batches,
        recipe: Recipe,
        budget: Budget,
        file: Path,
        bfloat16: bool = False,
    ):
        self.model, self.batches, self.recipe = model, batches, recipe
        self.budget, self.file, self.bfloat16 = budget, file, bfloat16
        self.state = TrainingState()
        self.curve: list[dict] = []
        self.optimizers = optimizers(model, recipe, bfloat16)
        self.resumed = file.exists()
        if self.resumed:
            saved = torch.load(file, weights_only=True)
            model.load_state_dict(saved["model"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.state.load_state_dict(saved["state"])
            self.curve = json.loads(saved["curve"])

    def step(self) -> float | None:
        """One update; the loss before it, or None when the budget is used up."""
        started = time.monotonic()
        factor = rate_factor(self.budget, self.state, self.recipe.warmup_steps)
        if factor == 0:
            return None
        self.model.train()
        torch.manual_seed(self.recipe.seed * 1_000_003 + self.state.step)  # of dropout, if any
        parts = self.batches.batch(self.state.step)
        counts = [int((labels != IGNORED).sum()) for _, labels in parts]
        total = 0.0  # the mean over the tokens of all parts
        for (inputs, labels), count in zip(parts, counts, strict=True):
            loss = loss_of(self.model, inputs, labels, self.bfloat16) * (count / sum(counts))
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            optimizer.zero_grad()
        self.state.step += 1
        self.state.tokens += sum(counts)
        self.state.seconds += time.monotonic() - started
        return total

    def progress(self) -> float:
        """The share of the budget that is used up."""
        return self.budget.progress(self.state.step, self.state.seconds)

    def save(self) -> None:
        """Writes a checkpoint from which a later run resumes, atomically."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "state": self.state.state_dict(),
                "curve": json.dumps(self.curve),
            },
            new,
        )
        new.replace(self.file)


def loss_of(
    model: T5ForConditionalGeneration, inputs: torch.Tensor, labels: torch.Tensor, bfloat16: bool
) -> torch.Tensor:
    """Mean negative log-likelihood in nats of the labels. inputs: [pairs, source], labels: [pairs, target]."""
    mask = inputs != model.config.pad_token_id
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(input_ids=inputs, attention_mask=mask, labels=labels).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


@torch.no_grad()
def write(
    model: T5ForConditionalGeneration,
    sources: list[list[int]],
    new_tokens: int,
    bfloat16: bool = False,
    rows: int = 64,
) -> Iterator[list[int]]:
    """`model`'s greedy answers in the order of the sources, the end of text included if it came."""
    model.eval()
    end = model.config.eos_token_id
    for at in range(0, len(sources), rows):
        inputs, _ = encode([Pair(NAME, source, []) for source in sources[at : at + rows]])
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            answers = model.generate(
                inputs,
                attention_mask=inputs != model.config.pad_token_id,
                max_new_tokens=new_tokens,
                do_sample=False,
                num_beams=1,
            )
        for answer in answers[:, 1:].tolist():  # behind the decoder's start token
            yield answer[: answer.index(end) + 1] if end in answer else answer


@torch.no_grad()
def held_out_loss(
    model: T5ForConditionalGeneration, pairs: dict[str, list[Pair]], bfloat16: bool
) -> dict[str, float]:
    """Nats per token of each task's pairs."""
    model.eval()
    found = {}
    for task, some in pairs.items():
        nats = tokens = 0.0
        for at in range(0, len(some), 64):
            inputs, labels = encode(some[at : at + 64])
            count = int((labels != IGNORED).sum())
            nats += loss_of(model, inputs, labels, bfloat16).item() * count
            tokens += count
        found[task] = round(nats / tokens, 4)
    return found


def train(trainer: Trainer, held_out: dict[str, list[Pair]]) -> bool:
    """Trains until the budget is used up, or until a signal: then False. Saves at every report."""
    stopping = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.append(True))

    def report() -> None:
        state = trainer.state
        seen = {"step": state.step, "minutes": round(state.seconds / 60, 1)}
        seen["held_out"] = held_out_loss(trainer.model, held_out, trainer.bfloat16)
        trainer.curve.append(seen)
        trainer.save()
        tqdm.write(json.dumps(seen), file=sys.stdout)
        sys.stdout.flush()

    bar = tqdm(
        total=100, bar_format="{percentage:5.1f}% |{bar}| {elapsed} {postfix}", mininterval=10
    )
    reported, smooth = time.monotonic(), None
    while not stopping:
        loss = trainer.step()
        if loss is None:
            break
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        bar.n = min(100.0, round(100 * trainer.progress(), 2))
        bar.set_postfix(step=trainer.state.step, loss=f"{smooth:.3f}", refresh=False)
        bar.update(0)
        if time.monotonic() - reported > 60 * trainer.recipe.report_every:
            report()
            reported = time.monotonic()
    report()
    bar.close()
    return not stopping


def export(model: T5ForConditionalGeneration, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a Hugging Face model directory with bfloat16 weights; `model` stays unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    shipped = T5ForConditionalGeneration(model.config)
    shipped.load_state_dict(model.state_dict())
    shipped.to(torch.bfloat16)
    shipped.config.dtype = "bfloat16"
    shipped.generation_config = GenerationConfig(
        decoder_start_token_id=model.config.decoder_start_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=False,
    )
    shipped.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it comes out readable by its owner only
    save_source_tokenizer(tokenizer, folder, LONGEST_SOURCE)


def load(folder: Path, dropout: float = 0.0) -> T5ForConditionalGeneration:
    """`dropout`: in training; it is not written."""
    model = T5ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, dropout_rate=dropout
    )
    model.config.dropout_rate = 0.0
    return model


def relabelled(
    large: T5ForConditionalGeneration, pairs: list[Pair], bfloat16: bool, file: Path
) -> list[Pair]:
    """The pairs with what `large` writes as their targets; kept in `file`."""
    if not file.exists():
        sources = [pair.source for pair in pairs]
        answers = write(large, sources, LONGEST_TARGET, bfloat16)
        shown = tqdm(answers, total=len(pairs), unit="answer", mininterval=10, desc="writing")
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(list(shown)))
        new.replace(file)
    answers = json.loads(file.read_text())
    return [
        Pair(pair.task, pair.source, answer) for pair, answer in zip(pairs, answers, strict=True)
    ]


def agreement(model: T5ForConditionalGeneration, pairs: list[Pair]) -> float:
    """The share of the targets' tokens that are `model`'s likeliest there."""
    model.eval()
    right = total = 0
    with torch.no_grad():
        for at in range(0, len(pairs), 64):
            inputs, labels = encode(pairs[at : at + 64])
            mask = inputs != model.config.pad_token_id
            best = model(input_ids=inputs, attention_mask=mask, labels=labels).logits.argmax(-1)
            counts = labels != IGNORED
            right += int((best == labels)[counts].sum())
            total += int(counts.sum())
    return right / total


def quality(
    model: T5ForConditionalGeneration, tokenizer: Tokenizer, pairs: dict[str, list[Pair]]
) -> dict[str, float]:
    """Greedy answers compared with the targets: ROUGE-L of docstrings, share of correct names."""
    texts = {}
    for task, some in pairs.items():
        answers = list(write(model, [pair.source for pair in some], LONGEST_TARGET))
        texts[task] = list(
            zip(
                tokenizer.decode_batch(answers),
                tokenizer.decode_batch([pair.target for pair in some]),
                strict=True,
            )
        )
    return {
        "names_right": round(mean(a == b for a, b in texts[NAME]), 4),
        "docstrings_rouge_l": round(mean(rouge_l_of_texts(a, b) for a, b in texts[DOCSTRING]), 4),
    }


@dataclass
class Data:
    """Tokenizer and pairs, of training and of held-out files."""

    tokenizer: Tokenizer
    training: list[Pair]
    held_out: dict[str, list[Pair]]  # by task

    @classmethod
    def read(
        cls,
        stdlib: Path,
        work: Path,
        checked: int = CHECKED,
        tokenizer: Tokenizer | None = None,
    ) -> "Data":
        """Of this library, and kept in `work`, where the next run finds it. `checked`: how many
        held-out pairs of each task, at most. `tokenizer`: of models that are there; without it, one
        is made for these pairs."""
        own = tokenizer is None
        limits = [HELD_OUT_SHARE, LONGEST_SOURCE, LONGEST_TARGET, VOCABULARY_SIZE]
        library = [sys.version, str(stdlib), sorted(map(str, stdlib.glob("*.py")))]
        theirs = [] if own else [tokenizer.to_str()]
        key = hashlib.sha256(json.dumps([limits, library, *theirs]).encode()).hexdigest()[:16]
        vocabulary, kept = work / "tokenizer.json", work / f"pairs-{key}.json"
        if not (kept.exists() and (vocabulary.exists() or not own)):
            work.mkdir(parents=True, exist_ok=True)
            training, held_out = functions.split(corpus.read_documents(stdlib), HELD_OUT_SHARE)
            if own:
                texts = [text for example in training for text in (example.source, example.target)]
                tokenizer = train_source_tokenizer(texts)
                tokenizer.save(str(vocabulary))
            pairs = [
                [vars(p) for p in read_pairs(e, tokenizer, LONGEST_SOURCE, LONGEST_TARGET)]
                for e in (training, held_out)
            ]
            new = kept.with_suffix(".new")
            new.write_text(json.dumps(pairs))
            new.replace(kept)
        training, held_out = ([Pair(**p) for p in some] for some in json.loads(kept.read_text()))
        some = {t: [p for p in held_out if p.task == t][:checked] for t in (NAME, DOCSTRING)}
        return cls(Tokenizer.from_file(str(vocabulary)) if own else tokenizer, training, some)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=[*sorted(SHAPES), "aligned"])
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="of training, all resumed runs together")
    budget.add_argument("--steps", type=int, help="updates, all resumed runs together")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="default: %(default)s")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path.home() / ".cache/tandem/seq2seq",
        help="checkpoints, tokenizer, what the large one wrote (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--samples", type=int, default=6144, help="that the large one answers")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    return parser.parse_args(arguments)


def begin(role: str, arguments: argparse.Namespace, data: Data, bfloat16: bool):
    """(model to train, pairs to train on, recipe, what a final report adds)."""
    if role != "aligned":
        config = t5(**SHAPES[role], vocabulary=data.tokenizer.get_vocab_size())
        return new_model(config, arguments.seed), data.training, Recipe(seed=arguments.seed), None
    large = load(arguments.models / "docstring-large")
    chosen = sample(data.training, arguments.samples, arguments.seed)
    answered = relabelled(large, chosen, bfloat16, arguments.work / "answers.json")
    asked = [pair for some in data.held_out.values() for pair in some]
    checked = relabelled(large, asked, bfloat16, arguments.work / "held_out_answers.json")

    def added(model: T5ForConditionalGeneration) -> dict:
        small = load(arguments.models / "docstring-small")
        return {
            "agreement_before": round(agreement(small, checked), 4),
            "agreement": round(agreement(model, checked), 4),
            "answers": len(answered),
        }

    return load(arguments.models / "docstring-small"), answered, ALIGNING, added


def sample(pairs: list[Pair], count: int, seed: int) -> list[Pair]:
    """`count` pairs, three quarters of them docstrings, or all that there are."""
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for task, share in ((DOCSTRING, 0.75), (NAME, 0.25)):
        mine = [pair for pair in pairs if pair.task == task]
        order = torch.randperm(len(mine), generator=generator)[: round(share * count)]
        chosen += [mine[i] for i in order.tolist()]
    return chosen


def main(arguments: list[str] | None = None) -> None:
    given = parse_arguments(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    if not given.stdlib.is_dir():
        sys.exit(f"--stdlib: no folder {given.stdlib}")
    bfloat16 = given.precision == "bf16" or (given.precision == "auto" and fast_at_bfloat16())
    data = Data.read(given.stdlib, given.work)
    model, pairs, recipe, added = begin(given.role, given, data, bfloat16)
    trainer = Trainer(
        model,
        Batches(pairs, {NAME: recipe.names, DOCSTRING: recipe.docstrings}, given.seed),
        recipe,
        Budget(minutes=given.minutes, steps=given.steps),
        given.work / f"{given.role}-{given.seed}.pt",
        bfloat16,
    )
    size = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{given.role}: {size:,} parameters, {len(pairs)} pairs, {'bf16' if bfloat16 else 'fp32'}, "
        f"{'resumed at' if trainer.resumed else 'starting at'} step {trainer.state.step}",
        flush=True,
    )
    if not train(trainer, data.held_out):
        sys.exit("interrupted; the same command continues")
    name = "docstring-small-aligned" if given.role == "aligned" else f"docstring-{given.role}"
    output = given.models / name
    export(model, data.tokenizer, output)
    report = {
        "settings": vars(recipe) | {"precision": "bf16" if bfloat16 else "fp32"},
        "pairs": len(pairs),
        "steps": trainer.state.step,
        "minutes": round(trainer.state.seconds / 60, 1),
        "target_tokens": trainer.state.tokens,
        "curve": trainer.curve,
        **quality(model, data.tokenizer, data.held_out),
        **(added(model) if added else {}),
    }
    (output / "training.json").write_text(json.dumps(report) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
