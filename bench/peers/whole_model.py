"""Compares whole models with other engines at equal weight widths: one machine, one run per part.

    scripts/bench_models [--models M ...] [--widths W ...] [--steps S ...] [--write]

A part is a model at a weight width (32, 16 or 8 bits): Tandem, Transformers, CTranslate2 and llama.cpp with
the same weights, if they support the width. Each engine is a separate process, which is stopped while another
one is measured. The steps, by default all:

    prepare  converts the weights for engines with other file formats
    trial    selects the fastest settings of each peer
    measure  all engines in turns: one stream, eight streams, passes of several rows
    profile  parts of Tandem's steps, by bench_step with the same shape
    report   prints the tables of all measured parts; --write updates docs/reports

Results are in TANDEM_HOME/benchmark/results, so parts can be measured one by one.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers import models_page
from bench.peers.engines import CTranslate2, LlamaCpp, Tandem, Transformers
from bench.peers.models import directories, kept_numbers, multiplied_weights, prompts
from bench.peers.worker import Failed, Refused, Worker
from measure import machine
from measure.paths import HOME, ROOT
from measure.report import put

RESULTS = HOME / "benchmark" / "results"
BINARIES = ROOT / "build/release/bin"
MODELS = ["code-large", "llama-110m", "llama-350m"]
# Name of the width, precision of Tandem, precisions of the peers.
WIDTHS = {
    "32": ("fp32", [(Transformers, "fp32"), (CTranslate2, "fp32"), (LlamaCpp, "fp32")]),
    "16": (
        "bf16",
        [
            (Transformers, "bf16"),
            (CTranslate2, "bf16"),
            (CTranslate2, "fp16"),
            (LlamaCpp, "bf16"),
            (LlamaCpp, "fp16"),
        ],
    ),
    "8": ("int8", [(Transformers, "int8"), (CTranslate2, "int8"), (LlamaCpp, "int8")]),
}
STREAMS = [1, 8]
ROWS = [1, 2, 4, 5, 8, 16]
PASS_CONTEXT, PASS_REPEATS = 256, 9


@dataclass(frozen=True)
class Length:
    """Size of a part, so that each step takes less than 150 s."""

    prompt: int = 64  # tokens of each stream
    new: int = 64
    turns: int = 3
    trial_new: int = 16


LENGTHS = {
    "code-large": Length(new=256, turns=5, trial_new=64),
    "llama-350m": Length(prompt=32, new=24, trial_new=8),
}
TRIAL_PROMPT, TRIAL_BATCHES = 32, 2
HOPELESS = 1.3  # a setting this much slower at first is not measured again
BETTER = 0.98  # least gain over the default
STEPS = ["prepare", "trial", "measure", "profile", "report"]


def path_of(model: str, width: str, what: str = "") -> Path:
    return RESULTS / f"{model}-{width}{what}.json"


def write(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(value, indent=1))
    beside.rename(path)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def split(settings: dict):
    """Settings for a new process's environment, and for configure()."""
    environment = {k: v for k, v in settings.items() if k.isupper()}
    return environment, {k: v for k, v in settings.items() if k not in environment}


class Contender:
    """An engine at a precision, with one process per environment."""

    def __init__(self, kind, precision: str, folder: Path):
        self.kind, self.precision, self.folder = kind, precision, folder
        self.name = models_page.engine_name(kind.__name__, precision)
        self.worker: Worker | None = None

    def defaults(self) -> dict:
        return {name: values[0] for name, values in self.kind.OPTIONS.items()}

    def set(self, settings: dict) -> None:
        environment, options = split(settings)
        if self.worker is None or self.worker.environment != environment:
            self.close()
            self.worker = Worker(self.kind, self.folder, self.precision, environment)
        self.worker.ask("configure", **options)

    def generate(self, batch, new_tokens: int):
        return self.worker.ask("generate", prompts=batch, new_tokens=new_tokens)

    def run(self, batch, others, new_tokens: int):
        """Tokens of `batch`, and the seconds: of all, and of the first ones alone.

        The latter are the seconds of a call for one token of each of `others`, of equal number and length. This is
        independent of the engine's own statistics, and caches have no hits.
        """
        _, first = self.generate(others, 1)
        tokens, seconds = self.generate(batch, new_tokens)
        return tokens, {"first": first, "seconds": seconds}

    def warm(self, batch) -> None:
        self.generate([prompt[:8] for prompt in batch], 3)

    def close(self) -> None:
        if self.worker:
            self.worker.close()
        self.worker = None


def peers(width: str, folder: Path):
    return [Contender(kind, precision, folder) for kind, precision in WIDTHS[width][1]]


def prepare(model: str, width: str, folder: Path) -> None:
    for one in peers(width, folder):
        with contextlib.closing(one):
            try:
                one.set(one.defaults())
                say(f"{model}, {one.name}: there")
            except Refused as error:
                say(f"{model}, {one.name}: {error}")


def decode_seconds(one: Contender, settings: dict, batches, new_tokens: int, limit: float) -> float:
    """Seconds of a step after the first one: the minimum over the batches.

    Stops above the limit.
    """
    one.set(settings)
    others = batches[0]
    one.warm(others)
    _, first = one.generate(others, 1)
    step = float("inf")
    for batch in batches[1:]:
        _, seconds = one.generate(batch, new_tokens)
        step = min(step, (seconds - first) / (new_tokens - 1))
        if step > limit:
            break
    return step


def choose(one, batches, new_tokens: int):
    """The fastest settings, by coordinate search, and seconds per step of all tried ones.

    A faster setting must also beat a second measurement of the best one, which may have been disturbed.
    """

    def measure(settings, limit=float("inf")):
        seconds = decode_seconds(one, settings, batches, new_tokens, limit)
        tried.append({"settings": settings, "seconds": seconds})
        return seconds

    best, tried = one.defaults(), []
    least = measure(best)
    for name, values in one.kind.OPTIONS.items():
        for value in values[1:]:
            candidate = {**best, name: value}
            try:
                seconds = measure(candidate, HOPELESS * least)
                if seconds < BETTER * least:
                    least = min(least, measure(best))
            except Failed as error:
                say(f"{one.name} with {name} = {value}: {error}")
                continue
            if seconds < BETTER * least:
                best, least = candidate, seconds
    return best, tried


def trial(model: str, width: str, folder: Path, args) -> None:
    chosen = {}
    source = prompts(TRIAL_PROMPT, start=1)
    for one in peers(width, folder):
        with contextlib.closing(one):
            for streams in args.streams:
                batches = [[next(source) for _ in range(streams)] for _ in range(1 + TRIAL_BATCHES)]
                try:
                    best, tried = choose(one, batches, length(model, args).trial_new)
                except Refused:
                    break
                chosen.setdefault(one.name, {})[str(streams)] = {"settings": best, "tried": tried}
                step = min(t["seconds"] for t in tried)
                say(f"{model}, {one.name}, streams {streams}: {best}, {step * 1e3:.2f} ms a step")
    write(path_of(model, width, "-trial"), chosen)


def read_probe() -> float:
    """Memory bandwidth in bytes per second, by the probe of bench_products."""
    command = [BINARIES / "bench_products", "--shape", "4096x1024", "--rows", "1", "--only", "int8"]
    threads = ["--threads", str(machine.cores()), "--seconds", "0.01"]
    text = subprocess.run([*command, *threads], check=True, capture_output=True, text=True).stdout
    line = next(line for line in reversed(text.splitlines()) if line.startswith("| int8 |"))
    return float(line.split("|")[3]) * 1e9


def bench_step(model: str, folder: Path, precision: str, tables: list[str], seconds: float):
    """Milliseconds by (table, name, x)."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "step.csv"
        command = [BINARIES / "bench_step", "--csv", path, "--shape", f"{model}={folder}"]
        command += ["--dtype", precision, "--threads", str(machine.cores())]
        command += ["--seconds", str(seconds), *(f"--table={table}" for table in tables)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = path.read_text().splitlines()[1:]
    found = {}
    for line in lines:  # names can contain commas
        table, rest = line.split(",", 1)
        name, x, milliseconds = rest.rsplit(",", 2)
        found[table, name, int(float(x))] = float(milliseconds)
    return found


class Turns:
    """Times one engine while the others are stopped, and records other load of the machine."""

    def __init__(self, contenders):
        self.contenders = contenders
        self.others: list[float] = []  # share of the machine used by other processes
        self.idle = 0.0  # processor seconds of stopped engines

    def turn(self, one: Contender, batch, others, new_tokens: int):
        one.warm(batch)
        asking = one.worker.ask("client")
        waiting = [c.worker for c in self.contenders if c is not one]

        def clocks():
            idle = sum(w.processor_seconds() for w in waiting)
            own = one.worker.processor_seconds()
            client = machine.process_seconds(asking) if asking else 0
            return [idle, own, client, machine.busy_seconds(), time.perf_counter()]

        before = clocks()
        tokens, run = one.run(batch, others, new_tokens)
        pairs = zip(clocks(), before, strict=True)
        idle, own, client, busy, wall = (after - began for after, began in pairs)
        self.idle += idle
        self.others.append(max(0.0, busy - own) / (wall * machine.cores()))
        return tokens, {**run, "client": client / (wall * machine.cores())}


def equal_start(ours: list[list[int]], theirs: list[list[int]]) -> tuple[int, int]:
    """Equal tokens up to each stream's first difference, and all tokens."""
    same = 0
    for a, b in zip(ours, theirs, strict=True):
        pairs = zip(a, b, strict=True)
        same += next((i for i, (x, y) in enumerate(pairs) if x != y), len(b))
    return same, sum(len(b) for b in theirs)


def one_case(turns: Turns, settings, streams: int, lengths: Length, source) -> dict:
    contenders = turns.contenders
    for one in contenders:
        one.set(settings[one.name][str(streams)])
    runs = {one.name: [] for one in contenders}
    equal = {one.name: [0, 0] for one in contenders[1:]}
    probes = [read_probe()]
    for repeat in range(lengths.turns):
        batch, others = ([next(source) for _ in range(streams)] for _ in range(2))
        first = repeat % len(contenders)
        tokens = {}
        for one in contenders[first:] + contenders[:first]:  # the order alternates
            tokens[one.name], run = turns.turn(one, batch, others, lengths.new)
            runs[one.name].append(run)
        for name, count in equal.items():
            same, total = equal_start(tokens[contenders[0].name], tokens[name])
            equal[name] = [count[0] + same, count[1] + total]
        probes.append(read_probe())
    case = {"streams": streams, "new_tokens": lengths.new, "runs": runs, "equal": equal}
    case["probes"] = probes
    rates = {name: models_page.rate(case, name) for name in runs}
    say("  " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
    return case


def measure(model: str, width: str, folder: Path, args) -> None:
    began = time.monotonic()
    ours = WIDTHS[width][0]
    chosen = json.loads(path_of(model, width, "-trial").read_text())
    refused, lengths = {}, length(model, args)
    settings = {
        name: {streams: found["settings"] for streams, found in by_streams.items()}
        for name, by_streams in chosen.items()
    }
    busy = machine.load()
    with contextlib.ExitStack() as stack:
        contenders = []
        for one in [Contender(Tandem, ours, folder), *peers(width, folder)]:
            stack.enter_context(contextlib.closing(one))
            settings.setdefault(one.name, {str(n): {} for n in args.streams})
            try:
                one.set(settings[one.name][str(args.streams[0])])
            except Refused as error:
                refused[one.name] = str(error)
                continue
            contenders.append(one)
        turns = Turns(contenders)
        source = prompts(lengths.prompt)
        say(f"{model}, {width} bits; decoding, tokens/s:")
        cases = [one_case(turns, settings, n, lengths, source) for n in args.streams]
        passes = {}
        for one in contenders[1:]:
            one.set(settings[one.name][str(args.streams[0])])
            ask = {"context": PASS_CONTEXT, "repeats": PASS_REPEATS}
            times = {rows: one.worker.ask("pass_seconds", rows=rows, **ask) for rows in ROWS}
            if times[1] is not None:
                passes[one.name] = times
        details = {one.name: one.worker.ask("details") for one in contenders}
    rows = bench_step(model, folder, ours, ["rows"], 0.4)
    passes[contenders[0].name] = {n: rows["rows", model, n] / 1e3 for n in ROWS}
    write(
        path_of(model, width),
        {
            "model": model,
            "width": width,
            "ours": contenders[0].name,
            "weights": multiplied_weights(folder),
            "cases": cases,
            "passes": passes,
            "settings": {c.name: settings[c.name] for c in contenders},
            "details": details,
            "refused": refused,
            "conditions": {
                "command": command_line(model, width, args),
                "commit": machine.commit(ROOT),
                "date": datetime.date.today().isoformat(),
                "processor": f"{machine.processor()} ({machine.instructions()})",
                "cores": machine.cores(),
                "busy": busy,
                "others": statistics.median(turns.others),
                "others_most": max(turns.others),
                "idle": turns.idle,
                "prompt_tokens": lengths.prompt,
                "repeats": lengths.turns,
                "seconds": time.monotonic() - began,
            },
        },
    )
    say(f"{model}, {width} bits: {time.monotonic() - began:.0f} s")


def profile(model: str, width: str, folder: Path) -> None:
    ours = WIDTHS[width][0]
    found = bench_step(model, folder, ours, ["parts"], 0.5)
    lines = [[*key, milliseconds] for key, milliseconds in found.items()]
    probe = read_probe()
    kept = kept_numbers(folder) * (4 if ours == "fp32" else 2)
    found = {"lines": lines, "probe": probe, "kept_bytes": kept}
    write(path_of(model, width, "-profile"), found)


def length(model: str, args) -> Length:
    given = {"prompt": args.prompt_tokens, "new": args.new_tokens, "turns": args.repeats}
    default = LENGTHS.get(model, Length())
    return replace(default, **{name: value for name, value in given.items() if value})


def command_line(model: str, width: str, args) -> str:
    names = {"prompt_tokens", "new_tokens", "repeats"}
    given = {n: v for n, v in vars(args).items() if n in names and v}
    flags = "".join(f" --{name.replace('_', '-')} {value}" for name, value in given.items())
    return f"scripts/bench_models --models {model} --widths {width}{flags}"


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--widths", nargs="+", default=list(WIDTHS), choices=list(WIDTHS))
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--streams", nargs="+", type=int, default=STREAMS)
    parser.add_argument("--prompt-tokens", type=int, help="default: by part (LENGTHS)")
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--repeats", type=int, help="turns of each engine")
    parser.add_argument("--write", action="store_true", help="into docs/reports/models.md")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers end
    folders = directories(args.models)
    for (model, folder), width in itertools.product(folders.items(), args.widths):
        if "prepare" in args.steps:
            prepare(model, width, folder)
        if "trial" in args.steps:
            trial(model, width, folder, args)
        if "measure" in args.steps:
            measure(model, width, folder, args)
        if "profile" in args.steps:
            profile(model, width, folder)
    if "report" in args.steps:
        there, missing = [], []
        for model, width in itertools.product(MODELS, WIDTHS):
            if path_of(model, width).exists():
                paths = path_of(model, width), path_of(model, width, "-profile")
                there.append(models_page.Part.read(*paths))
            else:
                missing.append(f"{model} at {width} bits")
        text = models_page.page(there, missing)
        print(text)
        if args.write:
            put(ROOT / "docs" / "reports" / "models.md", "engines", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
