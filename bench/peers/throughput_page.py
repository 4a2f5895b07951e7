"""The tables of docs/reports/throughput.md."""

import statistics
from dataclasses import dataclass, field

from measure.report import spread, table


@dataclass
class Case:
    """One model at one number of streams. Figures are tokens per second of each turn."""

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


def markdown(conditions: str, cases: list[Case]) -> str:
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
    return f"""{main}

{conditions}

All variants of Transformers that were measured:

{others}
"""
