"""A model whose weights stay blocks of 4 and 8 bits, served by the device and by the CPU: the device's answer,
and what it says of the CPU's, held against the CPU's own. Lines of JSON, as steps.figures_of reads them."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from .serving import Server, say, tandem

CONFIG = """
models {{ name: "device" path: "{models}/code-large" device: "{device}" dtype: DTYPE_INT4 }}
models {{ name: "host" path: "{models}/code-large" device: "cpu:0" dtype: DTYPE_INT4 }}
"""
PROMPT = "def quicksort(items):\n"
# Nats. Rows between products are bf16 on a GPU and fp32 on a CPU, which moves log-probabilities by less than
# a hundredth (docs/gpu_check.md); a product that is wrong moves them by whole ones.
MOST_BELOW = 0.5
MOST_DIFFERENCE = 0.2


def answer(args, address: str, model: str) -> list[int]:
    words = [f"--model={model}", f"--prompt={PROMPT}", "--format=json", "--temperature=0"]
    words += [f"--max-new-tokens={args.tokens}", "--ignore-eos"]
    done = tandem(args, address, "generate", *words, seconds=args.patience)
    if done.returncode != 0:
        raise RuntimeError(f"generate: {done.stderr.strip()}")
    return json.loads(done.stdout)["token_ids"]


def scores(args, address: str, model: str, tokens: list[int]) -> tuple[list[float], list[float]]:
    """Of these tokens behind the prompt, as log-probabilities: their own, and the best tokens'."""
    words = [f"--model={model}", f"--prompt={PROMPT}", "--format=json", "--top-logprobs=1"]
    words += ["--continuation-token-ids=" + ",".join(map(str, tokens))]
    done = tandem(args, address, "score", *words, seconds=args.patience)
    if done.returncode != 0:
        raise RuntimeError(f"score: {done.stderr.strip()}")
    found = json.loads(done.stdout)["continuation_tokens"]
    return [t["logprob"] for t in found], [t["top_logprobs"][0]["logprob"] for t in found]


def judged(
    said: list[int],
    wanted: list[int],
    said_by_host: tuple[list[float], list[float]],
    by_device: list[float],
    by_host: list[float],
    exact: bool,
) -> list[str]:
    """Says the figures; what is wrong.

    said, wanted: the device's answer and the CPU's. said_by_host: the CPU's log-probabilities of the
    device's tokens, and of the best token in the place of each. by_device, by_host: of the CPU's tokens.
    exact: both must be the same.
    """
    same = next(
        (i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), len(said)
    )
    below = [best - own for own, best in zip(*said_by_host, strict=True)]
    off = [abs(a - b) for a, b in zip(by_device, by_host, strict=True)]
    mean = sum(off) / len(off)
    say("blocks.served.same", same, f"of {len(wanted)} tokens")
    say("blocks.served.below_best", max(below), "nats")
    say("blocks.served.difference", mean, "nats")
    wrong = []
    if len(said) != len(wanted):
        wrong.append(f"{len(said)} tokens of the device, {len(wanted)} of the CPU")
    # So that NaN is wrong too.
    if not max(below) <= (0 if exact else MOST_BELOW):
        wrong.append(f"the CPU puts another token {max(below):.3g} nats above the device's")
    if not mean <= (0 if exact else MOST_DIFFERENCE):
        wrong.append(f"log-probabilities differ by {mean:.3g} nats in the mean")
    if exact and said != wanted:
        wrong.append("other tokens")
    return wrong


def check(args, address: str) -> list[str]:
    said, wanted = (answer(args, address, model) for model in ("device", "host"))
    return judged(
        said,
        wanted,
        scores(args, address, "host", said),
        scores(args, address, "device", wanted)[0],
        scores(args, address, "host", wanted)[0],
        exact=args.device.startswith("cpu"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--patience", type=float, default=30, help="seconds of each wait")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder), config=CONFIG)
        try:
            wrong = check(args, server.wait_until_ready(args.patience))
        except (RuntimeError, subprocess.SubprocessError) as error:
            wrong = [str(error)]
        finally:
            server.end()
            print(server.log.read_text("utf-8", "replace")[-3000:], flush=True)
    print("\n".join(wrong) if wrong else "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
