"""Writes warp_golden.txt: rows of logits and what Transformers' warpers make of them.

    python3 tests/engine/sampling/make_goldens.py

Needs torch and transformers (5.23 wrote the stored file). The warpers are run in float64. A case
whose survivors differ in float32 lies on a threshold that rounding decides and is left out.

Format, by lines:
    row VOCAB X0 X1 ...                             logits, exact in float32
    case TEMPERATURE TOP_K TOP_P MIN_P N ID:P ...   of the row above; the N survivors
"""

import pathlib

import numpy as np
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

TARGET = pathlib.Path(__file__).with_name("warp_golden.txt")


def warp(logits, temperature, top_k, top_p, min_p):
    """Transformers' warpers as GenerationMixin orders them. logits: [1, vocab]."""
    processors = []
    if temperature != 1.0:
        processors.append(TemperatureLogitsWarper(temperature))
    if top_k != 0:
        processors.append(TopKLogitsWarper(top_k=top_k))
    if top_p < 1.0:
        processors.append(TopPLogitsWarper(top_p=top_p))
    if min_p > 0:
        processors.append(MinPLogitsWarper(min_p=min_p))
    row = logits[0]
    for process in processors:
        logits = process(None, logits)
    kept = logits[0] > -float("inf")
    # top_p cuts through ties, and torch.sort, which is not stable, leaves open where. What is equal
    # is how many of a tie stay: here, and in the engine, those of the lowest ids.
    tied = torch.nonzero(row == row[kept].min()).flatten()
    stay = int(kept[tied].sum())
    logits[0, tied] = torch.where(torch.arange(len(tied)) < stay, logits[0, tied].max(), -torch.inf)
    return torch.softmax(logits, dim=-1)[0], logits[0] > -float("inf")


def rows(rng):
    for vocab in (2, 3, 5, 8, 16, 33):
        for scale in (0.5, 2.0, 8.0):
            yield rng.normal(0, scale, vocab)
    for vocab in (4, 8, 32):  # ties: few values, equal values, a tie at the top
        yield rng.integers(-2, 3, vocab).astype(float)
        yield np.zeros(vocab)
        yield np.concatenate([np.full(vocab // 2, 3.0), rng.normal(0, 1, vocab - vocab // 2)])
    for vocab in (16, 40):  # extremes
        yield rng.normal(0, 1, vocab) * 1000
        yield rng.normal(0, 1e-4, vocab) + 500
        yield rng.normal(0, 1, vocab) - 30000
        banned = rng.normal(0, 2, vocab)
        banned[rng.choice(vocab, vocab // 2, replace=False)] = -np.inf
        yield banned
        single = np.full(vocab, -np.inf)
        single[vocab // 3] = 1.5
        yield single
        peak = rng.normal(0, 1, vocab)
        peak[vocab - 2] = 40
        yield peak
    yield rng.normal(0, 3, 500)


def cases(rng):
    yield 1.0, 0, 1.0, 0.0
    for temperature in (0.01, 0.7, 1.3, 100.0):
        yield temperature, 0, 1.0, 0.0
    for top_k in (1, 2, 5, 50):
        yield 1.0, top_k, 1.0, 0.0
    for top_p in (1e-6, 0.25, 0.5, 0.75, 0.9, 0.999):
        yield 1.0, 0, top_p, 0.0
    for min_p in (1e-3, 0.05, 0.3, 1.0):
        yield 1.0, 0, 1.0, min_p
    for _ in range(9):
        yield (
            rng.choice([0.3, 0.7, 1.0, 1.5]),
            int(rng.choice([0, 3, 7, 20])),
            rng.choice([0.3, 0.8, 0.95, 1.0]),
            rng.choice([0.0, 0.02, 0.2]),
        )


def number(x):
    return f"{x:.9g}"


def main():
    rng = np.random.default_rng(20)
    lines, written, skipped = [], 0, 0
    for row in rows(rng):
        row = row.astype(np.float32)
        lines.append(" ".join(["row", str(len(row))] + [number(x) for x in row]))
        for case in cases(rng):
            t, k, p, m = case
            t, p, m = (float(np.float32(x)) for x in (t, p, m))
            exact, kept = warp(torch.tensor(row[None].astype(np.float64)), t, k, p, m)
            _, kept32 = warp(torch.tensor(row[None]), t, k, p, m)
            count = int(kept.sum())
            if not torch.equal(kept, kept32) or (count > 100 and len(row) > 100):
                skipped += 1
                continue
            ids = torch.nonzero(kept).flatten().tolist()
            lines.append(
                " ".join(
                    ["case", number(t), str(k), number(p), number(m), str(count)]
                    + [f"{i}:{exact[i].item():.6g}" for i in ids]
                )
            )
            written += 1
    TARGET.write_text("\n".join(lines) + "\n")
    print(f"{written} cases, {skipped} left out, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
