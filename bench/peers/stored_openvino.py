"""The same GGUF file in Tandem and in OpenVINO GenAI, side by side: one stream, eight, and reading a prompt.

    python -m bench.peers.stored_openvino [MODEL ...] [--turns 3] [--write]

As bench.peers.stored, with OpenVINO GenAI (scripts/setup --peers) in a process of its own, which reads
the file by itself: its pipeline that batches continuously and its plain one, by either of its two
readers. A trial chooses the fastest of these for each figure; one that does not load a file is told.
"""

import argparse
import contextlib
import os
import statistics
import sys
from pathlib import Path

from bench.peers.engines import OURS, PEERS, OpenVino, Tandem
from bench.peers.models import prompts
from bench.peers.stored import LONG, NEW, PROMPT, ours
from bench.peers.worker import Failed, Worker
from measure import machine
from measure.paths import HOME, ROOT
from measure.report import put, spread, table

PAGE = ROOT / "docs" / "reports" / "gguf.md"
FIGURES = ("1 stream", "8 streams", "prompt")
SETTINGS = [(kind, reader) for kind in ("batching", "plain") for reader in ("LEGACY", "FRONTEND")]


def compare(file: Path, turns: int) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and what did not run."""
    refused = []
    sources = prompts(PROMPT), prompts(LONG, start=5)
    with contextlib.ExitStack() as stack:

        def started(kind: type, precision: str, **environment) -> Worker:
            return stack.enter_context(
                contextlib.closing(Worker(kind, file, precision, environment))
            )

        theirs = {}
        for kind, reader in SETTINGS:
            try:
                worker = started(OpenVino, kind, GGUF_READER=reader)
                theirs[f"{kind}, {reader.lower()} reader"] = worker, ours(worker, *sources)
            except Failed as error:
                refused.append(
                    f"{file.stem}, {kind}, {reader}: {str(error).strip().splitlines()[-1]}"
                )
        if not theirs:
            return [], refused
        best = {name: max(theirs, key=lambda way: theirs[way][1][name]) for name in FIGURES}
        worker = started(Tandem, "auto")
        ours(worker, *sources)  # warm
        mine = {name: [] for name in FIGURES}
        other = {way: {name: [] for name in FIGURES} for way in set(best.values())}
        for turn in range(turns):
            runs = [(worker, mine), *((theirs[way][0], found) for way, found in other.items())]
            for engine, found in runs if turn % 2 == 0 else reversed(runs):
                for name, figure in ours(engine, *sources).items():
                    found[name].append(figure)
            print(f"{file.stem}, turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
    rows = []
    for name in FIGURES:
        peer = other[best[name]][name]
        ratio = statistics.median(mine[name]) / statistics.median(peer)
        shown = "prompt of 512" if name == "prompt" else name
        cells = [file.stem, shown, spread(mine[name]), spread(peer), f"**{ratio:.2f}**", best[name]]
        rows.append(cells)
    return rows, refused


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[], help="names of scripts/models (all here)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/reports/gguf.md")
    args = parser.parse_args(arguments)
    folder = HOME / "models"
    files = [folder / f"{name}.gguf" for name in args.models] or sorted(folder.glob("*.gguf"))
    missing = [str(path) for path in [*files, PEERS, *OURS] if not os.path.exists(path)]
    if missing or not files:
        what = ", ".join(missing) or folder
        print(f"missing: {what}; scripts/models fetch NAME, scripts/setup --peers,", end=" ")
        print("scripts/build release tandem-server bench_client")
        return 1
    busy = machine.load_before(args.write)
    rows, refused = [], []
    for file in files:
        found, failed = compare(file, args.turns)
        rows += found
        refused += failed
        print("\n".join([*(" | ".join(row) for row in found), *failed]), flush=True)
    head = [
        "file",
        "tokens/s of",
        "Tandem",
        "OpenVINO GenAI",
        "ratio",
        "fastest settings of OpenVINO",
    ]
    command = " ".join(["python -m bench.peers.stored_openvino", *(arguments or sys.argv[1:])])
    about = (
        f"`{command}`. Commit {machine.commit(ROOT)}. {machine.cores()} cores of "
        f"{machine.processor()} ({machine.instructions()}), load before: {busy:.0%}. "
        f"{PROMPT} prompt tokens, {NEW} new tokens; median (minimum-maximum) of {args.turns} turns.\n"
    )
    text = "\n".join([about, table(head, rows), *(f"\nNot run: {line}" for line in refused)]) + "\n"
    print(text)
    if args.write:
        put(PAGE, "openvino", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
