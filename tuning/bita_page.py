"""The training tables of docs/reports/bita.md, from models/*-bita/training.json.

python -m tuning.bita_page --write
"""

import argparse
import json

from measure.paths import ROOT
from measure.report import put, table
from tuning import bita

PAGE = ROOT / "docs" / "reports" / "bita.md"
MODELS = ("code-large-bita", "smollm2-135m-bita", "qwen2.5-coder-0.5b-bita")
TREE = "efficient k=5"  # whose accept lengths are shown
TEXTS = {"code": "code", "humaneval": "HumanEval", "chat": "chat"}


def curve(trainings: list[dict]) -> str:
    """Tokens per pass with the efficient tree, M = 3, k = 5, during a training."""
    texts = [text for text in TEXTS if any(text in row for t in trainings for row in t["curve"])]
    rows = []
    for number, training in enumerate(trainings, 1):
        for seen in training["curve"]:
            cells = [f"{seen[text]:.2f}" if text in seen else "-" for text in texts]
            loss = f"{seen['loss']:.2f}" if "loss" in seen else "-"
            minutes = f"{seen['seconds'] / 60:.0f}"
            rows.append([str(number), str(seen["step"]), minutes, loss, *cells])
    head = ["training", "step", "minutes", "loss of a batch", *(TEXTS[text] for text in texts)]
    return table(head, rows)


def about(number: int, training: dict) -> str:
    settings = training["settings"]
    return (
        f"{number}. {training['answers']} answers ({training['tokens']} tokens), "
        f"{training['steps']} steps of {settings['samples_per_batch']} answers with "
        f"{settings['groups']} mask groups each, {training['minutes']} minutes."
    )


def trees(held_out: dict) -> str:
    texts = [text for text in TEXTS if text in held_out]
    first = held_out[texts[0]]["trees"]
    rows = [
        [
            name.replace(" k=", ", k = "),
            str(found["rows"]),
            *(f"{held_out[text]['trees'][name]['tokens_per_pass']:.2f}" for text in texts),
        ]
        for name, found in first.items()
    ]
    return table(["tree", "rows of a pass", *(TEXTS[text] for text in texts)], rows)


def histogram(held_out: dict) -> str:
    """Share of passes with TREE in percent, by accept length."""
    texts = [text for text in TEXTS if text in held_out]
    lengths = {text: held_out[text]["trees"][TREE]["accept_lengths"] for text in texts}
    deepest = max(map(len, lengths.values()))
    rows = []
    for text, counts in lengths.items():
        padded = counts + [0] * (deepest - len(counts))
        rows.append([TEXTS[text], *(f"{100 * n / sum(counts):.0f}" for n in padded)])
    return table(["accepted", *map(str, range(deepest))], rows)


def right(held_out: dict) -> str:
    """Accuracy of the masks in percent: first candidate, one of the first five."""
    texts = [text for text in TEXTS if text in held_out]
    masks = range(len(held_out[texts[0]]["first"]))
    rows = []
    for text in texts:
        pairs = zip(held_out[text]["first"], held_out[text]["five"], strict=True)
        rows.append([TEXTS[text], *(f"{100 * a:.0f} / {100 * b:.0f}" for a, b in pairs)])
    return table(["first / one of first five correct, %", *(f"m_{i + 1}" for i in masks)], rows)


def section(trainings: list[dict], held_out: dict) -> str:
    stories = "\n".join(about(*one) for one in enumerate(trainings, 1))
    return f"""{trees(held_out)}

Passes with the efficient tree, k = 5, in percent by accepted candidates:

{histogram(held_out)}

{right(held_out)}

Trainings, each continuing the one before:

{stories}

{curve(trainings)}
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args(arguments)
    for name in MODELS:
        folder = ROOT / "models" / name
        held_out = json.loads((folder / "training.json").read_text())["held_out"]
        text = section(bita.trainings(folder), held_out)
        if given.write:
            put(PAGE, f"{name}, training", text)
        else:
            print(f"## {name}\n\n{text}")


if __name__ == "__main__":
    main()
