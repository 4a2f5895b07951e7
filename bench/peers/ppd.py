"""When PPD pays: its latency on two processors beside Theorem 4.1's and beside more threads.

    scripts/bench_ppd [--write]

bench_ppd (bench/ppd_bench.cpp) runs real models through the real scheduler on CPU devices with
pinned threads, and replaces what they answer by a script, so that an early layer's candidates are
right as often as heads of these models were found to be (docs/benchmarks/ppd.md).
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers import machine
from bench.peers.models import HOME, ROOT, random_llama
from bench.peers.report import put, table

PAGE = ROOT / "docs" / "benchmarks" / "ppd.md"
FIGURE = PAGE.with_suffix(".svg")
CANDIDATES = (1, 3)
TOLERANCE = 0.1  # of what phases say


@dataclass(frozen=True)
class Subject:
    """A model, its early layers, and how often k = 1 and k = 3 candidates are right there."""

    title: str
    path: Path
    rates: dict[int, tuple[float, float]]
    dtype: str = "auto"

    def rates_by_rank(self) -> str:
        """What bench_ppd takes: ranks 2 and 3 share what they have together."""
        exits = []
        for first, three in self.rates.values():
            other = (three - first) / 2
            exits.append(f"{first:g}:{other:g}:{other:g}")
        return ",".join(exits)


def subjects() -> dict[str, Subject]:
    """SmolLM2 at the rates of its own heads; a shape of 350 million weights at the paper's rates of
    Vicuna-13B on SQuAD, by the share of layers below."""
    report = json.loads((ROOT / "models/smollm2-135m-heads/training.json").read_text())
    trained = report["trained"]["humaneval"]
    smollm2 = {layer: (trained[str(layer)][0], trained[str(layer)][1]) for layer in (15, 22)}
    return {
        "smollm2": Subject(
            "SmolLM2 135M Instruct, 4-bit blocks", HOME / "models" / "smollm2-135m.gguf", smollm2
        ),
        "llama-350m": Subject(
            "A Llama of 350 million random weights, int8",
            HOME / "benchmark" / "llama-350m",
            {12: (0.528, 0.684), 18: (0.723, 0.875)},
            "int8",
        ),
    }


@dataclass
class Kind:
    """A kind of round, or a part of one: seconds, measured and by phase."""

    measured: float
    by_phase: float


@dataclass
class Line:
    """PPD at one early layer with one number of candidates. Times are of a token, in seconds; all
    but `mean` are medians over rounds, behind matches and misses each for themselves."""

    exit: int
    layers: int  # of the model
    candidates: int
    matched: float  # share of rounds
    adopted: float  # of the matches
    measured: float
    mean: float  # over all rounds of a turn, its median over the turns
    upper: Kind  # of it: main's passes over the layers above the early one
    theorem: float  # layers alone
    with_reads: float  # and what it takes to read the early layer between two passes
    by_phase: float  # the same, where layers before the reading have the machine to themselves
    after_miss: Kind
    after_match: Kind
    alone: float  # autoregressive, on one processor
    both: float  # autoregressive, on both
    spread: tuple[float, float]  # of a turn's mean / by_phase: quartiles


def by_case(measured: dict) -> dict[tuple[str, int, int], list[dict]]:
    return {(c["name"], c["exit"], c["candidates"]): c["turns"] for c in measured["cases"]}


def median_round(turns: list[dict], kinds=("after_miss", "after_match")) -> float:
    """Over all rounds of these kinds; 0 without any."""
    rounds = [seconds for turn in turns for kind in kinds for seconds in turn[kind]]
    return statistics.median(rounds) if rounds else 0


@dataclass
class Times:
    """Of a layer, of reading the early one between two passes, and of what comes behind the last
    layer; seconds."""

    layer: float
    reading: float
    end: float


def times(measured: dict, how: str) -> Times:
    """Of medians of rounds, a line through the models of all depths. how: "", by itself, or
    "_beside", while the other processor works."""
    cases = by_case(measured)
    points, readings = [], []
    for exit_layer in sorted({exit_layer for _, exit_layer, _ in cases if exit_layer}):
        whole = median_round(cases["ar" + how, exit_layer if how else 0, 0])
        points.append((measured["layers"], whole))
        points.append((exit_layer, median_round(cases["lower" + how, exit_layer, 0])))
        readings.append(median_round(cases["phases" + how, exit_layer, 0]) - whole)
    layer, end = statistics.linear_regression(*zip(*points, strict=True))
    return Times(layer, statistics.median(readings), end)


def line(measured: dict, exit_layer: int, candidates: int, alone: Times, beside: Times) -> Line:
    """By Theorem 4.1 with layer times while the other processor worked a match saves the d - e
    lower layers; with reads, what reading the early layer costs where main has read it; and by
    phase: up to that reading no worker runs, so what is before it takes what it takes alone."""
    cases, layers = by_case(measured), measured["layers"]
    turns = cases["ppd", exit_layer, candidates]
    matches = sum(turn["matches"] for turn in turns)
    rounds = [sum(len(turn[kind]) for turn in turns) for kind in ("after_miss", "after_match")]
    share = rounds[1] / sum(rounds)
    upper = layers - exit_layer
    theorem = (layers - upper * share) * beside.layer + beside.end
    # After half of the layers a worker has read what main takes over, beside main's own end.
    halves = 2 * exit_layer == layers
    reads = 1 - share if halves else 1
    behind = upper * beside.layer + (beside if halves else alone).end
    kinds = (
        Kind(
            median_round(turns, ["after_miss"]),
            exit_layer * alone.layer + alone.reading + behind,
        ),
        Kind(
            median_round(turns, ["after_match"]),
            (exit_layer - upper) * alone.layer + (0 if halves else alone.reading) + behind,
        ),
    )
    by_phase = (1 - share) * kinds[0].by_phase + share * kinds[1].by_phase
    means = [turn["seconds"] / (measured["new_tokens"] - 1) for turn in turns]
    # With the prompt's own time one round's lower layers were taken off, too.
    once = exit_layer * alone.layer + alone.reading
    upper_means = [(turn["upper"] + once) / (measured["new_tokens"] - 1) for turn in turns]
    ratios = sorted(mean / by_phase for mean in means)
    return Line(
        exit_layer,
        layers,
        candidates,
        matches / sum(turn["rounds"] for turn in turns),
        sum(turn["adopted"] for turn in turns) / max(1, matches),
        (1 - share) * kinds[0].measured + share * kinds[1].measured,
        statistics.median(means),
        Kind(statistics.median(upper_means), behind),
        theorem,
        theorem + reads * beside.reading,
        by_phase,
        *kinds,
        median_round(cases["ar", 0, 0]),
        median_round(cases["ar_both", 0, 0]),
        (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]),
    )


def evaluate(measured: dict) -> list[Line]:
    """What bench_ppd printed, case by case."""
    alone, beside = (times(measured, how) for how in ("", "_beside"))
    return [
        line(measured, exit_layer, candidates, alone, beside)
        for name, exit_layer, candidates in by_case(measured)
        if name == "ppd"
    ]


def break_even(scaling: float, share: float) -> float:
    """The match rate from which PPD beats plain decoding that is `scaling` times as fast on the same
    processors; `share` of the layers lie above the early one. Over 1: none does."""
    return max(0.0, (1 - 1 / scaling) / share)


def layer_times(measured: dict) -> str:
    """As a table, in milliseconds."""
    rows = []
    for name, how in (("alone", ""), ("beside", "_beside")):
        found = times(measured, how)
        rows.append([name, *(f"{1e3 * t:.3f}" for t in (found.layer, found.reading, found.end))])
    return table(["ms", "a layer", "reading the early layer", "behind the last layer"], rows)


def section(subject: Subject, lines: list[Line], measured: dict) -> str:
    rows, profile = [], []
    for line in lines:
        share = 1 - line.exit / line.layers
        need = break_even(line.alone / line.both, share)
        about = [f"{line.exit} of {line.layers}", str(line.candidates)]
        rows.append(
            [
                *about,
                f"{line.matched:.0%} ({line.adopted:.0%})",
                f"{1e3 * line.measured:.2f}",
                f"{1e3 * line.theorem:.2f}",
                f"{1e3 * line.with_reads:.2f}",
                f"{1e3 * line.by_phase:.2f}",
                f"{line.measured / line.theorem:.2f}",
                f"{line.measured / line.with_reads:.2f}",
                f"{line.measured / line.by_phase:.2f}",
                f"{line.alone / line.measured:.2f}",
                f"{line.both / line.measured:.2f}",
                f"{need:.0%}" if need <= 1 else "none",
            ]
        )
        profile.append(
            [
                *about,
                *(
                    f"{1e3 * kind.measured:.2f} / {1e3 * kind.by_phase:.2f}"
                    for kind in (line.after_miss, line.after_match)
                ),
                f"{1e3 * line.mean:.2f}",
                f"{1e3 * line.upper.measured:.2f} / {1e3 * line.upper.by_phase:.2f}",
                f"{line.mean / line.by_phase:.2f} ({line.spread[0]:.2f}-{line.spread[1]:.2f})",
            ]
        )
    head = [
        "early layer",
        "k",
        "matches (in time)",
        "ms, measured",
        "theorem",
        "with reads",
        "by phase",
        "measured / theorem",
        "measured / with reads",
        "measured / by phase",
        "over AR, one core",
        "over AR, both",
        "break-even match rate",
    ]
    deeper = [
        "early layer",
        "k",
        "ms behind a miss: measured / by phase",
        "behind a match",
        "ms, mean of all rounds",
        "of it: upper layers",
        "mean / by phase (quartiles of turns)",
    ]
    one, two = 1e3 * lines[0].alone, 1e3 * lines[0].both
    return f"""### {subject.title}

A token of autoregressive decoding takes {one:.2f} ms on one core and {two:.2f} ms on both ({one / two:.2f} times as fast).

{table(head, rows)}

{layer_times(measured)}

{table(deeper, profile)}
"""


def verdict(found: list[tuple[Subject, list[Line]]]) -> str:
    """How many rows are what phases say, and where the others differ."""
    rows = [(subject, line) for subject, lines in found for line in lines]
    off = [
        f"{subject.title.split(',')[0]} at {line.exit} of {line.layers}, k = {line.candidates}: "
        + ", ".join(
            f"behind a {name} {kind.measured / kind.by_phase:.2f}"
            for name, kind in (("miss", line.after_miss), ("match", line.after_match))
        )
        for subject, line in rows
        if abs(line.measured / line.by_phase - 1) > TOLERANCE
    ]
    text = (
        f"Measured is within {TOLERANCE:.0%} of what phases say in {len(rows) - len(off)} of "
        f"{len(rows)} rows."
    )
    return text + (" Of it the others take: " + "; ".join(off) + "." if off else "")


COLOURS = ("#1f6fb2", "#c2571a", "#3a8f4d", "#8452a1")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 380, 52, 190, 34, 44
LOW, HIGH = 0.6, 2.1  # speed-ups


def draw(found: list[tuple[Subject, list[Line]]]) -> str:
    """Speed-up over one device by match rate: the theorem's curves, what was measured, and what
    plain decoding has of both cores, above which PPD would have to come."""

    def at(rate: float, speed: float) -> tuple[float, float]:
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + rate * across, HEIGHT - BOTTOM - (speed - LOW) / (HIGH - LOW) * up

    def text(x: float, y: float, what: str, style: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{what}</text>'

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text{font:11px sans-serif;fill:#333}.title{font-weight:bold}"
        ".grid{stroke:#ddd}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 20, "Speed-up over one device, by match rate", 'class="title"'),
        text((LEFT + WIDTH - RIGHT) / 2 - 30, HEIGHT - 8, "match rate p"),
    ]
    for step in range(7, 22, 2):
        x, y = at(0, step / 10)
        out.append(f'<line x1="{x}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        out.append(text(x - 6, y + 4, f"{step / 10:g}", 'text-anchor="end"'))
    for rate in (0, 0.25, 0.5, 0.75, 1):
        x, _ = at(rate, LOW)
        out.append(text(x, HEIGHT - BOTTOM + 16, f"{rate:g}", 'text-anchor="middle"'))
    for share in (0.5, 0.25):
        curve = [at(p / 50, 1 / (1 - share * p / 50)) for p in range(51)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in curve)
        out.append(f'<polyline points="{path}" fill="none" stroke="#333" stroke-width="1.5"/>')
        x, y = curve[-1]
        out.append(text(x + 6, y + 4, f"Theorem 4.1, {1 - share:.0%} of layers below"))
    for number, (subject, lines) in enumerate(found):
        colour = COLOURS[number]
        style = f'style="fill:{colour}"'
        scaling = lines[0].alone / lines[0].both
        (x, y), (end, _) = at(0, scaling), at(1, scaling)
        out.append(
            f'<line x1="{x:.1f}" x2="{end:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
            'stroke-dasharray="5 4"/>'
        )
        name = subject.title.split(",")[0]
        out.append(text(end + 6, y + 4 + 12 * number, f"AR on both cores: {name}", style))
        for line in lines:
            x, y = at(line.matched, line.alone / line.measured)
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            point = f"{line.exit}/{line.layers}, k {line.candidates}"
            out.append(text(x + 6, y + 12, point, style))
    return "\n".join([*out, "</svg>", ""])


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=["smollm2", "llama-350m"])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/bench_ppd")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--busy", action="store_true", help="write what a busy machine gave, too")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    busy = [machine.load_before(args.write and not args.busy)]
    known = subjects()
    found, sections = [], []
    for name in args.models or known:
        subject = known[name]
        if name == "llama-350m":
            random_llama(name)
        command = [args.binary, "--model", subject.path, "--dtype", subject.dtype]
        command += ["--exit-layers", ",".join(map(str, subject.rates))]
        command += ["--candidates", ",".join(map(str, CANDIDATES))]
        command += ["--rates", subject.rates_by_rank(), "--turns", str(args.turns)]
        command += ["--new-tokens", str(args.new_tokens)]
        command += ["--prompt-tokens", str(args.prompt_tokens)]
        measured = json.loads(subprocess.check_output(command, text=True))
        lines = evaluate(measured)
        sections.append(section(subject, lines, measured))
        found.append((subject, lines))
    busy.append(machine.load())
    conditions = [
        ("command", f"`{' '.join(['scripts/bench_ppd', *(arguments or sys.argv[1:])])}`"),
        ("commit", machine.commit(ROOT)),
        ("date", datetime.date.today().isoformat()),
        (
            "processor",
            f"{machine.processor()} ({machine.instructions()}), {machine.cores()} cores, "
            "cpu:0 and cpu:1 with one pinned thread each",
        ),
        ("machine busy before and after", ", ".join(f"{b:.0%}" for b in busy)),
        ("prompt, new tokens, turns", f"{args.prompt_tokens}, {args.new_tokens}, {args.turns}"),
    ]
    text = (
        "\n".join(sections)
        + f"\n{verdict(found)}\n\n"
        + table(["condition", ""], [list(pair) for pair in conditions])
    )
    print(text)
    if args.write:
        put(PAGE, "measured", text)
        FIGURE.write_text(draw(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
