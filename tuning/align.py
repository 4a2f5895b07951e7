"""Aligns a small model with a large one: prediction alignment, BiLD section 3.5.1.

    python -m tuning.align

The large model answers prompts from the training files greedily. The small model is then fine-tuned with
these tokens as hard labels. The answers come from tandem-server (scripts/build release tandem-server) and are
cached for later trainings. See models/README.md.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from measure import serving
from tuning import calibration, checkpoint, corpus
from tuning.calibration import IGNORED, Batches, Sample
from tuning.pretrain import Recipe, fast_at_bfloat16, optimizers
from tuning.schedule import Budget, TrainingState, rate_factor
from tuning.windows import TokenStream


@dataclass(frozen=True)
class Settings:
    """Settings of an alignment."""

    seed: int = 1
    prompts: int = 6144
    shortest_prompt: int = 8  # tokens
    longest_prompt: int = 160
    new_tokens: int = 128
    samples_per_batch: int = 32
    steps: int = 512
    rate: float = 0.25  # relative to the peak rates of pre-training
    warmup_steps: int = 20
    checked: int = 256  # held-out prompts


def output_loss(model: LlamaForCausalLM, inputs: torch.Tensor, labels: torch.Tensor):
    """Mean negative log-likelihood in nats of the labels that are not IGNORED; both [samples, length]."""
    counts = labels != IGNORED
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[counts]).float(), labels[counts])


def align(
    small: LlamaForCausalLM, samples: list[Sample], settings: Settings, bfloat16: bool = False
) -> None:
    """Fine-tunes `small` in place on the outputs of the samples."""
    batches = Batches(samples, settings.samples_per_batch, settings.seed)
    recipe = Recipe()
    both = optimizers(small, recipe, low_precision=bfloat16)
    peaks = [settings.rate * recipe.matrix_rate, settings.rate * recipe.vector_rate]
    budget, state = Budget(steps=settings.steps), TrainingState()
    small.train()
    bar = tqdm(range(settings.steps), unit="step", mininterval=5)
    for step in bar:
        factor = rate_factor(budget, state, settings.warmup_steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = output_loss(small, *batches.batch(step))
        loss.backward()
        for optimizer, peak in zip(both, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        state.step += 1
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    small.eval()


@torch.no_grad()
def agreement(small: LlamaForCausalLM, samples: list[Sample], rows: int = 16) -> dict:
    """How well `small` predicts the outputs of the large model, at every position.

    agreement: share of tokens that are the best token of `small`, the acceptance of greedy
    speculative decoding. perplexity: of the outputs under small.
    """
    right = total = 0
    nats = 0.0
    for first in range(0, len(samples), rows):
        inputs, labels = calibration.pad(samples[first : first + rows])
        counts = labels != IGNORED
        hidden = small.model(input_ids=inputs, use_cache=False).last_hidden_state
        logits = small.lm_head(hidden[counts]).float()
        right += (logits.argmax(-1) == labels[counts]).sum().item()
        nats += torch.nn.functional.cross_entropy(logits, labels[counts], reduction="sum").item()
        total += int(counts.sum())
    return {"agreement": right / total, "perplexity": math.exp(nats / total), "tokens": total}


def calibrate(arguments, settings: Settings, tokenizer: Tokenizer) -> dict[str, list[Sample]]:
    """Outputs of the large model for training and for evaluation."""
    stored = {"training": settings.prompts, "held_out": settings.checked}
    sets: dict[str, list[Sample]] = {}
    parts = dict(zip(stored, corpus.split(corpus.read_documents(arguments.stdlib)), strict=True))
    with serving.lazily(arguments.server, {"large": arguments.large}) as client:
        for name, count in stored.items():
            stream = TokenStream(tokenizer, [document.text for document in parts[name]])
            prompts = calibration.cut_prompts(
                stream, count, settings.shortest_prompt, settings.longest_prompt, settings.seed
            )
            weights = arguments.large / "model.safetensors"
            identity = calibration.key(weights, prompts=prompts, new_tokens=settings.new_tokens)
            file = arguments.work / f"{name}-{identity}.npz"
            if not file.exists():
                samples = calibration.write_outputs(
                    client(),
                    "large",
                    prompts,
                    settings.new_tokens,
                    arguments.streams,
                    stream.end_of_text,
                )
                calibration.save(samples, file)
            sets[name] = calibration.load(file)
    return sets


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    root = serving.ROOT
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=Path, default=root / "models/code-large")
    parser.add_argument("--small", type=Path, default=root / "models/code-small")
    parser.add_argument("--output", type=Path, default=root / "models/code-small-aligned")
    for name, value in vars(Settings()).items():
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=type(value), default=value, help="default: %(default)s")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--server", type=Path, default=serving.BINARY, help="tandem-server")
    parser.add_argument("--streams", type=int, default=32, help="at once, while the large writes")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path.home() / ".cache/tandem/align",
        help="what the large model wrote (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    settings = Settings(**{name: getattr(arguments, name) for name in vars(Settings())})
    tokenizer = Tokenizer.from_file(str(arguments.large / "tokenizer.json"))
    started = time.monotonic()
    sets = calibrate(arguments, settings, tokenizer)
    written = time.monotonic()
    small = AutoModelForCausalLM.from_pretrained(arguments.small, dtype=torch.float32).eval()
    precision = arguments.precision
    if precision == "auto":
        precision = "bf16" if fast_at_bfloat16() else "fp32"
    report = {
        "samples": len(sets["training"]),
        "precision": precision,
        "output_tokens": sum(len(sample.output) for sample in sets["training"]),
        "before": agreement(small, sets["held_out"]),
    }
    align(small, sets["training"], settings, bfloat16=precision == "bf16")
    report["after"] = agreement(small, sets["held_out"])
    report["seconds"] = {
        "writing": round(written - started, 1),
        "training": round(time.monotonic() - written, 1),
    }
    checkpoint.export(small, tokenizer, arguments.output)
    print(json.dumps(report, indent=2))
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
