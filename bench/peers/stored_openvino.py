"""Compares a GGUF file in Tandem and OpenVINO GenAI: one stream, eight streams, and prefill.

    python -m bench.peers.stored_openvino [MODEL ...] [--int4 MODEL=FOLDER] [--turns 3] [--write]

As bench.peers.stored, with OpenVINO GenAI (scripts/setup --peers) in a separate process. A trial selects
its fastest pipeline (continuous batching or plain) and reader for each figure. Combinations that cannot load
a file are listed.

--int4 adds rows of OpenVINO's own int4 model of MODEL, in a folder of

    optimum-cli export openvino --model HUGGING_FACE_MODEL --weight-format int4 FOLDER

which rounds the original weights anew, so it is not the model of the file. Repeatable.
"""

import argparse
import contextlib
import statistics
import sys
from dataclasses import dataclass, field
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
PIPELINES = ("batching", "plain")
OF_FILE, OWN = "the file's, converted", "own int4, rounded anew"


@dataclass(frozen=True)
class Way:
    weights: str
    settings: str
    pipeline: str
    source: Path
    environment: dict[str, str] = field(default_factory=dict, hash=False)


def ways(file: Path, int4: Path | None) -> list[Way]:
    found = [
        Way(OF_FILE, f"{kind}, {reader.lower()} reader", kind, file, {"GGUF_READER": reader})
        for kind in PIPELINES
        for reader in ("LEGACY", "FRONTEND")
    ]
    return found + [Way(OWN, kind, kind, int4) for kind in PIPELINES if int4]


def compare(file: Path, turns: int, int4: Path | None = None) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and combinations that did not run. `int4`: the folder of its own model."""
    refused = []
    sources = prompts(PROMPT), prompts(LONG, start=5)
    with contextlib.ExitStack() as stack:

        def started(kind: type, source: Path, precision: str, environment=None) -> Worker:
            worker = Worker(kind, source, precision, environment)
            return stack.enter_context(contextlib.closing(worker))

        theirs = {}
        for way in ways(file, int4):
            try:
                worker = started(OpenVino, way.source, way.pipeline, way.environment)
                theirs[way] = worker, ours(worker, *sources)
            except Failed as error:
                last = str(error).strip().splitlines()[-1]
                refused.append(f"{file.stem}, {way.weights}, {way.settings}: {last}")
        if not theirs:
            return [], refused
        best = {
            (weights, name): max(
                (way for way in theirs if way.weights == weights),
                key=lambda way: theirs[way][1][name],
            )
            for weights in dict.fromkeys(way.weights for way in theirs)
            for name in FIGURES
        }
        worker = started(Tandem, file, "auto")
        ours(worker, *sources)  # warm
        mine = {name: [] for name in FIGURES}
        other = {way: {name: [] for name in FIGURES} for way in dict.fromkeys(best.values())}
        for turn in range(turns):
            runs = [(worker, mine), *((theirs[way][0], found) for way, found in other.items())]
            for engine, found in runs if turn % 2 == 0 else reversed(runs):
                for name, figure in ours(engine, *sources).items():
                    found[name].append(figure)
            print(f"{file.stem}, turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
    rows = []
    for (_, name), way in best.items():
        peer = other[way][name]
        ratio = statistics.median(mine[name]) / statistics.median(peer)
        shown = "prompt of 512" if name == "prompt" else name
        cells = [file.stem, shown, spread(mine[name]), spread(peer), f"**{ratio:.2f}**"]
        rows.append([*cells, way.weights, way.settings])
    return rows, refused


def named_folder(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not name or not separator or not (Path(folder) / "openvino_model.xml").exists():
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: MODEL=FOLDER with openvino_model.xml")
    return name, Path(folder)


def main(arguments: list[str] | None = None) -> int:
    parser = cli.gguf_parser(__doc__, PAGE)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--int4", type=named_folder, action="append", default=[], metavar="MODEL=FOLDER"
    )
    args = parser.parse_args(arguments)
    build = "scripts/setup --peers, scripts/build release tandem-server bench_client"
    files = cli.gguf_files(args.models, [PEERS, *OURS], build)
    run = cli.Run("python -m bench.peers.stored_openvino", arguments, args.write)
    rows, refused, int4 = [], [], dict(args.int4)
    for file in files:
        found, failed = compare(file, args.turns, int4.get(file.stem))
        rows += found
        refused += failed
        print("\n".join([*(" | ".join(row) for row in found), *failed]), flush=True)
    head = [
        "file",
        "tokens/s of",
        "Tandem",
        "OpenVINO GenAI",
        "ratio",
        "OpenVINO's weights",
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
