"""Table of PPD's match rates: models/*-heads/training.json and the paper.

python -m tuning.match_rates --write
"""

import argparse
import json
from pathlib import Path

from measure.paths import ROOT
from measure.report import put, table
from tuning.early_heads import CANDIDATES

PAGE = ROOT / "docs" / "reports" / "ppd.md"
MODELS = {
    "code-large-heads": ("code-large", 8),
    "smollm2-135m-heads": ("SmolLM2 135M Instruct, 4-bit blocks", 30),
    "qwen2.5-coder-0.5b-heads": ("Qwen2.5-Coder 0.5B Instruct, 4-bit blocks", 24),
    "qwen2.5-coder-1.5b-heads": ("Qwen2.5-Coder 1.5B Instruct, 4-bit blocks", 28),
}
TEXTS = {
    "files": "held-out files' own text",
    "code": "own answers to held-out prompts",
    "humaneval": "own answers to HumanEval",
    "chat": "own answers to questions",
}
# arXiv 2307.05908, Table 2: Vicuna-13B, 40 layers. By task: [layer 20, 30, 35, 37] by k.
PAPER_LAYERS = (20, 30, 35, 37)
PAPER = {
    "SQuAD": {
        1: ([38.90, 62.90, 79.77, 88.01], [52.81, 72.34, 87.68, 91.67]),
        3: ([54.04, 77.92, 92.64, 97.67], [68.37, 87.49, 97.33, 98.91]),
        5: ([60.15, 83.84, 95.85, 99.08], [74.15, 92.29, 98.81, 99.62]),
    },
    "WMT": {
        1: ([21.63, 39.69, 68.64, 78.15], [29.17, 48.20, 74.84, 82.69]),
        3: ([31.69, 61.71, 85.03, 93.53], [41.14, 68.50, 89.84, 95.48]),
        5: ([37.13, 68.84, 89.54, 96.41], [47.84, 75.46, 93.36, 97.67]),
    },
    "CNN/DM": {
        1: ([32.08, 53.07, 68.90, 78.82], [43.65, 61.45, 78.46, 84.42]),
        3: ([46.36, 68.14, 85.07, 93.81], [60.60, 78.55, 93.07, 96.62]),
        5: ([52.51, 74.22, 90.04, 96.88], [67.33, 84.83, 96.06, 98.40]),
    },
}


def latency(match_rate: float, layer: int, layers: int) -> float:
    """Time per token relative to autoregressive decoding, by Theorem 4.1 for a long answer."""
    return 1 - (1 - layer / layers) * match_rate


def percents(*rates: float | None) -> str:
    """Those that there are."""
    return " / ".join(f"{100 * rate:.0f}" for rate in rates if rate is not None)


def rows_of(text: str, layers: int, report: dict) -> list[list[str]]:
    rows = []
    for layer, shared in report["shared"][text].items():
        trained, frequent = (
            report.get(kind, {}).get(text, {}).get(layer) for kind in ("trained", "frequent")
        )
        none = [None] * len(CANDIDATES)
        rates = [
            percents(*all) for all in zip(shared, trained or none, frequent or none, strict=True)
        ]
        best = trained or shared
        bounds = [f"{latency(p, int(layer), layers):.2f}" for p in best[:2]]
        rows.append([f"{layer} of {layers}", *rates, *bounds])
    return rows


def tokens(count: int | None) -> str:
    return "" if count is None else f" ({count} tokens)"


def about(report: dict) -> str:
    if "trained" not in report:
        return """Percent of tokens with the model's own output matrix, without training; latency by Theorem 4.1."""
    rank, rows = report["settings"]["rank"], report["rows"]
    steps = ""
    if "steps" in report:
        took = f"in {report['steps']} steps ({report['minutes']} minutes)"
        steps = f", trained {took}"
        if "learned" in report:
            layers = ", ".join(map(str, report["learned"]))
            steps = f"; those of layers {layers} trained further {took}"
    kinds = "shared / trained"
    if "frequent" in report:
        kinds += f" / trained, of the first {report['draft_vocabulary']} token ids alone"
    return f"""Heads of rank {rank}, by regression on {rows} rows{steps}.
Percent of tokens, {kinds}; latency by Theorem 4.1 from the trained rate."""


def section(name: str, layers: int, report: dict) -> str:
    head = ["layer", *(f"k = {k}" for k in CANDIDATES), "latency, k = 1", "latency, k = 3"]
    checked = report.get("checked_rows", {})
    blocks = [
        f"{title[0].upper()}{title[1:]}{tokens(checked.get(text))}:\n\n"
        f"{table(head, rows_of(text, layers, report))}\n"
        for text, title in TEXTS.items()
        if text in report["shared"]
    ]
    return f"### {name}\n\n{about(report)}\n\n{chr(10).join(blocks)}"


def paper_section() -> str:
    rows = []
    for task, by_k in PAPER.items():
        for k, (shared, trained) in by_k.items():
            cells = [f"{a:.0f} / {b:.0f}" for a, b in zip(shared, trained, strict=True)]
            rows.append([task, str(k), *cells])
    head = ["", "k", *(f"layer {layer} of 40" for layer in PAPER_LAYERS)]
    return f"""### The paper: Vicuna-13B

arXiv 2307.05908, Table 2, percent, shared / trained. The paper trains a whole classifier per layer, on 8 A100.

{table(head, rows)}
"""


def page(reports: dict[str, dict]) -> str:
    sections = [section(*MODELS[name], report) for name, report in reports.items()]
    return f"{chr(10).join(sections)}\n{paper_section()}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args(arguments)
    files = {name: ROOT / "models" / name / "training.json" for name in MODELS}
    reports = {name: json.loads(f.read_text()) for name, f in files.items() if Path(f).exists()}
    text = page(reports)
    if given.write:
        put(PAGE, "match rates", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
