"""What lies between trainings of tuning/llm_to_slm.py: nats per token of the same held-out answers.

    python -m tuning.conditioned_difference conditioned.json unconditioned.json [more.json]

Of reports (`--report`), the first one beside each of the others, in all and by what was asked. Below 0 the
first one foresees the answers better. ±: standard error, for answers drawn independently; of one training
each, so that it does not say what another seed would have come to.
"""

import argparse
import json
from pathlib import Path

import torch

from measure.report import table


def mean_and_error(sums: list[float], counts: list[int]) -> tuple[float, float]:
    """Of all `counts` together, the mean of what `sums` are the sums of, and its standard error where each
    of them was drawn by itself (a ratio of means, linearised), which is nan for fewer than two."""
    total, count, n = torch.tensor(sums).double(), torch.tensor(counts).double(), len(sums)
    mean = total.sum() / count.sum()
    variance = ((total - mean * count) ** 2).sum() * (n / (n - 1) if n > 1 else torch.nan)
    return mean.item(), (variance.sqrt() / count.sum()).item()


def trained(report: dict) -> str:
    """By which name a report has what it measured of the model that it trained."""
    return "llm_to_slm" if report["settings"]["conditioned"] else "small, tuned alone"


def differences(first: dict, other: dict) -> dict[str, tuple[float, float]]:
    """(first's nats per token less the other's, standard error) by kind. SystemExit where the reports are
    not of the same answers."""
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
