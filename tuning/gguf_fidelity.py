"""Compares GGUF files with Transformers: fp32 and stored weights against the dequantized model.

    python -m tuning.gguf_fidelity smollm2-135m [...]        models of scripts/models

Held-out files of Python's standard library, in windows, are scored by tandem-server in both types and by
Transformers in fp32. Prints a Markdown table; ends with status 1 where a bound is exceeded. KL is
that of the server's 20 best tokens of each row and all others together, which is a lower bound of the
whole.
"""

import argparse
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from measure import serving
from measure.paths import ROOT
from tuning import corpus

MODELS = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem")) / "models"
BEST = 20  # tokens that the server returns per row
# What fp32 may be away from Transformers (a log-probability), and stored weights: KL and best tokens.
LARGEST_DIFFERENCE, MOST_KL, LEAST_SAME = 2e-3, 5e-3, 0.97


@dataclass
class Compared:
    """Sums over rows: of ours against the reference."""

    rows: int = 0
    same: int = 0  # best tokens
    kl: float = 0.0
    nats: float = 0.0  # of the text
    largest: float = 0.0  # the largest difference of a log-probability

    def add(self, reference: torch.Tensor, tokens) -> None:
        """`reference`: log-probabilities [rows, vocabulary]; `tokens`: the server's, a row each."""
        for row, token in zip(reference, tokens, strict=True):
            ids = torch.tensor([best.id for best in token.top_logprobs])
            ours = torch.tensor([best.logprob for best in token.top_logprobs], dtype=torch.float64)
            theirs = row[ids].double()
            self.rows += 1
            self.same += int(ids[0] == row.argmax())
            self.kl += bucketed_kl(theirs, ours)
            self.nats -= token.logprob
            # Where a token has next to no probability its logarithm says little.
            near = theirs > -10
            self.largest = max(self.largest, float((theirs - ours).abs()[near].max()))

    def row(self, what: str, reference: float) -> str:
        perplexity = math.exp(self.nats / self.rows)
        return (
            f"| {what} | {self.rows} | {self.largest:.1e} | {self.kl / self.rows:.1e} "
            f"| {100 * self.same / self.rows:.2f} % | {perplexity:.4f} "
            f"| {perplexity / reference - 1:+.3%} |"
        )


def bucketed_kl(reference: torch.Tensor, ours: torch.Tensor) -> float:
    """KL(reference || ours) of these tokens, from log-probabilities, and all others as one."""
    rest = [max(1e-12, 1 - float(p.exp().sum())) for p in (reference, ours)]
    kl = float((reference.exp() * (reference - ours)).sum())
    return max(0.0, kl + rest[0] * math.log(rest[0] / rest[1]))


def windows(tokenizer, tokens: int, length: int) -> list[list[int]]:
    """The held-out files' tokens, one after the other, in windows of `length`."""
    _, documents = corpus.split(corpus.read_documents(corpus.standard_library()))
    ids: list[int] = []
    for document in documents:
        ids += tokenizer(document.text, add_special_tokens=False)["input_ids"]
        if len(ids) >= tokens:
            break
    return [ids[at : at + length] for at in range(0, tokens, length)]


def scored(path: Path, dtype: str, texts: list[list[int]], binary: Path) -> list:
    with serving.server(binary, {"model": path}, dtype=dtype) as client:
        m = client.messages
        return [
            client.stub.Score(
                m.ScoreRequest(
                    model="model",
                    token_ids=m.TokenIds(ids=ids),
                    score_prompt=True,
                    top_logprobs=BEST,
                )
            ).prompt_tokens[1:]
            for ids in texts
        ]


def compare(name: str, arguments: argparse.Namespace) -> bool:
    path = MODELS / f"{name}.gguf"
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = windows(tokenizer, arguments.tokens, arguments.length)
    answers = {d: scored(path, d, texts, arguments.server) for d in ("fp32", "stored")}
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    found = {dtype: Compared() for dtype in answers}
    nats, rows = 0.0, 0
    for i, ids in enumerate(texts):
        with torch.no_grad():
            logits = model(torch.tensor([ids[:-1]])).logits[0]
        reference = torch.log_softmax(logits, dim=-1)
        nats -= float(reference.gather(1, torch.tensor(ids[1:])[:, None]).double().sum())
        rows += len(ids) - 1
        for dtype, compared in found.items():
            compared.add(reference, answers[dtype][i])
    perplexity = math.exp(nats / rows)
    print(f"| {name}: Transformers, fp32 | {rows} | | | | {perplexity:.4f} | |")
    for dtype, compared in found.items():
        print(compared.row(dtype, perplexity), flush=True)
    stored = found["stored"]
    return (
        found["fp32"].largest <= LARGEST_DIFFERENCE
        and stored.kl / stored.rows <= MOST_KL
        and stored.same / stored.rows >= LEAST_SAME
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--length", type=int, default=512, help="of a window")
    parser.add_argument("--server", type=Path, default=ROOT / "build/release/bin/tandem-server")
    arguments = parser.parse_args()
    print(
        "| weights | rows | largest difference | KL | same best | perplexity | against Transformers |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    return 0 if all([compare(name, arguments) for name in arguments.models]) else 1


if __name__ == "__main__":
    sys.exit(main())
