"""Compares a GGUF file in Tandem and llama.cpp: one stream, eight streams, and prefill.

    python -m bench.peers.stored [MODEL ...] [--peer NAME=PATH] [--turns 3] [--write]

Tandem is the whole server with a C++ client over gRPC. llama.cpp is llama-batched-bench, built for this
processor by scripts/setup --peers, which calls the library without a server and without sampling. --peer adds
the llama-batched-bench of another build or of ik_llama.cpp; the name llama.cpp replaces the usual one. A trial
first selects each peer's fastest settings for each figure. Then the engines take turns, one at a time. A peer
runs with these settings and with its defaults, and the better result counts.
"""

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import cli
from bench.peers.engines import OURS, THREADS, Tandem
from bench.peers.models import prompts
from bench.peers.worker import Worker
from measure import llama_programs
from measure.llama_programs import Program, Settings, batched_bench_rows
from measure.paths import HOME, ROOT
from measure.report import spread, table

PAGE = ROOT / "docs" / "reports" / "gguf.md"
LLAMA_CPP = "llama.cpp"
PROGRAM = HOME / "bin" / "llama-batched-bench"
GOALS = {"1 stream": 1.35, "8 streams": 3.0, "prompt": 2.0}
PROMPT, NEW, LONG = 64, 64, 512  # tokens


def run_theirs(
    file: Path, peer: Program, settings: Settings, prompt: int, new: int, streams: list[int]
) -> dict:
    """Output of llama-batched-bench by number of streams."""
    command = [peer.path, "--model", file, *settings.flags]
    if peer.takes("--output-format"):
        command += ["--output-format", "jsonl"]
    command += ["-c", streams[-1] * (prompt + new), "-b", "2048", "-ub", "512"]
    command += ["-npp", prompt, "-ntg", new, "-npl", ",".join(map(str, streams))]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    rows = {int(row["pl"]): row for row in batched_bench_rows(done.stdout + "\n" + done.stderr)}
    if done.returncode != 0 or any(n not in rows for n in streams):
        end = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"{peer.path} ended with {done.returncode}, rows {[*rows]}:\n{end}")
    return rows


def theirs(file: Path, peer: Program, settings: Settings, new: int = NEW) -> dict[str, float]:
    """Tokens per second, by figure."""
    decoding = run_theirs(file, peer, settings, PROMPT, new, [1, 8])
    return {
        "1 stream": decoding[1]["speed_tg"],
        "8 streams": decoding[8]["speed_tg"],
        "prompt": run_theirs(file, peer, settings, LONG, 1, [1])[1]["speed_pp"],
    }


def ours(worker: Worker, source, long_source) -> dict[str, float]:
    """The same for Tandem. The time to first token is that of other prompts of equal number and length."""

    def seconds(batch, new: int) -> float:
        return worker.ask("generate", prompts=batch, new_tokens=new)[1]

    found = {}
    for streams, name in ((1, "1 stream"), (8, "8 streams")):
        batch, others = ([next(source) for _ in range(streams)] for _ in range(2))
        first = seconds(others, 1)
        found[name] = streams * NEW / (seconds(batch, NEW + 1) - first)
    found["prompt"] = LONG / seconds([next(long_source)], 1)
    return found


@dataclass
class Measured:
    """A peer's figures, by settings; and the settings whose figures count, by figure."""

    theirs: dict[Settings, dict[str, list[float]]] = field(default_factory=dict)
    candidates: dict[str, list[Settings]] = field(default_factory=dict)

    def best(self, name: str) -> Settings:
        return max(
            self.candidates[name],
            key=lambda settings: statistics.median(self.theirs[settings][name]),
        )


@dataclass
class Compared:
    file: Path
    ours: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in GOALS})
    peers: dict[Program, Measured] = field(default_factory=dict)

    def rows(self) -> list[list[str]]:
        rows = []
        for name, goal in GOALS.items():
            mine = self.ours[name]
            for peer, measured in self.peers.items():
                settings = measured.best(name)
                figures = measured.theirs[settings][name]
                ratio = statistics.median(mine) / statistics.median(figures)
                rows.append(
                    [
                        self.file.stem,
                        "prompt of 512" if name == "prompt" else name,
                        spread(mine),
                        peer.name,
                        spread(figures),
                        f"**{ratio:.2f}**",
                        f"{goal:.2f}" if peer.name == LLAMA_CPP else "-",
                        settings.shown,
                    ]
                )
        return rows


HEAD = [
    "file",
    "tokens/s of",
    "Tandem",
    "peer",
    "peer's tokens/s",
    "ratio",
    "goal",
    "peer's fastest settings",
]


def tried(file: Path, peer: Program) -> Measured:
    """The settings that a peer's figures are measured with. Those that end with an error here are left out, but not
    the defaults."""
    trials = peer.trials(THREADS)
    figures = {trials[0]: theirs(file, peer, trials[0], new=16)}
    for settings in trials[1:]:
        try:
            figures[settings] = theirs(file, peer, settings, new=16)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            print(f"{peer.name}, {settings.shown}: left out: {reason}", file=sys.stderr)
    measured = Measured()
    for name in GOALS:
        fastest = max(figures, key=lambda settings: figures[settings][name])
        measured.candidates[name] = list(dict.fromkeys([trials[0], fastest]))
        for settings in measured.candidates[name]:
            measured.theirs[settings] = {name: [] for name in GOALS}
    return measured


def compare(file: Path, peers: Sequence[Program], turns: int) -> Compared:
    result = Compared(file, peers={peer: tried(file, peer) for peer in peers})
    source, long_source = prompts(PROMPT), prompts(LONG, start=5)
    with contextlib.closing(Worker(Tandem, file, "auto")) as worker:
        ours(worker, source, long_source)  # warm
        for turn in range(turns):
            order: list[Program | None] = [None, *peers]  # None: Tandem
            for engine in order if turn % 2 == 0 else reversed(order):
                if engine is None:
                    figures = ours(worker, source, long_source)
                    for name in GOALS:
                        result.ours[name].append(figures[name])
                    continue
                for settings, found in result.peers[engine].theirs.items():
                    for name, figure in theirs(file, engine, settings).items():
                        found[name].append(figure)
            print(f"{file.stem}, turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = cli.gguf_parser(__doc__, PAGE)
    parser.add_argument("--turns", type=int, default=3)
    llama_programs.add_option(parser, "--peer", "also compare this llama-batched-bench")
    args = parser.parse_args(arguments)
    build = "scripts/setup --peers, scripts/build release tandem-server bench_client"
    programs = {peer.name: peer for peer in [Program(LLAMA_CPP, PROGRAM), *args.peer]}
    peers = list(programs.values())
    files = cli.gguf_files(args.models, [*(peer.path for peer in peers), *OURS], build)
    run = cli.Run("python -m bench.peers.stored", arguments, args.write)
    rows = []
    for file in files:
        rows += compare(file, peers, args.turns).rows()
        shown = rows[-len(GOALS) * len(peers) :]
        print("\n".join(" | ".join(row) for row in shown), flush=True)
    about = run.about(
        f"{PROMPT} prompt tokens, {NEW} new tokens; median (minimum-maximum) of {args.turns} turns."
    )
    cli.publish(f"{about}\n\n{table(HEAD, rows)}\n", args.write, PAGE, "llama.cpp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
