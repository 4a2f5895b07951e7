"""Counts the tokens that can be the best one by the upper bits of the output matrix.

    python -m tuning.certified_head FILE.gguf [--problems 12] [--positions 64] [--bits 4 3]

The output matrix of the file is Q6_K. The upper bits of its codes give each logit with a bound of its error. A
token survives if the upper bound of its logit reaches the greatest lower bound. A greedy pass would read the lower
bits of survivors only. Positions are those of HumanEval's solutions.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
import torch

from measure.report import table
from tuning import frozen_model
from tuning.evaluate.humaneval import read_problems

CODES = 6  # bits
SIXTEEN = 16  # inputs of a scale
ROWS = 8192  # of the matrix at once


def steps_of(blocks: np.ndarray, inputs: int) -> torch.Tensor:
    """The value of one code step for each 16 inputs [rows, inputs / 16], of Q6_K blocks."""
    blocks = blocks.reshape(len(blocks), inputs // 256, 210)
    d = np.ascontiguousarray(blocks[..., 208:]).view(np.float16).astype(np.float32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return torch.from_numpy((d * scales).reshape(len(blocks), -1))


def upper(weight: torch.Tensor, steps: torch.Tensor, bits: int) -> torch.Tensor:
    """`weight` with only the upper bits of its codes, in the middle of what the others may be."""
    step = steps.repeat_interleave(SIXTEEN, 1)
    half = 2 ** (CODES - 1)
    codes = torch.where(step == 0, 0, weight / step).round() + half
    part = 2 ** (CODES - bits)
    return ((codes / part).floor() * part + (part - 1) / 2 - half) * step


def survivors(
    weight: torch.Tensor, steps: torch.Tensor, hidden: torch.Tensor, bits: int, block: int
) -> torch.Tensor:
    """Share of the rows that survive, of each position. The error's bound is the sum over blocks of
    |rest of the row| |hidden|."""
    logits, bounds = [], []
    norms = hidden.reshape(len(hidden), -1, block).norm(dim=2)
    for first in range(0, len(weight), ROWS):
        rows = weight[first : first + ROWS]
        near = upper(rows, steps[first : first + ROWS], bits)
        rest = (rows - near).reshape(len(rows), -1, block).norm(dim=2)
        logits.append(near @ hidden.T)
        bounds.append(rest @ norms.T)
    logit, bound = torch.cat(logits), torch.cat(bounds)
    return (logit + bound >= (logit - bound).amax(0)).float().mean(0)


@torch.no_grad()
def hidden_rows(frozen: frozen_model.FrozenModel, problems: int) -> torch.Tensor:
    """Inputs of the output matrix at the solutions' tokens."""
    rows = []
    for problem in read_problems()[:problems]:
        prompt, whole = (
            frozen.tokenizer.encode(text).ids
            for text in (problem.prompt, problem.prompt + problem.solution)
        )
        out = frozen.model.model(input_ids=torch.tensor([whole])).last_hidden_state[0]
        rows.append(out[len(prompt) - 1 : -1])
    return torch.cat(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 3])
    args = parser.parse_args()
    tensors = {t.name: t for t in gguf.GGUFReader(args.model).tensors}
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    if head.tensor_type.name != "Q6_K":
        parser.error(f"{args.model}: output matrix: {head.tensor_type.name}; allowed: Q6_K")
    frozen = frozen_model.load(args.model)
    weight = frozen.model.get_output_embeddings().weight
    hidden = hidden_rows(frozen, args.problems)
    chosen = torch.randperm(len(hidden), generator=torch.Generator().manual_seed(1))
    hidden = hidden[chosen[: args.positions]]
    steps = steps_of(head.data, weight.shape[1])
    rows = []
    with torch.no_grad():
        for bits in args.bits:
            for block in (weight.shape[1], 256):
                share = survivors(weight, steps, hidden, bits, block)
                numbers = (share.mean(), share.median(), share.max())
                rows.append([str(bits), str(block), *(f"{100 * n:.2f} %" for n in numbers)])
    print(table(["upper bits of 6", "inputs of a norm", "survivors, mean", "median", "most"], rows))


if __name__ == "__main__":
    main()
