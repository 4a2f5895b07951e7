"""Compares model families with Transformers and CTranslate2: milliseconds per token, one stream.

    scripts/bench_models --families [--models M ...] [--quick] [--prepare] [--write]

T5, GPT-2 and Falcon in common sizes, with random weights in fp32. --prepare only creates the weights
and CTranslate2's conversions in TANDEM_HOME/benchmark. --quick has two layers, one turn and no trials,
to check that all engines run. Engines take turns, each in a separate process that ends before the next
one starts. Only decoding counts: a call for all tokens less one for the first, as in whole_model.py.
"""

import contextlib
import json
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers import cli
from bench.peers.engines import THREADS, CTranslate2, Tandem, Transformers
from bench.peers.models import prompts
from bench.peers.whole_model import Contender, choose
from bench.peers.worker import Failed, Refused
from measure.paths import HOME, ROOT
from measure.report import table

PAGE = ROOT / "docs" / "reports" / "models.md"
GOAL = 1.15
PROMPT, TRIAL_NEW = 64, 8


@dataclass(frozen=True)
class Length:
    """Size of a measurement; `trial`: selects a peer's settings first."""

    new: int = 32
    turns: int = 3
    trial: bool = True


QUICK = Length(new=4, turns=1, trial=False)
QUICK_LAYERS = 2


class EncoderTransformers(Transformers):
    """Transformers with an encoder-decoder model."""

    OPTIONS = {"threads": THREADS, "cache": ["dynamic", "static"]}
    LOADER = "AutoModelForSeq2SeqLM"

    def new_tokens_of(self, out, width):
        return out[:, 1:]  # after the decoder's start token


class DecoderTransformers(Transformers):
    OPTIONS = {"threads": THREADS, "cache": ["dynamic", "static"]}


class DecoderCTranslate2(CTranslate2):
    OPTIONS = {"threads": THREADS, "CT2_USE_MKL": ["", "1", "0"]}


class EncoderCTranslate2(DecoderCTranslate2):
    """CTranslate2's Translator, for encoder-decoder models."""

    LOADER = "Translator"

    def generate(self, prompts, new_tokens):
        words = [[self.words[token] for token in prompt] for prompt in prompts]
        start = time.perf_counter()
        results = self.generator.translate_batch(
            words,
            max_decoding_length=new_tokens,
            min_decoding_length=new_tokens,  # an end token does not stop it
            beam_size=1,
            sampling_topk=1,
            max_batch_size=0,
        )
        seconds = time.perf_counter() - start
        ids = {word: token for token, word in self.words.items()}
        return [[ids[word] for word in r.hypotheses[0]] for r in results], seconds


@dataclass(frozen=True)
class Family:
    """`kind` and `arguments`: configuration class of Transformers and its arguments."""

    kind: str
    arguments: dict
    encoder: bool = False

    def engines(self) -> list[type]:
        if self.encoder:
            return [Tandem, EncoderTransformers, EncoderCTranslate2]
        return [Tandem, DecoderTransformers, DecoderCTranslate2]

    def shallow(self) -> "Family":
        """The same with QUICK_LAYERS layers."""
        fewer = {"num_layers", "n_layer", "num_hidden_layers"} & set(self.arguments)
        names = fewer or {"n_layer"}  # GPT-2 has its number by default
        return replace(self, arguments=self.arguments | dict.fromkeys(names, QUICK_LAYERS))


def t5(width: int, inner: int, layers: int, heads: int) -> Family:
    sizes = dict(d_model=width, d_ff=inner, num_layers=layers, num_heads=heads, d_kv=64)
    return Family("T5Config", sizes | dict(vocab_size=32128, decoder_start_token_id=0), True)


FAMILIES = {
    "t5-small": t5(512, 2048, 6, 8),
    "t5-base": t5(768, 3072, 12, 12),
    "gpt2": Family("GPT2Config", dict(bos_token_id=0, eos_token_id=0)),
    "falcon-1b": Family(
        "FalconConfig",
        dict(
            vocab_size=50304,
            hidden_size=2048,
            num_hidden_layers=24,
            num_attention_heads=32,
            bos_token_id=0,
            eos_token_id=0,
        ),
    ),
}


def random_weights(name: str, quick: bool = False) -> Path:
    """A Hugging Face directory. Its tokenizer is that of code-large, padded with unused tokens."""
    family = FAMILIES[name].shallow() if quick else FAMILIES[name]
    folder = HOME / "benchmark" / (f"{name}-quick" if quick else name)
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    import transformers

    config = getattr(transformers, family.kind)(**family.arguments)
    auto = "AutoModelForSeq2SeqLM" if family.encoder else "AutoModelForCausalLM"
    torch.manual_seed(1)
    model = getattr(transformers, auto).from_config(config, dtype=torch.float32)
    beside = folder.with_suffix(".new")
    shutil.rmtree(beside, ignore_errors=True)
    model.save_pretrained(beside)
    source = ROOT / "models" / "code-large"
    about = json.loads((source / "tokenizer_config.json").read_text())
    about |= {"pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (beside / "tokenizer_config.json").write_text(json.dumps(about))
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    used = set(vocabulary.values())
    vocabulary.update({f"<|unused{i}|>": i for i in range(config.vocab_size) if i not in used})
    (beside / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    return folder


def milliseconds(one: Contender, settings: dict, source, length: Length) -> list[float]:
    """Milliseconds per decoded token of each turn; every turn has another prompt."""
    one.set(settings)
    one.warm([next(source)])
    found = []
    for _ in range(length.turns):
        tokens, seconds = one.run([next(source)], [next(source)], length.new)
        assert len(tokens[0]) == length.new, (one.name, len(tokens[0]))
        found.append(1e3 * (seconds["seconds"] - seconds["first"]) / (length.new - 1))
    return found


def measure(name: str, length: Length) -> dict[str, list[float]]:
    """Milliseconds per token by engine; an engine that refuses the model is omitted, with a message."""
    folder = random_weights(name, quick=length == QUICK)
    source = prompts(PROMPT, start=3)
    found: dict[str, list[float]] = {}
    for kind in FAMILIES[name].engines():
        with contextlib.closing(Contender(kind, "fp32", folder)) as one:
            try:
                settings = one.defaults()
                if kind is not Tandem and length.trial:
                    batches = [[next(source)] for _ in range(2)]
                    settings, _ = choose(one, batches, TRIAL_NEW)
                found[kind.__name__] = milliseconds(one, settings, source, length)
            except (Refused, Failed) as error:
                print(f"{name}, {kind.__name__}: {error}", file=sys.stderr)
    return found


def line(name: str, found: dict[str, list[float]]) -> list[str]:
    def cell(engine: str) -> str:
        times = found.get(engine)
        if not times:
            return "-"
        return f"{statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f})"

    engines = [kind.__name__ for kind in FAMILIES[name].engines()]
    peers = {e: statistics.median(found[e]) for e in engines[1:] if e in found}
    both = peers and found.get("Tandem")
    ratio = min(peers.values()) / statistics.median(found["Tandem"]) if both else None
    verdict = "-" if ratio is None else f"**{ratio:.2f}**" + ("" if ratio >= GOAL else " (missed)")
    return [name, *(cell(e) for e in engines), verdict]


def page(results: dict[str, dict[str, list[float]]], conditions: str, length: Length) -> str:
    head = ["shape", "Tandem, ms", "Transformers, ms", "CTranslate2, ms", "best peer / Tandem"]
    return f"""Median of {length.turns} turns of {length.new} tokens, minimum and maximum in parentheses; context {PROMPT} tokens.

{table(head, [line(name, found) for name, found in results.items()])}

{conditions}
"""


def main(arguments: list[str] | None = None) -> None:
    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("--models", nargs="+", choices=sorted(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--quick", action="store_true", help="two layers of each, one turn")
    parser.add_argument("--prepare", action="store_true", help="only create the weights")
    args = parser.parse_args(arguments)
    if args.quick and args.write:
        parser.error("--write: true; allowed: without --quick")
    if args.prepare:
        for name in args.models:
            folder = random_weights(name, args.quick)
            with contextlib.closing(Contender(FAMILIES[name].engines()[2], "fp32", folder)) as one:
                try:
                    one.set(one.defaults())
                except (Refused, Failed) as error:
                    print(f"{name}: {error}", file=sys.stderr)
        return
    run = cli.Run("scripts/bench_models --families", arguments, args.write)
    started = time.monotonic()
    length = QUICK if args.quick else Length()
    results = {name: measure(name, length) for name in args.models}
    minutes = f"{(time.monotonic() - started) / 60:.0f} minutes"
    text = page(results, run.conditions(more=[("duration", minutes)]), length)
    cli.publish(text, args.write, PAGE, "families")


if __name__ == "__main__":
    from bench.peers import families  # workers import the engines by module name

    families.main()
