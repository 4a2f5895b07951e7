"""Differences between trainings of tuning/llm_to_slm.py in nats per token of the same held-out answers.

    python -m tuning.conditioned_difference conditioned.json unconditioned.json [more.json]

Compares the first report (`--report`) with each of the others, in total and by task. Below 0 the first one
predicts the answers better. ±: standard error for independently drawn answers. It does not cover other seeds,
as each report is of one training.
"""

import argparse
import json
from pathlib import Path

import torch

from measure.report import table


def mean_and_error(sums: list[float], counts: list[int]) -> tuple[float, float]:
    """Mean per count, sum(sums) / sum(counts), and its standard error for independent samples (linearized ratio
    of means); nan for fewer than two."""
    total, count, n = torch.tensor(sums).double(), torch.tensor(counts).double(), len(sums)
    mean = total.sum() / count.sum()
    variance = ((total - mean * count) ** 2).sum() * (n / (n - 1) if n > 1 else torch.nan)
    return mean.item(), (variance.sqrt() / count.sum()).item()


def trained(report: dict) -> str:
    """Name of the trained model in a report."""
    return "llm_to_slm" if report["settings"]["conditioned"] else "small, tuned alone"


def differences(first: dict, other: dict) -> dict[str, tuple[float, float]]:
    """(first's nats per token less the other's, standard error) by kind. SystemExit if the reports have different
    answers."""
    mine, theirs = first["texts"], other["texts"]
    for field in ("kinds", "tokens"):
        if mine[field] != theirs[field]:
            raise SystemExit(
                f"the reports' texts differ in {field}; allowed: trainings with the same --task, "
                "--small, --checked, --seed, --answer and lengths of prompts"
            )
    pairs = zip(mine["nats"][trained(first)], theirs["nats"][trained(other)], strict=True)
    less = [a - b for a, b in pairs]
    kinds = sorted(set(mine["kinds"]))
    groups = {"all": range(len(less))}
    if len(kinds) > 1:
        groups |= {k: [i for i, kind in enumerate(mine["kinds"]) if kind == k] for k in kinds}
    return {
        name: mean_and_error([less[i] for i in some], [mine["tokens"][i] for i in some])
        for name, some in groups.items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("others", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    first = json.loads(given.first.read_text())
    lines = []
    for file in given.others:
        found = differences(first, json.loads(file.read_text()))
        cells = [f"{mean:+.3f} ± {error:.3f}" for mean, error in found.values()]
        lines.append([f"{given.first.stem} - {file.stem}", *cells])
    print(table(["nats/token", *found], lines))


if __name__ == "__main__":
    main()
