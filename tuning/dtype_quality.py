"""Perplexity of held-out files by weight format.

    python -m tuning.dtype_quality models/code-large

Scores the held-out files with tandem-server, once per format, and prints a Markdown table. Exit status 1 if a
perplexity differs from that of fp32 by more than its bound.
"""

import argparse
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer

from measure import serving
from measure.paths import ROOT
from tuning import corpus
from tuning.heldout import HeldOut

BOUNDS = {"fp32": 0.0, "bf16": 0.005, "fp16": 0.005, "int8": 0.015, "int4": 0.03}
STREAMS = 8


def nats_per_token(client: serving.Client, held_out: HeldOut) -> float:
    """The mean negative log-likelihood of the held-out tokens that count."""

    def row_nats(row: tuple[list[int], int]) -> float:
        tokens, skip = row
        return -sum(client.score("model", tokens)[skip:])

    with ThreadPoolExecutor(STREAMS) as pool:
        return math.fsum(pool.map(row_nats, held_out.rows)) / held_out.tokens


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", action="append", choices=list(BOUNDS), help="repeatable (all)")
    parser.add_argument("--documents", type=int, help="at most N of the held-out files")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--server", type=Path, default=ROOT / "build/release/bin/tandem-server")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model).backend_tokenizer
    length = AutoConfig.from_pretrained(arguments.model).max_position_embeddings - 1
    _, documents = corpus.split(corpus.read_documents(arguments.stdlib))
    texts = [document.text for document in documents[: arguments.documents]]
    held_out = HeldOut(tokenizer, texts, length)
    print(f"{len(texts)} files, {held_out.bytes} bytes, {held_out.tokens} tokens\n")
    print("| weights | bits per byte | perplexity | against fp32 | bound |")
    print("|---|---:|---:|---:|---:|")
    perplexities: dict[str, float] = {}
    failed = False
    for dtype in ["fp32", *(d for d in arguments.dtype or BOUNDS if d != "fp32")]:
        with serving.server(arguments.server, {"model": arguments.model}, dtype=dtype) as client:
            nats = nats_per_token(client, held_out)
        perplexities[dtype] = math.exp(nats)
        change = perplexities[dtype] / perplexities["fp32"] - 1
        failed = failed or abs(change) > BOUNDS[dtype]
        bits = nats * held_out.tokens / math.log(2) / held_out.bytes
        print(
            f"| {dtype} | {bits:.4f} | {perplexities[dtype]:.4f} | {change:+.4%} "
            f"| {BOUNDS[dtype]:.1%} |",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
