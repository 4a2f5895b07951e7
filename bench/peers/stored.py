"""Compares a GGUF file in Tandem and llama.cpp: one stream, eight streams, and prefill.

    python -m bench.peers.stored [MODEL ...] [--turns 3] [--write]

Tandem is the whole server with a C++ client over gRPC. llama.cpp is llama-batched-bench, built for this
processor by scripts/setup --peers, which calls the library without a server and without sampling. A trial
first selects its fastest settings for each figure. Then the engines take turns, one at a time. llama.cpp runs
with these settings and with its defaults, and the better result counts.
"""

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import cli
from bench.peers.engines import OURS, THREADS, Tandem
from bench.peers.models import prompts
from bench.peers.worker import Worker
from measure.paths import HOME, ROOT
from measure.report import spread, table

PAGE = ROOT / "docs" / "reports" / "gguf.md"
PROGRAM = HOME / "bin" / "llama-batched-bench"
GOALS = {"1 stream": 1.35, "8 streams": 3.0, "prompt": 2.0}
PROMPT, NEW, LONG = 64, 64, 512  # tokens


@dataclass(frozen=True)
class Settings:
    """Settings of llama.cpp. The first values are its defaults."""

    threads: int = THREADS[0]
    flash_attention: str = "auto"
    poll: int = 50  # how eagerly its threads wait, per cent
    repack: bool = True

    def flags(self) -> list[str]:
        flags = ["--threads", str(self.threads), "--flash-attn", self.flash_attention]
        return [*flags, "--poll", str(self.poll), *([] if self.repack else ["--no-repack"])]

    def shown(self) -> str:
        repack = "" if self.repack else ", not repacked"
        return f"{self.threads} threads, flash attention {self.flash_attention}, poll {self.poll}{repack}"


def trials() -> list[Settings]:
    """The defaults, and each single change of them."""
    changes = [
        {"poll": 0},
        {"flash_attention": "off"},
        {"flash_attention": "on"},
        {"repack": False},
    ]
    changes += [{"threads": n} for n in THREADS[1:]]
    return [Settings(), *(Settings(**change) for change in changes)]


def run_theirs(file: Path, settings: Settings, prompt: int, new: int, streams: list[int]) -> dict:
    """Output of llama-batched-bench by number of streams."""
    command = [PROGRAM, "--model", file, "--output-format", "jsonl", *settings.flags()]
    command += ["-c", streams[-1] * (prompt + new), "-b", "2048", "-ub", "512"]
    command += ["-npp", prompt, "-ntg", new, "-npl", ",".join(map(str, streams))]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {run["pl"]: run for run in said}


def theirs(file: Path, settings: Settings, new: int = NEW) -> dict[str, float]:
    """Tokens per second, by figure."""
    decoding = run_theirs(file, settings, PROMPT, new, [1, 8])
    return {
        "1 stream": decoding[1]["speed_tg"],
        "8 streams": decoding[8]["speed_tg"],
        "prompt": run_theirs(file, settings, LONG, 1, [1])[1]["speed_pp"],
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
class Compared:
    file: Path
    ours: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in GOALS})
    theirs: dict[Settings, dict[str, list[float]]] = field(default_factory=dict)
    candidates: dict[str, list[Settings]] = field(default_factory=dict)  # by figure

    def rows(self) -> list[list[str]]:
        rows = []
        for name, goal in GOALS.items():
            mine = self.ours[name]
            settings = max(
                self.candidates[name], key=lambda s: statistics.median(self.theirs[s][name])
            )
            peers = self.theirs[settings][name]
            ratio = statistics.median(mine) / statistics.median(peers)
            rows.append(
                [
                    self.file.stem,
                    "prompt of 512" if name == "prompt" else name,
                    spread(mine),
                    spread(peers),
                    f"**{ratio:.2f}**",
                    f"{goal:.2f}",
                    settings.shown(),
                ]
            )
        return rows


def compare(file: Path, turns: int) -> Compared:
    result = Compared(file)
    tried = {settings: theirs(file, settings, new=16) for settings in trials()}
    for name in GOALS:
        fastest = max(tried, key=lambda settings: tried[settings][name])
        result.candidates[name] = list(dict.fromkeys([Settings(), fastest]))
    for settings in itertools.chain.from_iterable(result.candidates.values()):
        result.theirs[settings] = {name: [] for name in GOALS}
    source, long_source = prompts(PROMPT), prompts(LONG, start=5)
    with contextlib.closing(Worker(Tandem, file, "auto")) as worker:
        ours(worker, source, long_source)  # warm
        for turn in range(turns):
            order = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
            for engine in order:
                if engine is ours:
                    figures = ours(worker, source, long_source)
                    for name in GOALS:
                        result.ours[name].append(figures[name])
                    continue
                for settings, found in result.theirs.items():
                    for name, figure in theirs(file, settings).items():
                        found[name].append(figure)
            print(f"{file.stem}, turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = cli.gguf_parser(__doc__, PAGE)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args(arguments)
    build = "scripts/setup --peers, scripts/build release tandem-server bench_client"
    files = cli.gguf_files(args.models, [PROGRAM, *OURS], build)
    run = cli.Run("python -m bench.peers.stored", arguments, args.write)
    rows = []
    for file in files:
        rows += compare(file, args.turns).rows()
        print("\n".join(" | ".join(row) for row in rows[-len(GOALS) :]), flush=True)
    head = [
        "file",
        "tokens/s of",
        "Tandem",
        "llama.cpp",
        "ratio",
        "goal",
        "fastest settings of llama.cpp",
    ]
    about = run.about(
        f"{PROMPT} prompt tokens, {NEW} new tokens; median (minimum-maximum) of {args.turns} turns."
    )
    cli.publish(f"{about}\n\n{table(head, rows)}\n", args.write, PAGE, "llama.cpp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
