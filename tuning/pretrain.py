"""Trains one of the demo models on the Python standard library's source.

    python -m tuning.pretrain large --minutes 90
    python -m tuning.pretrain small --minutes 25

Run it again to resume after an interruption, or to continue with a larger budget. A smaller budget ends the training
soon, with a complete decay of the learning rate. See models/README.md.
"""

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import LlamaForCausalLM

from tuning import checkpoint, corpus
from tuning.heldout import HeldOut, bits_per_byte
from tuning.muon import Muon
from tuning.schedule import Budget, TrainingState, rate_factor
from tuning.shapes import CONTEXT_LENGTH, SHAPES, llama, new_model
from tuning.vocabulary import train_tokenizer
from tuning.windows import TokenStream, Windows


@dataclass(frozen=True)
class Recipe:
    """Settings of a training."""

    seed: int = 1
    tokens_per_batch: int = 8192
    short: int = 256  # tokens per window
    long: int = CONTEXT_LENGTH
    long_batches: int = 1  # of four; see Windows
    long_batches_in_decay: int = 2
    warmup_steps: int = 40
    matrix_rate: float = 0.02
    vector_rate: float = 0.002
    weight_decay: float = 0.05
    compile: bool = True


def next_token_loss(model: LlamaForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood in nats; windows: [rows, length + 1]."""
    hidden = model.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


def optimizers(model: LlamaForCausalLM, recipe: Recipe, low_precision: bool):
    """Muon for the layers' matrices, AdamW for the (tied) embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers" not in name]
    muon = Muon(
        matrices,
        lr=recipe.matrix_rate,
        weight_decay=recipe.weight_decay,
        dtype=torch.bfloat16 if low_precision else torch.float32,
    )
    adam = torch.optim.AdamW(others, lr=recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return muon, adam


class Trainer:
    """One model in training; `step` until `finished`. Resumes from `folder` if it can."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: LlamaForCausalLM,
        windows: Windows,
        recipe: Recipe,
        budget: Budget,
        folder: Path,
    ):
        self.accelerator = accelerator
        self.windows = windows
        self.recipe = recipe
        self.budget = budget
        self.folder = folder
        self.state = TrainingState()
        low_precision = accelerator.mixed_precision == "bf16"
        muon, adam = optimizers(model, recipe, low_precision)
        self.model, *self.optimizers = accelerator.prepare(model, muon, adam)
        self.peaks = [recipe.matrix_rate, recipe.vector_rate]
        accelerator.register_for_checkpointing(self.state)
        self.resumed = checkpoint.load(accelerator, folder)
        self.loss = next_token_loss
        if recipe.compile:
            self.loss = torch.compile(next_token_loss, dynamic=False)

    def step(self) -> float | None:
        """One update; the loss before it, or None when the budget is used up."""
        started = time.monotonic()
        factor = rate_factor(self.budget, self.state, self.recipe.warmup_steps)
        if factor == 0:
            return None
        in_decay = self.state.decay_start is not None
        long = self.recipe.long_batches_in_decay if in_decay else self.recipe.long_batches
        windows = torch.from_numpy(self.windows.batch(self.state.step, long))
        with self.accelerator.autocast():
            loss = self.loss(self.model, windows.to(self.accelerator.device))
        self.accelerator.backward(loss)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        self.state.step += 1
        self.state.tokens += self.recipe.tokens_per_batch
        self.state.seconds += time.monotonic() - started
        return loss.item()

    def progress(self) -> float:
        """Used share of the budget."""
        return self.budget.progress(self.state.step, self.state.seconds)

    def save(self) -> None:
        """Writes a checkpoint for a later run."""
        checkpoint.save(self.accelerator, self.folder)

    def unwrapped(self) -> LlamaForCausalLM:
        """The model itself."""
        return self.accelerator.unwrap_model(self.model)


def fast_at_bfloat16() -> bool:
    """Whether this machine multiplies bfloat16 matrices in hardware."""
    processor = torch.cpu.get_capabilities()
    return torch.cuda.is_available() or any(
        processor.get(name, False) for name in ("amx_bf16", "avx512_bf16")
    )


def load_or_train_tokenizer(file: Path, texts: list[str]) -> Tokenizer:
    """The tokenizer in `file`, or a new one (seconds, no randomness) that is then kept there."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        train_tokenizer(texts).save(str(file))
    return Tokenizer.from_file(str(file))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=sorted(SHAPES))
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="of training, all resumed runs together")
    budget.add_argument("--steps", type=int, help="updates, all resumed runs together")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--output", type=Path, help="default: models/code-ROLE")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path.home() / ".cache/tandem/pretrain",
        help="checkpoints and tokenizer (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--no-compile", action="store_true", help="where no C++ compiler is")
    parser.add_argument("--save-every", type=float, default=5, help="minutes (default: 5)")
    parser.add_argument("--evaluate-every", type=float, default=10, help="minutes (default: 10)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if not arguments.stdlib.is_dir():
        sys.exit(f"--stdlib: no folder {arguments.stdlib}")
    root = Path(__file__).resolve().parent.parent
    output = arguments.output or root / f"models/code-{arguments.role}"
    recipe = Recipe(seed=arguments.seed, compile=not arguments.no_compile)
    budget = Budget(minutes=arguments.minutes, steps=arguments.steps)

    training, held_out = corpus.split(corpus.read_documents(arguments.stdlib))
    texts = [document.text for document in training]
    tokenizer = load_or_train_tokenizer(arguments.work / "tokenizer.json", texts)
    stream = TokenStream(tokenizer, texts)
    print(
        f"{len(training)} files, {len(stream):,} tokens to train on; {len(held_out)} held out",
        flush=True,
    )
    held_out_texts = [document.text for document in held_out]
    scored = HeldOut(tokenizer, held_out_texts, CONTEXT_LENGTH)
    glance = HeldOut(tokenizer, held_out_texts[::4], recipe.short, overlap=False)

    precision = arguments.precision
    if precision == "auto":
        precision = "bf16" if fast_at_bfloat16() else "fp32"
    accelerator = Accelerator(mixed_precision="bf16" if precision == "bf16" else "no")
    config = llama(**SHAPES[arguments.role], vocabulary=tokenizer.get_vocab_size())
    trainer = Trainer(
        accelerator,
        new_model(config, recipe.seed),
        Windows(stream, recipe.tokens_per_batch, recipe.short, recipe.long, recipe.seed),
        recipe,
        budget,
        arguments.work / f"{arguments.role}-{recipe.seed}",
    )
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(
        f"{arguments.role}: {size:,} parameters, {precision} on {accelerator.device}, "
        f"{'resumed at' if trainer.resumed else 'starting at'} step {trainer.state.step}",
        flush=True,
    )

    # The first signal ends the training after this step, with a checkpoint.
    stopping = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.append(True))

    def report(scored: HeldOut, label: str) -> None:
        with accelerator.autocast():
            bits = bits_per_byte(trainer.unwrapped(), scored)
        state = trainer.state
        bar.write(
            f"step {state.step}, {state.tokens / 1e6:.1f}M tokens, {state.seconds / 60:.1f} min: "
            f"{bits:.4f} bits per byte on {label}",
            file=sys.stdout,
        )
        sys.stdout.flush()

    bar = tqdm(
        total=100,
        initial=round(100 * trainer.progress(), 2),
        bar_format="{percentage:5.1f}% |{bar}| {elapsed} {postfix}",
        mininterval=5,
    )
    saved = evaluated = time.monotonic()
    smooth = None
    while not stopping:
        loss = trainer.step()
        if loss is None:
            break
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        state = trainer.state
        bar.n = min(100.0, round(100 * trainer.progress(), 2))
        bar.set_postfix(
            step=state.step,
            tokens=f"{state.tokens / 1e6:.1f}M",
            loss=f"{smooth:.3f}",
            decay=state.decay_start is not None,
            refresh=False,
        )
        bar.update(0)
        if time.monotonic() - saved > 60 * arguments.save_every:
            trainer.save()
            saved = time.monotonic()
        if time.monotonic() - evaluated > 60 * arguments.evaluate_every:
            report(glance, "a quarter of the held-out files, in short windows")
            evaluated = time.monotonic()
    trainer.save()
    if stopping:
        bar.close()
        sys.exit("interrupted; the same command continues")
    report(scored, "all held-out files")
    bar.close()
    checkpoint.export(trainer.unwrapped(), tokenizer, output)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
