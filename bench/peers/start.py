"""Compares start time and memory of a server with a GGUF file with llama.cpp.

    python -m bench.peers.start [MODEL ...] [--llama-server [NAME=]PATH] [--turns 3] [--write]

Each server starts with the file in the page cache and generates 16 tokens. Seconds are until it listens
(llama-server: until it is healthy), the minimum of all turns. Memory is resident memory after the answer, in
total and without pages of files. The last column is the anonymous memory beyond that of a server with a
fake model, per byte of packed weights. --llama-server is repeatable, and PATH may be the server of
ik_llama.cpp.
"""

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.peers import cli
from measure import llama_programs
from measure.llama_server import LlamaServer, free_port
from measure.paths import ROOT
from measure.serving import BINARY, Client, stubs

PAGE = ROOT / "docs" / "reports" / "gguf.md"
PROMPT = "def fibonacci(n):"
TOKENS = 16
PEER_FLAGS = ("--threads", "2", "--parallel", "1", "--ctx-size", "2048")


@dataclass
class Start:
    seconds: float
    resident: int  # bytes
    own: int  # without pages of files
    weights: int = 0  # packed; 0: unknown


def resident(process: int) -> tuple[int, int]:
    fields = {}
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            fields[name] = int(value.split()[0]) * 1024
    return fields["VmRSS"], fields["RssAnon"]


def read_all(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def weights_of(log: str) -> int:
    """Bytes of packed weights, from the server's log."""
    found = re.search(r"([\d.]+) MB on cpu", log)
    return int(float(found[1]) * 1e6) if found else 0


def ours(path: Path | None, binary: Path) -> Start:
    """`file`: None for a fake model."""
    with tempfile.TemporaryDirectory() as folder:
        ports, log = Path(folder) / "ports", Path(folder) / "log"
        config = Path(folder) / "fake.textproto"
        config.write_text('models { name: "m" fake {} }\n')
        model = f"--model=m={path}" if path else f"--config={config}"
        flags = [model, "--listen=127.0.0.1:0", "--http=off", f"--port-file={ports}"]
        start = time.perf_counter()
        with log.open("w") as out:
            process = subprocess.Popen([binary, *flags], stderr=out)
        try:
            while not ports.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"tandem-server ended with status {process.returncode}")
                time.sleep(0.01)
            seconds = time.perf_counter() - start
            lines = dict(line.split("=", 1) for line in ports.read_text().splitlines())
            client = Client(lines["grpc"], *stubs(folder))
            client.complete(
                client.messages.GenerateRequest(
                    model="m", text=PROMPT, temperature=0, max_new_tokens=TOKENS
                )
            )
            client.close()
            return Start(seconds, *resident(process.pid), weights_of(log.read_text()))
        finally:
            process.terminate()
            process.wait(60)


def theirs(path: Path, binary: Path) -> Start:
    port = free_port()
    command = [binary, "--model", path, "--port", str(port), *PEER_FLAGS]
    start = time.perf_counter()
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        server = LlamaServer(port)
        while not server.ready():
            if process.poll() is not None:
                raise RuntimeError(f"{binary} ended with status {process.returncode}")
            time.sleep(0.01)
        seconds = time.perf_counter() - start
        server.complete(PROMPT, TOKENS, ())
        return Start(seconds, *resident(process.pid))
    finally:
        process.terminate()
        process.wait(60)


def best(runs: list[Start]) -> Start:
    return min(runs, key=lambda run: run.seconds)


def row(file: Path, engine: str, run: Start, bare: int = 0) -> str:
    """bare: Start.own of the same server without a model."""
    size = file.stat().st_size
    weights = f"{run.weights / 1e6:,.0f}" if run.weights else "-"
    of_weights = f"{(run.own - bare) / run.weights:.2f}" if run.weights else "-"
    return (
        f"| {file.stem} | {engine} | {size / 1e6:,.0f} | {run.seconds:.2f} | "
        f"{run.resident / 1e6:,.0f} | {run.resident / size:.2f} | {run.own / 1e6:,.0f} | "
        f"{weights} | {of_weights} |"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = cli.gguf_parser(__doc__, PAGE)
    llama_programs.add_option(
        parser, "--llama-server", "also measure this llama-server", name="llama.cpp"
    )
    parser.add_argument("--server", type=Path, default=BINARY)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args(arguments)
    files = cli.gguf_files(args.models, [args.server], "scripts/build release tandem-server")
    run = cli.Run("python -m bench.peers.start", arguments, args.write)
    lines = [
        "| file | server | file, MB | start, s | resident, MB | resident / file | anonymous, MB "
        "| packed weights, MB | (anonymous - server without a model) / packed |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    bare = ours(None, args.server).own
    for file in files:
        read_all(file)
        runs = [ours(file, args.server) for _ in range(args.turns)]
        lines.append(row(file, "Tandem", best(runs), bare))
        for peer in args.llama_server:
            runs = [theirs(file, peer.path) for _ in range(args.turns)]
            lines.append(row(file, peer.name, best(runs)))
        print("\n".join(lines[-1 - len(args.llama_server) :]), flush=True)
    said = f"Without a model the server has {bare / 1e6:.0f} MB of anonymous memory, mostly LibTorch's."
    for peer in args.llama_server:
        shown = peer.repacking()[0].shown
        said += f" {peer.name}: `{' '.join(PEER_FLAGS)}`" + (f", {shown}." if shown else ".")
    about = run.about(said)
    cli.publish("\n".join([about, "", *lines, ""]), args.write, PAGE, "starts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
