"""How far a GGUF file's stored blocks are from its fp32 model, in perplexity: ours and llama.cpp's.

    python -m tuning.gguf_perplexity smollm2-135m [...] [--tokens 20480]

All read the same text, held-out files of Python's standard library, in windows of 512 tokens, and are
judged by the second half of each, as llama-perplexity (scripts/setup --peers) does. fp32 is
Transformers' model of the dequantized file. Prints a Markdown table; ends with status 1 where ours is
further from fp32 than llama.cpp's is.
"""

import argparse
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.peers import machine, serving
from bench.peers.models import HOME, ROOT
from tuning import corpus

PROGRAM = HOME / "bin" / "llama-perplexity"
LENGTH = 512
FIRST = LENGTH // 2 + 1  # the first token of a window that counts


def held_out(tokenizer, tokens: int) -> tuple[str, list[list[int]]]:
    """A text of at least so many tokens, and its tokens in whole windows."""
    _, documents = corpus.split(corpus.read_documents(corpus.standard_library()))
    text = ""
    for document in documents:
        text += document.text
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= tokens:
            break
    windows = [ids[at : at + LENGTH] for at in range(0, tokens - LENGTH + 1, LENGTH)]
    if getattr(tokenizer, "add_bos_token", False):  # as llama-perplexity has it
        for window in windows:
            window[0] = tokenizer.bos_token_id
    return text, windows


def ours(path: Path, windows: list[list[int]], binary: Path) -> float:
    with serving.server(binary, {"model": path}, dtype="stored") as client:
        logprobs = [client.score("model", ids)[FIRST - 1 :] for ids in windows]
    return perplexity(logprobs)


def of_transformers(path: Path, windows: list[list[int]]) -> float:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    logprobs = []
    for ids in windows:
        with torch.no_grad():
            logits = model(torch.tensor([ids[:-1]])).logits[0, FIRST - 1 :]
        wanted = torch.tensor(ids[FIRST:])[:, None]
        logprobs.append(torch.log_softmax(logits, dim=-1).gather(1, wanted)[:, 0].double().tolist())
    return perplexity(logprobs)


def perplexity(logprobs: list[list[float]]) -> float:
    every = [x for window in logprobs for x in window]
    return math.exp(-sum(every) / len(every))


def theirs(path: Path, text: str, chunks: int) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [PROGRAM, "--model", path, "--file", file.name, "--chunks", chunks]
        command += ["--ctx-size", LENGTH, "--batch-size", LENGTH]
        command += ["--threads", machine.cores()]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama-perplexity: status {done.returncode}\n{done.stderr[-2000:]}")
    return told(done.stdout + done.stderr)


def told(text: str) -> float:
    """The perplexity in what llama-perplexity writes."""
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", text)
    if not found:
        raise SystemExit(f"llama-perplexity told no perplexity:\n{text[-2000:]}")
    return float(found[1])


def compare(name: str, arguments: argparse.Namespace) -> bool:
    path = HOME / "models" / f"{name}.gguf"
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text, windows = held_out(tokenizer, arguments.tokens)
    stored = ours(path, windows, arguments.server)
    peer = theirs(path, text, len(windows))
    exact = of_transformers(path, windows)
    print(
        f"| {name} | {len(windows) * LENGTH:,} | {exact:.4f} "
        f"| {stored:.4f} ({stored / exact - 1:+.3%}) | {peer:.4f} ({peer / exact - 1:+.3%}) |",
        flush=True,
    )
    return abs(stored - exact) <= abs(peer - exact)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=40 * LENGTH)
    parser.add_argument("--server", type=Path, default=ROOT / "build/release/bin/tandem-server")
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        raise SystemExit(f"{PROGRAM} is missing: scripts/setup --peers")
    print("| file | tokens | fp32, Transformers | stored, Tandem | stored, llama.cpp |")
    print("|---|---:|---:|---:|---:|", flush=True)
    return 0 if all([compare(name, arguments) for name in arguments.models]) else 1


if __name__ == "__main__":
    sys.exit(main())
