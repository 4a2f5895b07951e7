"""The pages docs/benchmarks/ar.md and throughput.md."""

import datetime
import statistics
from dataclasses import dataclass, field
from pathlib import Path


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


def spread(figures: list[float]) -> str:
    """Median, smallest and largest."""
    middle = statistics.median(figures)
    return f"{middle:.1f} ({min(figures):.1f}-{max(figures):.1f})"


def put(page: Path, name: str, text: str) -> None:
    """Between the page's marks of that name; the rest stays."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    title = "Autoregressive decoding beside Transformers"
    lengths = ""
    if c.mixed:
        title = "Throughput with requests of many lengths, beside Transformers"
        lengths = f"""
Prompts have {c.prompt_tokens} tokens and answers {c.new_tokens}, drawn evenly and anew for each turn, the same for both.
Only tokens that were asked for count. Transformers pads the prompts of its batch on the left and
masks the padding, and the batch ends with its longest answer; Tandem's streams end one by one.
"""
    return f"""# {title}

Tokens per second of all streams together: new tokens divided by the time from the call to the last
token, prompt included. Median of {c.repeats} turns, smallest and largest in parentheses. Tandem is asked over
gRPC by a Python client on the same machine, each prompt a stream of its own; Transformers runs
`generate` on all prompts as one batch, in the variant that was fastest for the row. The two take
turns in one run, on the same float32 weights.
{lengths}
{main}

"one prompt after the other" is Transformers without batching, for information. "same tokens" are
those before a stream's first difference from Transformers' greedy text; float32 sums in another order
can turn a near tie, after which the texts go their own ways.

| condition | |
|---|---|
| command | `{c.command.strip()}` |
| commit | {c.commit} |
| date | {datetime.date.today().isoformat()} |
| processor | {c.processor}, {c.cores} cores |
| reading memory | {c.bandwidth / 1e9:.1f} GB/s |
| machine busy before and after | {", ".join(f"{b:.0%}" for b in c.busy)} |
| Transformers | {c.versions}, {c.threads} threads |
| prompt, new tokens | {c.prompt_tokens}, {c.new_tokens} (greedy, end of text ignored) |

All variants of Transformers that were tried:

{others}
"""
