"""Measures decoding with pairs of models at a given agreement, and compares it with the ideal speed.

    scripts/bench_pair [--write] [--check]

bench_pair (bench/pair_bench.cpp) runs real models through the scheduler and replaces their outputs by
a script, so that the small model agrees with the large one at a given share of positions.
Autoregressive decoding and the methods take turns on the same texts. The ideal speed-up counts the same
passes, each at the mean device time of a pass of its size in this run, without time between them.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers import cli
from bench.peers.models import directory, shipped_masks
from measure import machine
from measure.paths import ROOT
from measure.report import table

PAIRS = {
    "code-large + code-small": ("code-large", "code-small"),
    "llama-350m + llama-25m": ("llama-350m", "llama-25m"),
    "llama-110m + llama-25m": ("llama-110m", "llama-25m"),
    # Without a smaller model: measures the cost of BiTA rows on 4-bit blocks.
    "smollm2-135m + itself": ("smollm2-135m", "smollm2-135m"),
}
WRITTEN = list(PAIRS)[:2]
# Acceptance of candidates by mask, given that the previous ones were accepted; about that of
# models/code-large-bita on held-out text.
MASK_RATES = "0.49:0.12:0.06:0.04:0.02,0.45:0.11:0.06:0.04:0.02,0.45:0.11:0.06:0.04:0.02"
TREES = (19, 28, 40, 64)  # rows of larger BiTA trees, whose cost is shown too
PAGE = ROOT / "docs" / "reports" / "tandem_decoding.md"
BITA_PAGE = PAGE.with_name("bita.md")  # with --masks
AUTOREGRESSIVE = "autoregressive"
# Goals of --check: of every method, and of a pair's best method at an agreement of 0.9.
SHARE_OF_IDEAL = 0.85
SPEEDUP_AT = 0.9
SPEEDUP = {"llama-350m + llama-25m": 2.0}  # not reachable with the passes of the demo pair


@dataclass
class Line:
    """One method at one agreement."""

    agreement: float
    method: str
    speedups: list[float]  # over autoregressive decoding, by turn
    ideal: float
    tokens_per_second: float
    kept: float  # mean accept length
    drafted: float  # mean draft tokens per verification

    @property
    def speedup(self) -> float:
        return statistics.median(self.speedups)

    @property
    def share(self) -> float:
        """Share of the ideal speed-up."""
        return self.speedup / self.ideal


@dataclass
class Result:
    """Lines of a pair, and mean milliseconds of a pass by model and rows."""

    name: str
    parameters: tuple[int, int]
    lines: list[Line]
    milliseconds: dict[tuple[str, int], float]
    tokens_per_second: float  # autoregressive


def ideal_seconds(passes: list, cost: dict[tuple[str, int], float]) -> float:
    """passes: [model, rows, count]; cost: mean seconds of such a pass."""
    return sum(cost[model, rows] * count for model, rows, count in passes)


def draft_lengths(turn: dict) -> tuple[int, int, int]:
    """(verifications, accepted draft tokens, rows of the large model after the prompt)."""
    lengths = turn["accept_lengths"]
    rows = sum(rows * count for model, rows, count in turn["passes"] if model == "large")
    return sum(lengths), sum(kept * count for kept, count in enumerate(lengths)), rows


def evaluate(name: str, measured: dict) -> Result:
    """Measured and ideal speed-ups from the output of bench_pair."""
    cost = {(p["model"], p["rows"]): p["mean_seconds"] for p in measured["passes"]}
    decoded = measured["new_tokens"] - 1  # after the first one
    cases = {(case["agreement"], case["method"]): case["turns"] for case in measured["cases"]}
    lines, rates = [], []
    for (agreement, method), turns in cases.items():
        own = cases[agreement, AUTOREGRESSIVE]
        if method == AUTOREGRESSIVE:
            rates += [decoded / turn["decode_seconds"] for turn in turns]
            continue
        ideals = [
            ideal_seconds(a["passes"], cost) / ideal_seconds(b["passes"], cost)
            for a, b in zip(own, turns, strict=True)
        ]
        counts = [draft_lengths(turn) for turn in turns]
        verifications = sum(count for count, _, _ in counts)
        lines.append(
            Line(
                agreement,
                method,
                [
                    a["decode_seconds"] / b["decode_seconds"]
                    for a, b in zip(own, turns, strict=True)
                ],
                statistics.median(ideals),
                statistics.median(decoded / turn["decode_seconds"] for turn in turns),
                sum(kept for _, kept, _ in counts) / verifications,
                sum(rows for _, _, rows in counts) / verifications - 1,
            )
        )
    return Result(
        name,
        (measured["large_parameters"], measured["small_parameters"]),
        lines,
        {size: 1000 * seconds for size, seconds in cost.items()},
        statistics.median(rates),
    )


def shortfalls(result: Result) -> list[str]:
    """Missed goals of --check."""
    found = [
        f"{result.name}, {line.method} at {line.agreement}: {line.share:.0%} of the ideal"
        for line in result.lines
        if line.share < SHARE_OF_IDEAL
    ]
    there = [line.speedup for line in result.lines if line.agreement == SPEEDUP_AT]
    if there and max(there) < SPEEDUP.get(result.name, 0):
        found.append(f"{result.name}: {max(there):.2f} times as fast at {SPEEDUP_AT}")
    return found


def section(result: Result, heading: str = "##") -> str:
    large, small = result.parameters
    rows = [
        [
            f"{line.agreement:g}",
            line.method,
            f"{line.speedup:.2f} ({min(line.speedups):.2f}-{max(line.speedups):.2f})",
            f"{line.ideal:.2f}",
            f"{line.share:.0%}",
            f"{line.tokens_per_second:.1f}",
            f"{line.drafted:.2f}",
            f"{line.kept:.2f}",
        ]
        for line in result.lines
    ]
    sizes = sorted({rows for model, rows in result.milliseconds if rows <= 17 or rows in TREES})
    costs = [
        [
            model,
            *(
                f"{result.milliseconds[model, n]:.2f}" if (model, n) in result.milliseconds else "-"
                for n in sizes
            ),
        ]
        for model in ("large", "small")
    ]
    return f"""{heading} {result.name}

{large / 1e6:.1f} and {small / 1e6:.1f} million parameters. Autoregressive: {result.tokens_per_second:.1f} tokens/s.

{table(["agreement", "method", "speed-up", "ideal", "of the ideal", "tokens/s", "drafted", "kept"], rows)}

Mean device time of a pass in milliseconds, by rows:

{table(["", *map(str, sizes)], costs)}
"""


def sections(results: list[Result], conditions: str, heading: str = "##") -> str:
    found = "\n".join(section(result, heading) for result in results)
    return f"{found}\n{conditions}\n"


def parse(arguments):
    parser = cli.parser(__doc__, PAGE, busy=True)
    parser.add_argument("--pairs", nargs="+", choices=list(PAIRS), default=WRITTEN)
    parser.add_argument("--masks", action="store_true", help="also BiTA, for bita.md")
    parser.add_argument(
        "--mask-rates", default=MASK_RATES, help="acceptance of candidates, by mask"
    )
    parser.add_argument("--agreement", default="0.7,0.8,0.9")
    parser.add_argument("--drafts", default="3,5,8", help="draft tokens per round")
    parser.add_argument("--foresight", type=float, default=0.5)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/bench_pair")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    run = cli.Run("scripts/bench_pair", arguments, args.write and not args.busy)
    bandwidth = machine.bandwidth()
    results = []
    for name in args.pairs:
        large, small = map(directory, PAIRS[name])
        command = [args.binary, "--large", large, "--small", small]
        for option in ("agreement", "drafts", "foresight", "threads", "turns"):
            command += [f"--{option}", str(getattr(args, option))]
        command += [
            "--new-tokens",
            str(args.new_tokens),
            "--prompt-tokens",
            str(args.prompt_tokens),
        ]
        if args.masks:
            masks = shipped_masks(PAIRS[name][0], large)
            command += ["--masks", masks, "--mask-rates", args.mask_rates]
        measured = json.loads(subprocess.check_output(command, text=True))
        results.append(evaluate(name, measured))
    more = [
        ("memory bandwidth", f"{bandwidth / 1e9:.1f} GB/s"),
        ("prompt, new tokens, turns", f"{args.prompt_tokens}, {args.new_tokens}, {args.turns}"),
    ]
    if args.masks:
        more.append(("candidate acceptance by mask token", args.mask_rates))
    else:
        more.append(("disagreements with an unsure small model", f"{args.foresight:.0%}"))
    conditions = run.conditions(f"{args.threads} threads, float32 or a file's blocks", more)
    if args.masks:
        text = sections(results, conditions, "###")
        cli.publish(text, args.write, BITA_PAGE, "scripted masks")
    else:
        cli.publish(sections(results, conditions), args.write, PAGE, "pairs")
    missed = [line for result in results for line in shortfalls(result)]
    for line in missed:
        print(f"below the goal: {line}", file=sys.stderr)
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
