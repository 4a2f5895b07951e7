"""The tables of docs/reports/throughput.md."""

import datetime
import statistics
from dataclasses import dataclass, field

from measure.report import spread, table


@dataclass
class Case:
    """One model at one number of streams. Figures are tokens per second, one for each turn."""

    model: str
    streams: int
    ours: list[float] = field(default_factory=list)
    theirs: dict[str, list[float]] = field(default_factory=dict)  # by variant
    sequential: float | None = None
    same_tokens: int = 0
    all_tokens: int = 0

    def best(self) -> str:
        return max(self.theirs, key=lambda variant: statistics.median(self.theirs[variant]))

    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.theirs[self.best()])


@dataclass
class Conditions:
    command: str
    commit: str
    processor: str
    cores: int
    threads: int
    bandwidth: float  # bytes per second
    busy: list[float]  # share of the machine in use just before and just after
    versions: str
    prompt_tokens: str
    new_tokens: str
    repeats: int
    mixed: bool = False  # prompts and answers of different lengths


def markdown(conditions: Conditions, cases: list[Case]) -> str:
    c = conditions
    rows = []
    for case in cases:
        ours, ratio, same = "-", "-", "-"
        if case.ours:
            ours, ratio = spread(case.ours), f"**{case.ratio():.2f}**"
            same = f"{case.same_tokens / case.all_tokens:.1%}"
        sequential = f"{case.sequential:.1f}" if case.sequential else "-"
        theirs = spread(case.theirs[case.best()])
        rows.append(
            [case.model, str(case.streams), ours, theirs, ratio, case.best(), sequential, same]
        )
    main = table(
        [
            "model",
            "streams",
            "Tandem, tokens/s",
            "Transformers, tokens/s",
            "ratio",
            "its fastest variant",
            "one prompt after the other",
            "same tokens",
        ],
        rows,
    )
    variants = sorted({variant for case in cases for variant in case.theirs})
    others = table(
        ["Transformers, tokens/s", *variants],
        [
            [f"{case.model}, {case.streams}", *(spread(case.theirs[v]) for v in variants)]
            for case in cases
        ],
    )
    lengths = (
        f"""Prompts have {c.prompt_tokens} tokens and answers {c.new_tokens}, drawn uniformly for each turn.

"""
        if c.mixed
        else ""
    )
    return f"""{lengths}{main}

| condition | |
|---|---|
| command | `{c.command.strip()}` |
| commit | {c.commit} |
| date | {datetime.date.today().isoformat()} |
| processor | {c.processor}, {c.cores} cores |
| memory bandwidth | {c.bandwidth / 1e9:.1f} GB/s |
| machine busy before and after | {", ".join(f"{b:.0%}" for b in c.busy)} |
| Transformers | {c.versions}, {c.threads} threads |
| prompt, new tokens | {c.prompt_tokens}, {c.new_tokens} (greedy, end of text ignored) |

All variants of Transformers that were measured:

{others}
"""
