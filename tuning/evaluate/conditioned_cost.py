"""Measures the cost of LLM-to-SLM: one prefill of the large model, then decoding by the small one.

    scripts/evaluate --llm-to-slm-cost [--prompts N] [--new-tokens N] [--write]

Pairs: the demo pairs; if downloaded, Qwen2.5-Coder 1.5B and SmolLM2 135M, which have distinct tokenizers; and
random weights in the shapes of T5-Large and T5-Small, the paper's pair. The projectors have the size of trained
ones but add zero, so the answers must equal those of the small model, which is checked. Prompts and answers
have 100 tokens of the small model, as in the paper, or answers --new-tokens. The prefix cache is not used.
"""

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

from measure import machine
from measure.paths import ROOT
from measure.report import table
from tuning import corpus, frozen_model, fusion, projector_file
from tuning.conditioned_samples import Reader
from tuning.evaluate import page

FETCHED = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem")) / "models"
BEGIN, END = "<!-- cost of llm to slm: begin -->", "<!-- cost of llm to slm: end -->"
TOKENS = 100
CONFIG = """
models {{ name: "large" path: "{large}" prefix_cache: false }}
models {{ name: "small" path: "{small}" prefix_cache: false {extras} }}
deployments {{ name: "small" large: "small" }}
"""
EXTRA = 'extras {{ name: "{name}" path: "{folder}/{name}" }}'
DEPLOYMENT = """deployments {{ name: "{name}" large: "large" small: "small" llm_to_slm {{ adapter: "{name}" }} }}
"""


@dataclass(frozen=True)
class Pair:
    name: str
    large: Path
    small: Path


PAIRS = [
    Pair("code-large → code-small", ROOT / "models/code-large", ROOT / "models/code-small"),
    Pair(
        "docstring-large → docstring-small",
        ROOT / "models/docstring-large",
        ROOT / "models/docstring-small",
    ),
    Pair(
        "Qwen2.5-Coder 1.5B → SmolLM2 135M",
        FETCHED / "qwen2.5-coder-1.5b.gguf",
        FETCHED / "smollm2-135m.gguf",
    ),
]


@dataclass(frozen=True)
class Way:
    """A deployment of CONFIG, a method of it, and how many tokens are wanted."""

    deployment: str
    method: str
    tokens: int | None = None  # default: those of the run


LARGE, READING = Way("whole", "autoregressive"), Way("whole", "autoregressive", 1)
SMALL = Way("small", "autoregressive")
WHOLE, THIRD = Way("whole", "llm_to_slm"), Way("third", "llm_to_slm")
WAYS = [LARGE, READING, SMALL, WHOLE, THIRD]
T5_LARGE = dict(d_model=1024, d_ff=4096, num_layers=24, num_heads=16)
T5_SMALL = dict(d_model=512, d_ff=2048, num_layers=6, num_heads=8)
T5_WORDS = 32128


def copy_tokenizer(source: Path, folder: Path, words: int) -> None:
    """Padded with unused tokens, as the server ignores rows without a token."""
    shutil.copy(source / "tokenizer_config.json", folder)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    used = set(vocabulary.values())
    vocabulary.update({f"<|unused{i}|>": i for i in range(words) if i not in used})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))


def random_t5(folder: Path, shapes=(T5_LARGE, T5_SMALL), words: int = T5_WORDS) -> Pair:
    """Models of these shapes in `folder`, with the docstring pair's tokenizer."""
    for name, shape in zip(("large", "small"), shapes, strict=True):
        torch.manual_seed(1)
        starts = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
        config = T5Config(vocab_size=words, d_kv=64, **shape, **starts)
        model = T5ForConditionalGeneration(config).to(torch.bfloat16)
        model.generation_config = GenerationConfig(**starts)
        model.save_pretrained(folder / name)
        copy_tokenizer(ROOT / "models/docstring-large", folder / name, words)
    return Pair("T5-Large → T5-Small (shapes)", folder / "large", folder / "small")


def pairs(folder: Path) -> Iterator[Pair]:
    """Those that are there, and one that is made in `folder`."""
    yield from (p for p in PAIRS if p.large.exists() and p.small.exists())
    yield random_t5(folder)


def write_projectors(pair: Pair, folder: Path) -> list[str]:
    """Rows of the last layer, and of the one that ends the first third; of an encoder, of its last alone.
    Returns the projectors' names."""
    reader, small = Reader(pair.large), frozen_model.load(pair.small)
    layers, width = reader.shape
    shared = reader.tokenizer.get_vocab() == small.tokenizer.get_vocab()
    source = projector_file.source_of(reader.model)
    projector = fusion.new_projector(width, small.model.config.hidden_size, 0)
    named = {"whole": layers}
    if not reader.model.config.is_encoder_decoder:
        named["third"] = -(-layers // 3)
    for name, layer in named.items():
        tokens = "shared" if shared else "aligned"
        projector_file.save(folder / name, projector, source, small.model, layer, "add", tokens)
    return list(named)


def deployment_file(pair: Pair, folder: Path, projectors: list[str]) -> str:
    extras = " ".join(EXTRA.format(name=name, folder=folder) for name in projectors)
    models = CONFIG.format(large=pair.large, small=pair.small, extras=extras)
    return models + "".join(DEPLOYMENT.format(name=name) for name in projectors)


def cut_prompts(stdlib: Path, pair: Pair, count: int, seed: int) -> list[str]:
    """Beginnings of held-out files that have as many tokens."""
    tokenizer = frozen_model.load_tokenizer(pair.small)
    _, held_out = corpus.split(corpus.read_documents(stdlib))
    cuts = [tokenizer.encode(d.text[:2000], add_special_tokens=False).ids for d in held_out]
    texts = [tokenizer.decode(ids[:TOKENS]) for ids in cuts if len(ids) >= TOKENS]
    random.Random(seed).shuffle(texts)
    if len(texts) < count:
        raise SystemExit(f"--prompts: {count}; allowed: 1 to {len(texts)}, the held-out files")
    return texts[:count]


def request_of(client, way: Way, prompt: str, new_tokens: int, **fields):
    m = client.messages
    method = {"autoregressive": m.Autoregressive, "llm_to_slm": m.LlmToSlm}[way.method]()
    return m.GenerateRequest(
        model=way.deployment,
        text=prompt,
        temperature=0,
        max_new_tokens=way.tokens or new_tokens,
        ignore_eos=True,
        return_tokens=True,
        **{way.method: method},
        **fields,
    )


def ask(client, way: Way, prompt: str, new_tokens: int = TOKENS) -> tuple[list[int], float]:
    """Greedy tokens, and seconds from the call to the whole answer."""
    request = request_of(client, way, prompt, new_tokens)
    start = time.perf_counter()
    choice = client.complete(request)
    return [token.id for token in choice.tokens], time.perf_counter() - start


def measure(
    client, ways: list[Way], prompts: list[str], seed: int, progress, new_tokens: int = TOKENS
) -> dict:
    """Seconds of each prompt's answer, by all methods in random order, after a warm-up."""
    order = random.Random(seed)
    for way in ways:
        ask(client, way, prompts[0], new_tokens)
    seconds: dict[Way, list[float]] = {way: [] for way in ways}
    for prompt in prompts:
        tokens = {}
        for way in order.sample(ways, len(ways)):
            tokens[way], took = ask(client, way, prompt, new_tokens)
            seconds[way].append(took)
            progress()
        if any(tokens[way] != tokens[SMALL] for way in (WHOLE, THIRD) if way in tokens):
            raise RuntimeError("a projector that adds nothing changed what the small model writes")
    return seconds


def line(pair: Pair, seconds: dict[Way, list[float]], new_tokens: int = TOKENS) -> list[str]:
    def spread(ratios: list[float]) -> str:
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

    def per_token(way: Way) -> str:
        return f"{1000 * statistics.median(seconds[way]) / (way.tokens or new_tokens):.2f}"

    def faster(conditioned: Way) -> str:
        return spread([a / b for a, b in zip(seconds[LARGE], seconds[conditioned], strict=True)])

    all_three = zip(seconds[WHOLE], seconds[SMALL], seconds[READING], strict=True)
    over = [whole / (small + reading) for whole, small, reading in all_three]
    return [
        pair.name,
        per_token(LARGE),
        per_token(SMALL),
        f"{1000 * statistics.median(seconds[READING]):.1f}",
        per_token(WHOLE),
        spread(over),
        faster(WHOLE),
        *([per_token(THIRD), faster(THIRD)] if THIRD in seconds else ["-", "-"]),
    ]


HEAD = [
    "large → small",
    "large, ms/token",
    "small, ms/token",
    "large prefill, ms",
    "LLM-to-SLM, ms/token",
    "LLM-to-SLM / (small + prefill)",
    "large / LLM-to-SLM",
    "first third of layers, ms/token",
    "large / third of layers",
]


def main(serve, args, command: str, bar) -> int:
    """`serve`: function from a deployment file to a context with a Client."""
    started = time.monotonic()
    busy = [machine.load_before(args.write)]
    lines = []
    with tempfile.TemporaryDirectory(prefix="tandem-cost-") as folder:
        for pair in pairs(Path(folder)):
            prompts = cut_prompts(args.stdlib, pair, args.prompts, args.seed)
            names = write_projectors(pair, Path(folder))
            config = Path(folder) / "cost.textproto"
            config.write_text(deployment_file(pair, Path(folder), names))
            ways = [way for way in WAYS if way.deployment in ("small", *names)]
            with serve(config) as client, bar(len(prompts) * len(ways), pair.name) as shown:
                seconds = measure(client, ways, prompts, args.seed, shown.update, args.new_tokens)
                lines.append(line(pair, seconds, args.new_tokens))
    busy.append(machine.load())
    conditions = page.Conditions.here(
        started,
        command=command,
        busy=busy,
        prompts=args.prompts,
        prompt_tokens=TOKENS,
        new_tokens=args.new_tokens,
        turns=1,
    )
    measured = f"""{args.prompts} prompts of {TOKENS} tokens, {args.new_tokens} new tokens, one request at a time. Medians, minimum and maximum in parentheses.

{table(HEAD, lines)}

{page.condition_table(conditions)}"""
    print(measured)
    if len(lines) <= len(PAIRS):
        print("without the pair that scripts/models fetches", file=sys.stderr)
    if args.write:
        file = ROOT / "docs" / "reports" / "llm_to_slm.md"
        file.write_text(page.put(file.read_text(), measured, BEGIN, END))
    return 0
