"""Compares the throughput of /v1/embeddings with llama-server's on the same GGUF file.

    scripts/bench_embeddings [MODEL ...] [--texts 1 32] [--pairs 9] [--write]

Both servers are started with the file. They answer requests with equal texts in turns; the order changes
with each pair, and the server that waits is stopped. Each request has new texts, so caches have no hits.
Figures are tokens per second of a request, as each server counts its tokens, and the cosine similarity of
the two embeddings of a text.
"""

import contextlib
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import cli
from measure import machine
from measure.llama_server import LlamaServer, free_port
from measure.paths import HOME, ROOT
from measure.report import spread, table

PAGE = ROOT / "docs" / "reports" / "gguf.md"
SERVER = ROOT / "build/release/bin/tandem-server"
LLAMA = HOME / "bin" / "llama-server"
# Files of the repository, whose lines are the texts.
SOURCES = ("engine", "server", "tuning", "docs")
# Tandem pools the last token where the file has no pooling type, llama.cpp none.
POOLING = "last"


@dataclass
class Answer:
    seconds: float
    tokens: int
    vectors: list[list[float]]


@dataclass
class Case:
    """Pairs of answers to requests of `texts` texts."""

    texts: int
    ours: list[Answer] = field(default_factory=list)
    theirs: list[Answer] = field(default_factory=list)

    def rates(self) -> tuple[list[float], list[float]]:
        return tuple([a.tokens / a.seconds for a in side] for side in (self.ours, self.theirs))

    def similarities(self) -> list[float]:
        pairs = zip(self.ours, self.theirs, strict=True)
        return [cosine(u, v) for a, b in pairs for u, v in zip(a.vectors, b.vectors, strict=True)]


def cosine(u: list[float], v: list[float]) -> float:
    dot = sum(x * y for x, y in zip(u, v, strict=True))
    return dot / math.sqrt(sum(x * x for x in u) * sum(y * y for y in v))


def pieces(lines: int, root: Path = ROOT) -> Iterator[str]:
    """Distinct pieces of the repository's files, of so many lines each, in a fixed order."""
    files = [
        path
        for folder in SOURCES
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".cpp", ".h", ".py", ".md")
    ]
    seen = set()
    for path in files:
        text = path.read_text("utf-8").splitlines()
        for at in range(0, len(text) - lines + 1, lines):
            piece = "\n".join(text[at : at + lines]).strip()
            if piece and piece not in seen:
                seen.add(piece)
                yield piece


def embed(url: str, texts: list[str]) -> Answer:
    request = urllib.request.Request(
        f"{url}/v1/embeddings",
        json.dumps({"model": "m", "input": texts}).encode(),
        {"Content-Type": "application/json"},
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as reply:
        body = reply.read()
    seconds = time.perf_counter() - began
    found = json.loads(body)
    data = sorted(found["data"], key=lambda item: item["index"])
    if len(data) != len(texts):
        raise RuntimeError(f"{url}: {len(data)} embeddings of {len(texts)} texts")
    return Answer(seconds, found["usage"]["prompt_tokens"], [item["embedding"] for item in data])


class Process:
    """A server, which can be stopped while another one is measured."""

    def __init__(self, command: list, log: Path):
        with log.open("w") as out:
            self.process = subprocess.Popen(
                machine.ending_with_parent(command),
                stdout=out,
                stderr=out,
            )
        self.log, self.url = log, ""

    def until(self, ready) -> None:
        while not ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"a server ended:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.go_on()
        self.process.terminate()
        self.process.wait(60)


def start_ours(file: Path, binary: Path, folder: Path) -> Process:
    ports = folder / "ports"
    flags = [f"--model=m={file}", "--openai=127.0.0.1:0", "--listen=127.0.0.1:0", "--http=off"]
    server = Process([binary, *flags, f"--port-file={ports}"], folder / "tandem.log")
    server.until(lambda: ports.exists() and ports.read_text().endswith("\n"))
    lines = dict(line.split("=", 1) for line in ports.read_text().splitlines())
    server.url = f"http://{lines['openai']}"
    return server


def start_theirs(file: Path, binary: Path, folder: Path, args) -> Process:
    port, rows = free_port(), args.rows
    flags = ["--model", file, "--port", port, "--embedding", "--pooling", POOLING]
    flags += ["--threads", machine.cores(), "--parallel", args.parallel]
    flags += ["--ctx-size", args.parallel * rows, "--batch-size", rows, "--ubatch-size", rows]
    server = Process([binary, *flags], folder / "llama.log")
    llama = LlamaServer(port)
    server.until(llama.ready)
    server.url = llama.url
    return server


def measure(ours: Process, theirs: Process, counts: list[int], args) -> list[Case]:
    source = pieces(args.lines)

    def turn(one: Process, other: Process, texts: list[str]) -> Answer:
        other.stop()
        try:
            return embed(one.url, texts)
        finally:
            other.go_on()

    cases = []
    for count in counts:
        case = Case(count)
        for pair in range(-1, args.pairs):
            texts = [next(source) for _ in range(count)]
            sides = [(ours, theirs, case.ours), (theirs, ours, case.theirs)]
            for one, other, kept in sides if pair % 2 else sides[::-1]:
                answer = turn(one, other, texts)
                if pair >= 0:  # the first pair warms both
                    kept.append(answer)
        cases.append(case)
    return cases


def row(file: str, case: Case) -> list[str]:
    ours, theirs = case.rates()
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    similar = case.similarities()
    tokens = [
        statistics.median(a.tokens / case.texts for a in side) for side in (case.ours, case.theirs)
    ]
    return [
        file,
        str(case.texts),
        f"{tokens[0]:.0f}" if tokens[0] == tokens[1] else f"{tokens[0]:.0f}, {tokens[1]:.0f}",
        spread(ours),
        spread(theirs),
        f"**{statistics.median(ratios):.2f}**",
        f"{statistics.median(similar):.5f} ({min(similar):.5f})",
    ]


HEAD = [
    "file",
    "texts of a request",
    "tokens of a text",
    "tokens/s, Tandem",
    "tokens/s, llama-server",
    "ratio",
    "cosine similarity (least)",
]


def main(arguments: list[str] | None = None) -> int:
    parser = cli.gguf_parser(__doc__, PAGE)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 8, 32], help="of a request")
    parser.add_argument("--lines", type=int, default=12, help="lines of a text")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--parallel", type=int, default=8, help="slots of llama-server")
    parser.add_argument("--rows", type=int, default=1024, help="tokens of a batch of llama-server")
    parser.add_argument("--server", type=Path, default=SERVER)
    parser.add_argument("--llama-server", type=Path, default=LLAMA)
    args = parser.parse_args(arguments)
    files = cli.gguf_files(args.models, [args.server, args.llama_server], "scripts/setup --peers")
    run = cli.Run("scripts/bench_embeddings", arguments, args.write)
    rows = []
    for file in files:
        with tempfile.TemporaryDirectory(prefix="tandem-embeddings-") as temporary:
            folder = Path(temporary)
            with contextlib.ExitStack() as stack:
                ours = start_ours(file, args.server, folder)
                stack.callback(ours.close)
                theirs = start_theirs(file, args.llama_server, folder, args)
                stack.callback(theirs.close)
                for case in measure(ours, theirs, args.texts, args):
                    rows.append(row(file.stem, case))
                    print(rows[-1], file=sys.stderr, flush=True)
    about = run.about(
        f"Texts of {args.lines} lines. Median (minimum-maximum) of {args.pairs} pairs; ratio: median of "
        f"the pairs. llama-server: `--embedding --pooling {POOLING} --parallel {args.parallel} "
        f"--ubatch-size {args.rows}`."
    )
    cli.publish(f"{about}\n\n{table(HEAD, rows)}\n", args.write, PAGE, "embeddings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
