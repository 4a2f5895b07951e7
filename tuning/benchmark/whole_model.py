"""Whole models beside other engines, at equal widths of the weights: one machine, one run.

    scripts/bench_models [--write] [--check]

For each model and width (32, 16 and 8 bits) our server, Transformers, CTranslate2 and llama.cpp run
the same weights, where they offer the width, on all cores. They take turns: one stream, then eight.
A figure is new tokens divided by the time from the call to the last token, prompts included; medians
of the turns. Ours goes over gRPC, the others are called in this process. After that each engine that
can makes passes of several rows behind one context, as a verification does; ours by bench_step.
"""

import argparse
import contextlib
import csv
import datetime
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from tuning.benchmark import engines, machine, serving
from tuning.benchmark.models import ROOT, directories, prompts
from tuning.benchmark.report import spread, table

WIDTHS = {
    "32 bit": {
        "ours": "fp32",
        "peers": [("Transformers", "fp32"), ("CTranslate2", "fp32"), ("LlamaCpp", "fp32")],
    },
    "16 bit": {
        "ours": "bf16",
        "peers": [("Transformers", "bf16"), ("LlamaCpp", "bf16"), ("LlamaCpp", "fp16")],
    },
    "8 bit": {"ours": "int8", "peers": [("CTranslate2", "int8"), ("LlamaCpp", "int8")]},
}
# What ours is to be, over the best peer of equal width.
GOALS = {
    ("32 bit", 1): 1.15,
    ("16 bit", 1): 1.6,
    ("8 bit", 1): 1.6,
    ("32 bit", 8): 1.5,
    ("16 bit", 8): 1.5,
    ("8 bit", 8): 1.5,
}
ROWS = [1, 2, 4, 5, 8, 16]
PASS_CONTEXT = 256
PAUSE = 0.3  # seconds between turns: OpenMP's threads go on spinning for a while after work


class Ours:
    """Our server, asked over gRPC."""

    def __init__(self, client, model: str, precision: str):
        self.client, self.model = client, model
        self.name, self.precision = "Tandem", precision

    def generate(self, batch, new_tokens: int):
        return self.client.generate(self.model, batch, new_tokens)


@dataclass
class Case:
    model: str
    width: str
    streams: int
    rates: dict[str, list[float]] = field(default_factory=dict)  # tokens per second, by engine

    def add(self, engine, tokens: int, seconds: float):
        self.rates.setdefault(f"{engine.name} {engine.precision}", []).append(tokens / seconds)

    def ours(self) -> str:
        return next(name for name in self.rates if name.startswith("Tandem"))

    def best(self) -> str:
        return max(
            (name for name in self.rates if not name.startswith("Tandem")),
            key=lambda name: statistics.median(self.rates[name]),
        )

    def ratio(self) -> float:
        return statistics.median(self.rates[self.ours()]) / statistics.median(
            self.rates[self.best()]
        )


def own_passes(model: str, precision: str) -> dict[int, float]:
    """Seconds of a pass by its rows, measured by bench_step on the same shape."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        binary = ROOT / "build/release/bin/bench_step"
        command = [binary, "--csv", path, "--model", model, "--table", "rows", "--dtype", precision]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with path.open() as lines:
            rows = [line for line in csv.reader(lines) if line and line[0] == "rows"]
    return {int(float(line[2])): float(line[3]) / 1e3 for line in rows}


def measure(client, model: str, folder: Path, width: str, source, args):
    precision = WIDTHS[width]["ours"]
    contenders = [Ours(client, model, precision)]
    for name, peer_precision in WIDTHS[width]["peers"]:
        try:
            contenders.append(getattr(engines, name)(folder, peer_precision, machine.cores()))
        except (ValueError, RuntimeError) as error:
            print(f"{name} {peer_precision}: not offered here: {error}", file=sys.stderr)
    cases = []
    for streams in args.streams:
        case = Case(model, width, streams)
        short = [next(source) for _ in range(streams)]
        for one in contenders:
            one.generate(short, 8)
        for turn in range(args.repeats):
            batch = [next(source) for _ in range(streams)]
            first = turn % len(contenders)
            for one in contenders[first:] + contenders[:first]:  # everybody goes first once
                time.sleep(PAUSE)
                tokens, seconds = one.generate(batch, args.new_tokens)
                case.add(one, sum(len(t) for t in tokens), seconds)
        figures = ", ".join(f"{n} {statistics.median(r):.1f}" for n, r in case.rates.items())
        print(f"{model}, {width}, {streams} streams: {figures}", file=sys.stderr)
        cases.append(case)
    passes = {f"Tandem {precision}": own_passes(model, precision)}
    for one in contenders[1:]:
        times = {rows: one.pass_seconds(PASS_CONTEXT, rows, 15) for rows in ROWS}
        if times[1] is not None:
            passes[f"{one.name} {one.precision}"] = times
    return cases, passes


def pass_table(passes: dict) -> str:
    lines = []
    for (model, _), by_engine in passes.items():
        for name, times in by_engine.items():
            cells = [f"{times[r] / times[1]:.2f}" if r in times else "-" for r in ROWS[1:]]
            lines.append([model, name, f"{times[1] * 1e3:.2f}", *cells])
    return table(["model", "engine", "1 row, ms", *(f"{r} rows" for r in ROWS[1:])], lines)


def page(args, cases, passes, busy, command) -> str:
    lines = []
    for case in cases:
        goal = GOALS[case.width, case.streams]
        others = ", ".join(
            f"{name} {spread(rates)}" for name, rates in case.rates.items() if name != case.ours()
        )
        met = "" if case.ratio() >= goal else " (missed)"
        lines.append(
            [
                case.model,
                case.width,
                str(case.streams),
                spread(case.rates[case.ours()]),
                f"**{case.ratio():.2f}**",
                f"{goal:.2f}{met}",
                case.best(),
                others,
            ]
        )
    head = ["model", "weights", "streams", "Tandem, tokens/s", "ratio", "goal", "best peer"]
    versions = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--path", str(engines.PEERS), "--format", "freeze"],
        capture_output=True,
        text=True,
    ).stdout.split()
    return f"""# Whole models beside other engines

Tokens per second of all streams together, prompts included: median of {args.repeats} turns, smallest and
largest in parentheses. Every engine runs the same weights, rounded to the same width, on all cores
and greedily; they take turns in one run. Tandem is asked over gRPC, each prompt a stream of its own;
the others are called in process, Transformers with all prompts as one batch in the fastest of its
variants, CTranslate2 with `generate_batch`, llama.cpp with one `llama_decode` over all sequences a
step. "goal" is what we set out for. llama.cpp is compiled for this very processor; Tandem's binary
runs on any x86-64-v3 and chooses its kernels at start.

{table([*head, "all peers, tokens/s"], lines)}

A pass of several new rows behind {PASS_CONTEXT} others, relative to one row, as a verification makes
it (medians of 15; ours from `bench_step`, which goes through the backend but not through the
scheduler; CTranslate2 cannot go on from a cache):

{pass_table(passes)}

| condition | |
|---|---|
| command | `{command}` |
| commit | {machine.commit(ROOT)} |
| date | {datetime.date.today().isoformat()} |
| processor | {machine.processor()} ({machine.instructions()}), {machine.cores()} cores |
| reading memory | {machine.bandwidth() / 1e9:.1f} GB/s (torch.sum) |
| machine busy before and after | {", ".join(f"{b:.0%}" for b in busy)} |
| versions | transformers {transformers.__version__}, torch {torch.__version__}, {", ".join(versions)} |
| prompt, new tokens | {args.prompt_tokens}, {args.new_tokens} (greedy, end of text ignored) |

Widths: `fp32`, `bf16` and `fp16` are weights as such. `int8` is ours per output channel with
activations rounded per row, CTranslate2's per output channel, and llama.cpp's Q8_0 in blocks of 32.
The random shapes are {", ".join(f"`{m}`" for m in args.models if m.startswith("llama"))} of tuning/benchmark/models.py.
"""


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["code-large", "llama-110m", "llama-350m"])
    parser.add_argument("--widths", nargs="+", default=list(WIDTHS))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks/models.md")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = directories(args.models)
    busy = [machine.load()]
    if busy[0] > 0.1:
        print(f"{busy[0]:.0%} of the machine is busy with something else", file=sys.stderr)
        if args.write:
            print("so this run would not be worth writing down", file=sys.stderr)
            return 2
    source = prompts(args.prompt_tokens)
    cases, passes = [], {}
    for model, folder in folders.items():
        for width in args.widths:
            precision = WIDTHS[width]["ours"]
            with contextlib.ExitStack() as stack:
                client = stack.enter_context(
                    serving.server(models={model: folder}, dtype=precision)
                )
                some, passes[model, width] = measure(client, model, folder, width, source, args)
                cases.extend(some)
    time.sleep(PAUSE)
    busy.append(machine.load())
    command = "scripts/bench_models " + " ".join(arguments or sys.argv[1:])
    text = page(args, cases, passes, busy, command.strip())
    print(text)
    if args.write:
        (ROOT / "docs" / "benchmarks" / "models.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
