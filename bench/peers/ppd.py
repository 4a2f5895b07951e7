"""Compares the latency of PPD on two processors with Theorem 4.1 and with plain decoding on both.

    scripts/bench_ppd [--write]

bench_ppd (bench/ppd_bench.cpp) runs real models through the scheduler on CPU devices with pinned
threads, and replaces their outputs by a script, so that candidates match at the measured rates of
trained heads (docs/reports/ppd.md).
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers import cli
from bench.peers.models import random_llama
from measure.paths import HOME, ROOT
from measure.report import table

PAGE = ROOT / "docs" / "reports" / "ppd.md"
FIGURE = PAGE.with_suffix(".svg")
CANDIDATES = (1, 3)
TOLERANCE = 0.1


@dataclass(frozen=True)
class Subject:
    """A model, and the match rates of k = 1 and k = 3 candidates by early layer and draft vocabulary
    (0: all tokens). Each early layer has the same draft vocabularies."""

    title: str
    path: Path
    rates: dict[tuple[int, int], tuple[float, float]]
    dtype: str = "auto"

    def arguments(self) -> list[str]:
        """Arguments of bench_ppd; ranks 2 and 3 have half of their joint rate each."""
        exits = sorted({exit_layer for exit_layer, _ in self.rates})
        vocabularies = sorted({ids for _, ids in self.rates})
        rates = []
        for exit_layer in exits:
            for ids in vocabularies:
                first, three = self.rates[exit_layer, ids]
                other = (three - first) / 2
                rates.append(f"{first:g}:{other:g}:{other:g}")
        return [
            *("--model", str(self.path), "--dtype", self.dtype),
            *("--exit-layers", ",".join(map(str, exits))),
            *("--draft-vocabularies", ",".join(map(str, vocabularies))),
            *("--rates", ",".join(rates)),
        ]


def subjects() -> dict[str, Subject]:
    """SmolLM2 at the match rates of its trained heads, for all and for frequent tokens; a shape of 350 million
    weights with a small vocabulary at the paper's rates of Vicuna-13B on SQuAD, by share of lower layers."""
    report = json.loads((ROOT / "models/smollm2-135m-heads/training.json").read_text())
    smollm2 = {}
    kinds = {"trained": 0}
    if "frequent" in report:
        kinds["frequent"] = report["draft_vocabulary"]
    for kind, ids in kinds.items():
        for layer in (15, 22):
            first, three, _ = report[kind]["humaneval"][str(layer)]
            smollm2[layer, ids] = (first, three)
    return {
        "smollm2": Subject(
            "SmolLM2 135M Instruct, 4-bit blocks", HOME / "models" / "smollm2-135m.gguf", smollm2
        ),
        "llama-350m": Subject(
            "A Llama of 350 million random weights, int8",
            HOME / "benchmark" / "llama-350m",
            {(12, 0): (0.528, 0.684), (18, 0): (0.723, 0.875)},
            "int8",
        ),
    }


@dataclass
class Kind:
    """A kind of round, or a phase of it: seconds, measured and predicted by phase."""

    measured: float
    by_phase: float


@dataclass
class Line:
    """PPD with one early layer and one number of candidates. Times are seconds per token. Except for means they
    are medians over rounds, separately after matches and misses."""

    exit: int
    layers: int  # of the model
    candidates: int
    draft_vocabulary: int  # 0: all
    matched: float  # share of rounds
    adopted: float  # of the matches
    measured: float
    mean: float  # mean over the rounds of a turn, median over the turns
    lower: Kind  # part of the mean: main up to the early layer and its output
    upper: Kind  # main's layers above it
    barrier: float  # waits for workers
    theorem: float  # layers alone
    with_reads: float  # also the output of the early layer between two passes
    by_phase: float  # the same, with layers before that output on an otherwise idle machine
    after_miss: Kind
    after_match: Kind
    alone: float  # autoregressive, on one processor
    both: float  # autoregressive, on both
    spread: tuple[float, float]  # of a turn's mean / by_phase: quartiles


def by_case(measured: dict) -> dict[tuple[str, int, int, int], list[dict]]:
    """Turns by name, early layer, candidates and draft vocabulary."""
    return {
        (c["name"], c["exit"], c["candidates"], c["draft_vocabulary"]): c["turns"]
        for c in measured["cases"]
    }


def median_round(turns: list[dict], kinds=("after_miss", "after_match")) -> float:
    """Mean over all rounds of these kinds; 0 without any."""
    rounds = [seconds for turn in turns for kind in kinds for seconds in turn[kind]]
    return statistics.median(rounds) if rounds else 0


@dataclass
class Times:
    """Seconds of a layer, of the output of the early layer by draft vocabulary, and of the work after the last
    layer."""

    layer: float
    reading: dict[int, float]
    end: float


def times(measured: dict, how: str) -> Times:
    """Linear fit of the medians of rounds over the models of all depths. how: "" with an idle, "_beside" with a
    busy second processor."""
    cases = by_case(measured)
    vocabularies = sorted({ids for *_, ids in cases})
    points: list[tuple[int, float]] = []
    readings: dict[int, list[float]] = {ids: [] for ids in vocabularies}
    for exit_layer in sorted({exit_layer for _, exit_layer, *_ in cases if exit_layer}):
        whole = median_round(cases["ar" + how, exit_layer if how else 0, 0, 0])
        points.append((measured["layers"], whole))
        points.append((exit_layer, median_round(cases["lower" + how, exit_layer, 0, 0])))
        for ids in vocabularies:
            phases = cases.get(("phases" + how, exit_layer, 0, ids))
            if phases:
                readings[ids].append(median_round(phases) - whole)
    layer, end = statistics.linear_regression(*zip(*points, strict=True))
    reading = {ids: statistics.median(found) for ids, found in readings.items() if found}
    return Times(layer, reading, end)


def line(
    measured: dict, exit_layer: int, candidates: int, ids: int, alone: Times, beside: Times
) -> Line:
    """Predictions. Theorem 4.1 with layer times under load: a match saves the d - e lower layers. With reads: plus
    the output of the early layer by main. By phase: no worker runs before that output, so the part before
    it has unloaded layer times."""
    cases, layers = by_case(measured), measured["layers"]
    turns = cases["ppd", exit_layer, candidates, ids]
    matches = sum(turn["matches"] for turn in turns)
    rounds = [sum(len(turn[kind]) for turn in turns) for kind in ("after_miss", "after_match")]
    share = rounds[1] / sum(rounds)
    saved = layers - exit_layer
    theorem = (layers - saved * share) * beside.layer + beside.end
    # From half of the layers on, a worker computes the output that main adopts, concurrently with main.
    halves = 2 * exit_layer == layers
    reads = 1 - share if halves else 1
    upper = saved * beside.layer + (beside if halves else alone).end
    lower = (
        exit_layer * alone.layer + alone.reading[ids],
        (exit_layer - saved) * alone.layer + (0 if halves else alone.reading[ids]),
    )
    kinds = [
        Kind(median_round(turns, [name]), before + upper)
        for name, before in zip(("after_miss", "after_match"), lower, strict=True)
    ]

    def of_both(miss: float, match: float) -> float:
        return (1 - share) * miss + share * match

    def mean(part: str) -> float:
        return statistics.median(turn[part] / (measured["new_tokens"] - 1) for turn in turns)

    by_phase = of_both(*(kind.by_phase for kind in kinds))
    ratios = sorted(turn["seconds"] / (measured["new_tokens"] - 1) / by_phase for turn in turns)
    return Line(
        exit_layer,
        layers,
        candidates,
        ids,
        matches / sum(turn["rounds"] for turn in turns),
        sum(turn["adopted"] for turn in turns) / max(1, matches),
        of_both(*(kind.measured for kind in kinds)),
        mean("seconds"),
        Kind(mean("lower"), of_both(*lower)),
        Kind(mean("upper"), upper),
        mean("barrier"),
        theorem,
        theorem + reads * beside.reading[ids],
        by_phase,
        *kinds,
        median_round(cases["ar", 0, 0, 0]),
        median_round(cases["ar_both", 0, 0, 0]),
        (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]),
    )


def evaluate(measured: dict) -> list[Line]:
    """Evaluates the output of bench_ppd, case by case."""
    alone, beside = (times(measured, how) for how in ("", "_beside"))
    return [
        line(measured, exit_layer, candidates, ids, alone, beside)
        for name, exit_layer, candidates, ids in by_case(measured)
        if name == "ppd"
    ]


def break_even(scaling: float, share: float) -> float:
    """Least match rate at which PPD is faster than plain decoding that gains `scaling` from the same processors;
    `share` of the layers are above the early one. Above 1: never."""
    return max(0.0, (1 - 1 / scaling) / share)


def tokens(ids: int) -> str:
    return f"first {ids}" if ids else "all"


def layer_times(measured: dict) -> str:
    """As a table, in milliseconds."""
    found = [
        (name, times(measured, how)) for name, how in (("idle", ""), ("under load", "_beside"))
    ]
    reads = [f"reading the early layer, {tokens(ids)} tokens" for ids in found[0][1].reading]
    rows = [
        [name, *(f"{1e3 * t:.3f}" for t in (of.layer, *of.reading.values(), of.end))]
        for name, of in found
    ]
    return table(["ms", "layer", *reads, "after the last layer"], rows)


# Predictions and their names on the page.
KINDS = {"theorem": "the theorem", "with_reads": "it with reads", "by_phase": "phases"}


def section(subject: Subject, lines: list[Line], measured: dict) -> str:
    rows, terms, profile = [], [], []
    for line in lines:
        share = 1 - line.exit / line.layers
        need = break_even(line.alone / line.both, share)
        about = [
            f"{line.exit} of {line.layers}",
            str(line.candidates),
            tokens(line.draft_vocabulary),
        ]
        said = [getattr(line, kind) for kind in KINDS]
        rows.append(
            [
                *about,
                f"{line.matched:.0%} ({line.adopted:.0%})",
                f"{1e3 * line.measured:.2f}",
                *(f"{1e3 * seconds:.2f} ({line.measured / seconds:.2f})" for seconds in said),
                f"{line.alone / line.measured:.2f}",
                f"{line.both / line.measured:.2f}",
                f"{need:.0%}" if need <= 1 else "none",
            ]
        )
        steps = [
            line.with_reads - line.theorem,
            line.by_phase - line.with_reads,
            line.measured - line.by_phase,
        ]
        terms.append(
            [
                *about,
                f"{1e3 * line.theorem:.2f}",
                *(f"{1e3 * step:+.2f}" for step in steps),
                f"{1e3 * line.measured:.2f}",
            ]
        )
        profile.append(
            [
                *about,
                *(
                    f"{1e3 * kind.measured:.2f} / {1e3 * kind.by_phase:.2f}"
                    for kind in (line.after_miss, line.after_match, line.lower, line.upper)
                ),
                f"{1e3 * line.barrier:.2f}",
                f"{1e3 * line.mean:.2f}",
                f"{line.mean / line.by_phase:.2f} ({line.spread[0]:.2f}-{line.spread[1]:.2f})",
            ]
        )
    about = ["early layer", "k", "candidates of"]
    head = [
        *about,
        "matches (in time)",
        "ms, measured",
        "theorem (measured / it)",
        "with reads",
        "by phase",
        "over AR, one core",
        "over AR, both",
        "break-even match rate",
    ]
    ways = [
        *about,
        "ms, theorem",
        "reading the early layer",
        "lower layers alone",
        "unexplained",
        "measured",
    ]
    deeper = [
        *about,
        "ms after a miss: measured / by phase",
        "after a match",
        "mean: to the early layer",
        "above it",
        "waiting for workers",
        "all",
        "mean / by phase (quartiles of turns)",
    ]
    one, two = 1e3 * lines[0].alone, 1e3 * lines[0].both
    return f"""### {subject.title}

Autoregressive decoding takes {one:.2f} ms per token on one core and {two:.2f} ms on both ({one / two:.2f} ×).

{table(head, rows)}

From the theorem to the measured time:

{table(ways, terms)}

Time per layer, and parts of a round (the last columns are means over all rounds):

{layer_times(measured)}

{table(deeper, profile)}
"""


def verdict(found: list[tuple[Subject, list[Line]]]) -> str:
    """Number of rows within the tolerance of each prediction."""
    rows = [(subject, line) for subject, lines in found for line in lines]
    parts = []
    for kind, name in KINDS.items():
        near = [abs(line.measured / getattr(line, kind) - 1) <= TOLERANCE for _, line in rows]
        parts.append(f"of {name} in {sum(near)}")
    return f"Of {len(rows)} rows, the measured time is within {TOLERANCE:.0%} {', '.join(parts)}."


COLOURS = ("#1f6fb2", "#c2571a", "#3a8f4d", "#8452a1")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 380, 52, 190, 34, 44


@dataclass
class Panel:
    """One of the two panels, from `top` down."""

    top: int
    title: str
    across: str  # meaning of the horizontal axis
    x: tuple[float, float]
    y: tuple[float, float]
    out: list[str]

    def at(self, x: float, y: float) -> tuple[float, float]:
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (
            LEFT + (x - self.x[0]) / (self.x[1] - self.x[0]) * width,
            self.top + HEIGHT - BOTTOM - (y - self.y[0]) / (self.y[1] - self.y[0]) * height,
        )

    def text(self, x: float, y: float, what: str, style: str = "") -> None:
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{what}</text>')

    def axes(self, columns: list[float], rows: list[float]) -> None:
        self.text(LEFT, self.top + 20, self.title, 'class="title"')
        self.text((LEFT + WIDTH - RIGHT) / 2 - 60, self.top + HEIGHT - 8, self.across)
        for value in rows:
            x, y = self.at(self.x[0], value)
            line = f'x1="{x}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"'
            self.out.append(f"<line {line}/>")
            self.text(x - 6, y + 4, f"{value:g}", 'text-anchor="end"')
        for value in columns:
            x, y = self.at(value, self.y[0])
            self.text(x, y + 16, f"{value:g}", 'text-anchor="middle"')

    def curve(self, points: list[tuple[float, float]], name: str, style: str = "#333") -> None:
        path = " ".join("{:.1f},{:.1f}".format(*self.at(*point)) for point in points)
        shape = f'points="{path}" fill="none" stroke="{style}" stroke-width="1.5"'
        self.out.append(f"<polyline {shape}/>")
        x, y = self.at(*points[-1])
        self.text(x + 6, y + 4, name)

    def point(self, x: float, y: float, name: str, colour: str) -> None:
        x, y = self.at(x, y)
        self.out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        self.text(x + 6, y + 12, name, f'style="fill:{colour}"')


def draw(found: list[tuple[Subject, list[Line]]]) -> str:
    """Upper panel: speed-up over one device by match rate: curves of the theorem, measurements, and plain decoding
    on both cores, which PPD would have to exceed. Lower panel: the match rate at which it does, by the gain of
    plain decoding from the same devices."""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{2 * HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {2 * HEIGHT}">',
        "<style>text{font:11px sans-serif;fill:#333}.title{font-weight:bold}"
        ".grid{stroke:#ddd}</style>",
        f'<rect width="{WIDTH}" height="{2 * HEIGHT}" fill="white"/>',
    ]
    speed = Panel(
        0, "Speed-up over one device, by match rate", "match rate p", (0, 1), (0.6, 2.1), out
    )
    speed.axes([0, 0.25, 0.5, 0.75, 1], [step / 10 for step in range(7, 22, 2)])
    need = Panel(
        HEIGHT,
        "Break-even: the match rate from which k + 1 devices are better used by PPD",
        "plain decoding on all k + 1 devices, over one",
        (1, 2),
        (0, 1),
        out,
    )
    need.axes([1, 1.25, 1.5, 1.75, 2], [0, 0.25, 0.5, 0.75, 1])
    for share in (0.5, 0.25):
        name = f"Theorem 4.1, {1 - share:.0%} of layers below"
        rates = [p / 50 for p in range(51)]
        speed.curve([(p, 1 / (1 - share * p)) for p in rates], name)
        need.curve([(1 / (1 - share * p), p) for p in rates], name)
    for number, (subject, lines) in enumerate(found):
        colour = COLOURS[number]
        scaling = lines[0].alone / lines[0].both
        (x, y), (end, _) = speed.at(0, scaling), speed.at(1, scaling)
        out.append(
            f'<line x1="{x:.1f}" x2="{end:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
            'stroke-dasharray="5 4"/>'
        )
        name = f"AR on both cores: {subject.title.split(',')[0]}"
        speed.text(end + 6, y + 4 + 12 * number, name, f'style="fill:{colour}"')
        for line in lines:
            point = f"{line.exit}/{line.layers}, k {line.candidates}"
            if line.draft_vocabulary:
                point += f", {line.draft_vocabulary}"
            speed.point(line.matched, line.alone / line.measured, point, colour)
            if not line.draft_vocabulary:  # with nearly the rates of all tokens
                need.point(scaling, line.matched, point, colour)
    return "\n".join([*out, "</svg>", ""])


def parse(arguments):
    parser = cli.parser(__doc__, PAGE, busy=True)
    parser.add_argument("--models", nargs="+", choices=["smollm2", "llama-350m"])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/bench_ppd")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    run = cli.Run("scripts/bench_ppd", arguments, args.write and not args.busy)
    known = subjects()
    found, sections = [], []
    for name in args.models or known:
        subject = known[name]
        if name == "llama-350m":
            random_llama(name)
        command = [args.binary, *subject.arguments(), "--turns", str(args.turns)]
        command += ["--candidates", ",".join(map(str, CANDIDATES))]
        command += ["--new-tokens", str(args.new_tokens)]
        command += ["--prompt-tokens", str(args.prompt_tokens)]
        measured = json.loads(subprocess.check_output(command, text=True))
        lines = evaluate(measured)
        sections.append(section(subject, lines, measured))
        found.append((subject, lines))
    sizes = f"{args.prompt_tokens}, {args.new_tokens}, {args.turns}"
    conditions = run.conditions(
        "cpu:0 and cpu:1 with one pinned thread each", [("prompt, new tokens, turns", sizes)]
    )
    text = "\n".join(sections) + f"\n{verdict(found)}\n\n{conditions}"
    cli.publish(text, args.write, PAGE, "measured")
    if args.write:
        FIGURE.write_text(draw(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
