"""The measured part of docs/reports/fidelity.md."""

import datetime
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from measure import machine
from measure.paths import ROOT
from measure.report import folded, table
from tuning.evaluate.grid import PAIRS, Configuration
from tuning.evaluate.measure import Row
from tuning.evaluate.plot import COLOURS, Panel, Series

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

# Of the papers 2302.07863 (BiLD, tables 1, 3 and 4): on a T4, one request at a time.
PAPER = [
    ["IWSLT", "1.43", "1.62", "1.78", "1.28", "21.1 / 1.6", "23.2 / 9.8"],
    ["WMT", "1.34", "1.47", "1.70", "-", "-", "-"],
    ["XSUM", "1.48", "1.50", "1.80", "1.25", "32.3 / 6.4", "36.8 / 24.2"],
    ["CNN-DM", "1.71", "1.85", "2.12", "-", "-", "-"],
]
PAPER_HEAD = [
    "",
    "BiLD, no loss",
    "aligned, no loss",
    "aligned, within 1 point",
    "speculative sampling",
    "BiLD: fallback / rollback %",
    "speculative: the same",
]


@dataclass
class Conditions:
    command: str
    commit: str
    processor: str
    cores: int
    busy: list[float]  # share of the machine in use before and after
    prompts: int
    prompt_tokens: int
    new_tokens: int
    turns: int
    minutes: float

    @classmethod
    def here(cls, started: float, **others) -> "Conditions":
        """Of this machine and commit, since `started` (time.monotonic())."""
        return cls(
            commit=machine.commit(ROOT),
            processor=f"{machine.processor()} ({machine.instructions()})",
            cores=machine.cores(),
            minutes=(time.monotonic() - started) / 60,
            **others,
        )


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}"


def spread(row: Row) -> str:
    return f"{row.speedup:.2f} ({min(row.speedups):.2f}-{max(row.speedups):.2f})"


def line(row: Row) -> list[str]:
    return [
        row.configuration.series,
        row.configuration.small,
        row.configuration.settings,
        spread(row),
        percent(row.equal, 0),
        percent(row.similarity),
        percent(row.rouge),
        f"{row.nll:.3f}",
        percent(row.fallbacks),
        percent(row.rollbacks),
    ]


HEAD = [
    "method",
    "drafts by",
    "parameters",
    "speed-up",
    "equal, %",
    "similar, %",
    "ROUGE-L",
    "nats/token",
    "fallback, %",
    "rollback, %",
]


def measurements(ar: Row, rows: Sequence[Row]) -> str:
    own = ["autoregressive", "-", "-", "1", "100", "100.0"]
    own += [percent(ar.rouge), f"{ar.nll:.3f}", "-", "-"]
    return table(HEAD, [own, *(line(row) for row in rows)])


def fastest(rows: Sequence[Row], allowed) -> Row | None:
    return max((row for row in rows if allowed(row)), key=lambda row: row.speedup, default=None)


Half = tuple[Row, Sequence[Row]]  # AR's row and the others


def summary(chosen: Half, reported: Half, pairs: dict[str, str] = PAIRS) -> str:
    """The fastest setting for each quality bound, as in the papers: chosen on one half of the
    prompts, with the figures of the other. `pairs`: the small model's kind by deployment."""
    own, other = chosen[0], reported[0]
    demands = {
        "equal to AR's text": lambda row: row.equal == 1,
        "ROUGE-L at least AR's": lambda row: row.rouge >= own.rouge,
        "ROUGE-L within 1 point": lambda row: 100 * row.rouge >= 100 * own.rouge - 1,
    }
    groups = {
        **{f"BiLD, {small} small model": ("BiLD", d) for d, small in pairs.items()},
        **{f"speculative, {small}": ("speculative", d) for d, small in pairs.items()},
    }
    figures = {row.configuration: row for row in reported[1]}
    lines = []
    for name, (series, deployment) in groups.items():
        cells = [name]
        for allowed in demands.values():
            mine = [
                row
                for row in chosen[1]
                if row.configuration.series == series
                and row.configuration.deployment == deployment
                and (not row.configuration.promises_exact or row.equal == 1)
            ]
            best = fastest(mine, allowed)
            if best is None:
                cells.append("none")
                continue
            shown = figures[best.configuration]
            cells.append(
                f"**{shown.speedup:.2f}** ({shown.configuration.settings}; fallback / rollback "
                f"{percent(shown.fallbacks)} / {percent(shown.rollbacks)} %; equal "
                f"{percent(shown.equal, 0)} %, ROUGE-L {100 * (shown.rouge - other.rouge):+.1f})"
            )
        lines.append(cells)
    return table(["fastest on half of the prompts, figures of the other half", *demands], lines)


def exactness(counts: dict[Configuration, int], prompts: int) -> str:
    return table(
        ["method", "drafts by", "parameters", "answers equal to AR's"],
        [[c.series, c.small, c.settings, f"**{equal}/{prompts}**"] for c, equal in counts.items()],
    )


def panels(ar: Row, rows: Sequence[Row]) -> list[Panel]:
    """Speed-up and likeness to AR's text, a panel for each pair (the paper's figures 4, 5 and 9)."""

    def points(mine):
        return [
            (row.speedup, 100 * row.similarity, f"{row.configuration.settings}: {spread(row)}")
            for row in mine
        ]

    made = []
    for deployment, small in PAIRS.items():
        panel = Panel(f"{small} small model")
        here = [row for row in rows if row.configuration.deployment == deployment]
        thresholds = sorted(
            {
                row.configuration.parameters["rollback_threshold"]
                for row in here
                if row.configuration.series == "BiLD"
            }
        )
        for colour, threshold in zip(COLOURS, thresholds, strict=False):
            mine = [
                row
                for row in here
                if row.configuration.series == "BiLD"
                and row.configuration.parameters["rollback_threshold"] == threshold
            ]
            panel.series.append(Series(f"BiLD, α_RB {threshold}", points(mine), colour))
        others = {
            "speculative": ("diamond", COLOURS[5], False),
            "no rollback": ("square", COLOURS[4], True),
            "no fallback": ("square", "#b03060", True),
        }
        for series, (shape, colour, joined) in others.items():
            mine = [row for row in here if row.configuration.series == series]
            if mine:
                panel.series.append(
                    Series(series, points(mine), colour, joined, dashed=True, marker=shape)
                )
        panel.series.append(
            Series("autoregressive", [(1.0, 100.0, "1")], "#000000", line=False, marker="square")
        )
        made.append(panel)
    return made


def condition_table(c: Conditions) -> str:
    return f"""| condition | |
|---|---|
| command | `{c.command.strip()}` |
| commit | {c.commit} |
| date | {datetime.date.today().isoformat()}, {c.minutes:.0f} minutes |
| processor | {c.processor}, {c.cores} cores |
| load before and after | {", ".join(f"{b:.0%}" for b in c.busy)} |"""


def markdown(
    conditions: Conditions,
    ar: Row,
    rows: Sequence[Row],
    counts: dict[Configuration, int],
    exact_prompts: int,
    figure: str,
    halves: Sequence[Half],
) -> str:
    c = conditions
    length = statistics.mean(len(answer.tokens) for answer in ar.answers())
    return f"""### Exact methods

{exact_prompts} held-out prompts of {c.prompt_tokens} tokens, up to {c.new_tokens} new tokens.

{exactness(counts, exact_prompts)}

### Speed and quality

{c.prompts} held-out prompts of {c.prompt_tokens} tokens, up to {c.new_tokens} new tokens (autoregressive mean: {length:.0f}), {c.turns} sets of prompts.

{summary(*halves)}

The papers' results, on other tasks and a T4 GPU (BiLD tables 1, 3 and 4):

{table(PAPER_HEAD, PAPER)}

![Speed-up and similarity to the large model's text]({figure})

{folded("All settings", measurements(ar, rows))}

{condition_table(c)}
"""


def put(page: str, measured: str, begin: str = BEGIN, end: str = END) -> str:
    """`page` with what lies between its markers replaced; ValueError where it has none."""
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page must have one {begin} and, behind it, one {end}")
    before, after = page.split(begin)[0], page.split(end)[1]
    return f"{before}{begin}\n\n{measured.strip()}\n\n{end}{after}"
