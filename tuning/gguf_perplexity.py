"""Perplexity of the stored blocks of a GGUF file relative to its fp32 model: Tandem and llama.cpp.

    python -m tuning.gguf_perplexity smollm2-135m [...] [--tokens 20480]

All models score the same text, held-out files of Python's standard library, in windows of 512 tokens. The second
half of each window counts, as in llama-perplexity (scripts/setup --peers). The tokens are those of llama.cpp's
tokenizer. fp32 is Transformers with the dequantized file. Prints a Markdown table, in which +- is the standard
error of the distance from fp32 over windows, and for each file the difference of Tandem's distance from that of
llama.cpp. Exit status 1 if that exceeds its standard error.
"""

import argparse
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from measure import machine, serving
from measure.llama_server import llama_server
from measure.paths import HOME, ROOT
from tuning import corpus

PROGRAM = HOME / "bin" / "llama-perplexity"
LENGTH = 512
FIRST = LENGTH // 2 + 1  # the first token of a window that counts


def held_out(
    ids_of: Callable[[str], list[int]], first: int | None, tokens: int
) -> tuple[str, list[list[int]]]:
    """A text of at least so many tokens, and its tokens in whole windows; `first` begins each."""
    _, documents = corpus.split(corpus.read_documents(corpus.standard_library()))
    text = ""
    for document in documents:
        text += document.text
        ids = ids_of(text)
        if len(ids) >= tokens:
            break
    windows = [ids[at : at + LENGTH] for at in range(0, tokens - LENGTH + 1, LENGTH)]
    if first is not None:  # as llama-perplexity has it
        for window in windows:
            window[0] = first
    return text, windows


def ours(path: Path, windows: list[list[int]], binary: Path) -> list[float]:
    """By window, as the others: the mean of -log p of its tokens that count."""
    with serving.server(binary, {"model": path}, dtype="stored") as client:
        return [-fmean(client.score("model", ids)[FIRST - 1 :]) for ids in windows]


def of_transformers(path: Path, windows: list[list[int]]) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    losses = []
    for ids in windows:
        with torch.no_grad():
            logits = model(torch.tensor([ids[:-1]])).logits[0, FIRST - 1 :]
        wanted = torch.tensor(ids[FIRST:])[:, None]
        of_wanted = torch.log_softmax(logits, dim=-1).gather(1, wanted)[:, 0]
        losses.append(-of_wanted.double().mean().item())
    return losses


def theirs(path: Path, text: str, chunks: int) -> list[float]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [PROGRAM, "--model", path, "--file", file.name, "--chunks", chunks]
        command += ["--ctx-size", LENGTH, "--batch-size", LENGTH]
        command += ["--threads", machine.cores()]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama-perplexity: status {done.returncode}\n{done.stderr[-2000:]}")
    return window_losses(done.stdout + done.stderr, chunks)


def window_losses(text: str, chunks: int) -> list[float]:
    """By window, from what llama-perplexity writes: the perplexity of all windows until then."""
    until = {int(n): float(x) for n, x in re.findall(r"\[(\d+)\]([0-9.]+),", text)}
    if sorted(until) != list(range(1, chunks + 1)):
        raise SystemExit(
            f"llama-perplexity reported {len(until)} of {chunks} windows:\n{text[-2000:]}"
        )
    sums = [0.0] + [n * math.log(until[n]) for n in range(1, chunks + 1)]
    return [after - before for before, after in pairwise(sums)]


def error(numbers: list[float]) -> float:
    """The standard error of their mean."""
    return stdev(numbers) / math.sqrt(len(numbers))


def further(exact: list[float], stored: list[float], peer: list[float]) -> tuple[float, float]:
    """How much further from `exact` the mean of `stored` is than that of `peer`, and its standard error."""
    ways = [(s - e, p - e) for e, s, p in zip(exact, stored, peer, strict=True)]
    here = math.copysign(1, fmean([s for s, _ in ways]))
    there = math.copysign(1, fmean([p for _, p in ways]))
    more = [here * s - there * p for s, p in ways]
    return fmean(more), error(more)


def beside(losses: list[float], exact: list[float]) -> str:
    """A perplexity and how far it is from that of `exact`."""
    ways = [a - b for a, b in zip(losses, exact, strict=True)]
    return f"{math.exp(fmean(losses)):.4f} ({math.expm1(fmean(ways)):+.3%} +- {error(ways):.3%})"


def compare(name: str, arguments: argparse.Namespace) -> bool:
    path = HOME / "models" / f"{name}.gguf"
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    first = tokenizer.bos_token_id if getattr(tokenizer, "add_bos_token", False) else None
    with llama_server(HOME / "bin" / "llama-server", path, context=LENGTH) as server:
        text, windows = held_out(server.tokenize, first, arguments.tokens)
    stored = ours(path, windows, arguments.server)
    peer = theirs(path, text, len(windows))
    exact = of_transformers(path, windows)
    more, by_chance = further(exact, stored, peer)
    print(
        f"| {name} | {len(windows) * LENGTH:,} | {math.exp(fmean(exact)):.4f} "
        f"| {beside(stored, exact)} | {beside(peer, exact)} | {more:+.3%} +- {by_chance:.3%} |",
        flush=True,
    )
    return more <= by_chance


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=40 * LENGTH)
    parser.add_argument("--server", type=Path, default=ROOT / "build/release/bin/tandem-server")
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        raise SystemExit(f"{PROGRAM} is missing: scripts/setup --peers")
    print("| file | tokens | fp32, Transformers | stored, Tandem | stored, llama.cpp | further |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    return 0 if all([compare(name, arguments) for name in arguments.models]) else 1


if __name__ == "__main__":
    sys.exit(main())
