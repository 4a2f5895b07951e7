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
class Line:
    """PPD at one early layer with one number of candidates. Times are of a token, in seconds."""

    exit: int
    layers: int  # of the model
    candidates: int
    matched: float  # share of rounds
    adopted: float  # of the matches
    measured: float
    theorem: float  # layers alone
    with_reads: float  # and what it takes to read the early layer between two passes
    by_phase: float  # the same, where layers before the reading have the machine to themselves
    alone: float  # autoregressive, on one processor
    both: float  # autoregressive, on both
    spread: tuple[float, float]  # of measured / by_phase, by turn


def by_case(measured: dict) -> dict[tuple[str, int, int], list[dict]]:
    return {(c["name"], c["exit"], c["candidates"]): c["turns"] for c in measured["cases"]}


def token_seconds(turns: list[dict], tokens: int) -> list[float]:
    return [turn["seconds"] / (tokens - 1) for turn in turns]


@dataclass
class Times:
    """Of a layer, of reading the early one between two passes, and of what comes behind the last
    layer; seconds."""

    layer: float
    reading: float
    end: float


def times(measured: dict, exit_layer: int, at: int, how: str) -> Times:
    """In one turn. how: "", by itself, or "_beside", while the other processor works."""
    cases, tokens = by_case(measured), measured["new_tokens"]

    def of(name: str, exit_layer: int) -> float:
        return token_seconds(cases[name, exit_layer, 0], tokens)[at]

    whole = of("ar" + how, exit_layer if how else 0)
    lower, phases = of("lower" + how, exit_layer), of("phases" + how, exit_layer)
    layer = (whole - lower) / (measured["layers"] - exit_layer)
    return Times(layer, phases - whole, lower - exit_layer * layer)


def predictions(measured: dict, exit_layer: int, turn: dict, at: int) -> tuple[float, float, float]:
    """Of a token in this turn of PPD.

    (Theorem 4.1 with layer times while the other processor worked: a match saves the d - e lower
    layers; the same with what reading the early layer costs, where main has read it; and by phase:
    up to that reading no worker runs, so what is before it takes what it takes alone.)
    """
    layers = measured["layers"]
    upper = layers - exit_layer
    alone, beside = (times(measured, exit_layer, at, how) for how in ("", "_beside"))
    matched = turn["matches"] / (measured["new_tokens"] - 1)
    theorem = (layers - upper * matched) * beside.layer + beside.end
    # After half of the layers a worker has read what main takes over, beside main's own end.
    halves = 2 * exit_layer == layers
    reads = 1 - matched if halves else 1
    before = (exit_layer - upper * matched) * alone.layer + reads * alone.reading
    behind = upper * beside.layer + (beside if halves else alone).end
    return theorem, theorem + reads * beside.reading, before + behind


def evaluate(measured: dict) -> list[Line]:
    """Medians over the turns of what bench_ppd printed."""
    cases, tokens = by_case(measured), measured["new_tokens"]
    alone = statistics.median(token_seconds(cases["ar", 0, 0], tokens))
    both = statistics.median(token_seconds(cases["ar_both", 0, 0], tokens))
    lines = []
    for (name, exit_layer, candidates), turns in cases.items():
        if name != "ppd":
            continue
        said = [predictions(measured, exit_layer, turn, at) for at, turn in enumerate(turns)]
        took = token_seconds(turns, tokens)
        shares = [a / b for a, (_, _, b) in zip(took, said, strict=True)]
        matches = sum(turn["matches"] for turn in turns)
        lines.append(
            Line(
                exit_layer,
                measured["layers"],
                candidates,
                matches / sum(turn["rounds"] for turn in turns),
                sum(turn["adopted"] for turn in turns) / max(1, matches),
                statistics.median(took),
                *(statistics.median(one) for one in zip(*said, strict=True)),
                alone,
                both,
                (min(shares), max(shares)),
            )
        )
    return lines


def break_even(scaling: float, share: float) -> float:
    """The match rate from which PPD beats plain decoding that is `scaling` times as fast on the same
    processors; `share` of the layers lie above the early one. Over 1: none does."""
    return max(0.0, (1 - 1 / scaling) / share)


def section(subject: Subject, lines: list[Line]) -> str:
    rows = []
    for line in lines:
        share = 1 - line.exit / line.layers
        need = break_even(line.alone / line.both, share)
        rows.append(
            [
                f"{line.exit} of {line.layers}",
                str(line.candidates),
                f"{line.matched:.0%} ({line.adopted:.0%})",
                f"{1e3 * line.measured:.2f}",
                f"{1e3 * line.theorem:.2f}",
                f"{1e3 * line.with_reads:.2f}",
                f"{1e3 * line.by_phase:.2f}",
                f"{line.measured / line.theorem:.2f}",
                f"{line.measured / line.with_reads:.2f}",
                f"{line.measured / line.by_phase:.2f} ({line.spread[0]:.2f}-{line.spread[1]:.2f})",
                f"{line.alone / line.measured:.2f}",
                f"{line.both / line.measured:.2f}",
                f"{need:.0%}" if need <= 1 else "none",
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
    one, two = 1e3 * lines[0].alone, 1e3 * lines[0].both
    return f"""### {subject.title}

A token of autoregressive decoding takes {one:.2f} ms on one core and {two:.2f} ms on both ({one / two:.2f} times as fast).

{table(head, rows)}
"""


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
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/bench_ppd")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--busy", action="store_true", help="write what a busy machine gave, too")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    busy = [machine.load_before(args.write and not args.busy)]
    known = subjects()
    found = []
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
        found.append((subject, evaluate(measured)))
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
    text = "\n".join(section(*one) for one in found)
    text += "\n" + table(["condition", ""], [list(pair) for pair in conditions])
    print(text)
    if args.write:
        put(PAGE, "measured", text)
        FIGURE.write_text(draw(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
