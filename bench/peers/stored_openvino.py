"""Compares a GGUF file in Tandem and OpenVINO GenAI: one stream, eight streams, and prefill.

    python -m bench.peers.stored_openvino [MODEL ...] [--turns 3] [--write]

As bench.peers.stored, with OpenVINO GenAI (scripts/setup --peers) in a separate process. A trial selects
its fastest pipeline (continuous batching or plain) and reader for each figure. Combinations that cannot load
a file are listed.
"""

import contextlib
import statistics
import sys
from pathlib import Path

from bench.peers import cli
from bench.peers.engines import OURS, PEERS, OpenVino, Tandem
from bench.peers.models import prompts
from bench.peers.stored import LONG, NEW, PROMPT, ours
from bench.peers.worker import Failed, Worker
from measure.paths import ROOT
from measure.report import spread, table

PAGE = ROOT / "docs" / "reports" / "gguf.md"
FIGURES = ("1 stream", "8 streams", "prompt")
SETTINGS = [(kind, reader) for kind in ("batching", "plain") for reader in ("LEGACY", "FRONTEND")]


def compare(file: Path, turns: int) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and combinations that did not run."""
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
    parser = cli.gguf_parser(__doc__, PAGE)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args(arguments)
    build = "scripts/setup --peers, scripts/build release tandem-server bench_client"
    files = cli.gguf_files(args.models, [PEERS, *OURS], build)
    run = cli.Run("python -m bench.peers.stored_openvino", arguments, args.write)
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
    about = run.about(
        f"{PROMPT} prompt tokens, {NEW} new tokens; median (minimum-maximum) of {args.turns} turns."
    )
    missing = [f"\nNot run: {line}" for line in refused]
    text = "\n".join([about, "", table(head, rows), *missing, ""])
    cli.publish(text, args.write, PAGE, "openvino")
    return 0


if __name__ == "__main__":
    sys.exit(main())
