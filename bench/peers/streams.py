"""Compares many concurrent streams of tandem-server with a bare gRPC streamer.

    scripts/bench_streams [--write] [--check]

tandem-server with a fake device, which makes tokens for all streams at a fixed pace, and
bench/bare_streamer.cpp take turns in separate processes. bench/stream_load.cpp reads all streams. Both servers
record the time of each step on a clock that all processes share, and every token names its step. So the
reader knows the delay of a token without additional messages.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.peers import cli
from measure.paths import ROOT
from measure.report import table

PAGE = ROOT / "docs" / "reports" / "serving.md"
FIRST, NAMES = 32, 95  # engine/backend/fake/trace.h
PROMPT = 16  # tokens (bench/stream_load.cpp)
OPEN_TICK, OPEN_WARM_UP, OPEN_SECONDS = 1.0, 12, 4  # for the memory of many open streams
RECORD = np.dtype([("arrival", "<i8"), ("token", "<i4"), ("stream", "<i4")])
# Goals of --check.
P99_MILLISECONDS, CPU_RATIO, STREAM_BYTES = 20.0, 1.25, 4096

CONFIG = """\
models {{
  name: "fake"
  kv_pages: {pages}
  fake {{ pass_seconds: {pass_seconds} trace_file: "{trace}" check_memory: {check} }}
}}
limits {{
  max_running: {streams} max_waiting: {streams} max_waiting_per_client: {streams} step_rows: {rows}
}}
server {{ max_concurrent_streams: {streams} }}
"""


@dataclass
class Turn:
    """One turn of one server."""

    rate: float  # tokens per second and stream
    p50: float  # delay, milliseconds
    p99: float
    worst: float
    cpu: float  # of the server, microseconds per token
    reader_cpu: float  # of the load generator, likewise
    idle_bytes: int  # resident memory without streams
    stream_bytes: float  # growth until the end, per stream


@dataclass
class Server:
    name: str
    turns: list[Turn] = field(default_factory=list)
    open_bytes: float | None = None  # per stream, with many open

    def median(self, figure: str) -> float:
        return statistics.median(getattr(turn, figure) for turn in self.turns)


def delays(steps: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Nanoseconds from each token's step to its arrival.

    steps: times of the steps, in order. A token names its step modulo NAMES; the last such step before its
    arrival is the right one.
    """
    last = np.searchsorted(steps, records["arrival"], side="right") - 1
    step = last - (last - (records["token"] - FIRST)) % NAMES
    if (step < 0).any():
        raise ValueError("a token came before the step that it names")
    return records["arrival"] - steps[step]


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def running(command: list[str], folder: Path):
    """The process and address of a server. SIGTERM ends it, after which its trace is complete."""
    ports, log = folder / "ports", folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen([*command, f"--port-file={ports}"], stderr=out)
    try:
        while not ports.exists() or not ports.read_text().endswith("\n"):
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended:\n{log.read_text()}")
            time.sleep(0.05)
        yield process, ports.read_text().split("grpc=", 1)[1].split()[0]
    finally:
        process.send_signal(signal.SIGTERM)
        ended = process.wait(60)
    if ended != 0:
        raise RuntimeError(f"{command[0]} ended with {ended}:\n{log.read_text()[-2000:]}")


def command(
    name: str, args, streams: int, tick: float, pass_seconds: float, folder: Path
) -> list[str]:
    trace = folder / "trace"
    if name == "bare streamer":
        flags = [f"--trace-file={trace}", f"--tick-seconds={tick}", f"--max-streams={streams}"]
        return [str(args.binaries / "bare_streamer"), *flags]
    config = folder / "config.textproto"
    fields = {
        "pages": streams * ((args.new_tokens + PROMPT) // 16 + 2),
        "pass_seconds": pass_seconds,
        "trace": trace,
        "check": "true" if args.check_memory else "false",
        "streams": streams,
        # Prefill of all prompts in a few steps, and one step for a token of all streams.
        "rows": min(65536, (PROMPT + 1) * streams),
    }
    config.write_text(CONFIG.format(**fields))
    flags = [f"--config={config}", "--listen=127.0.0.1:0", "--http=off", "--grace-seconds=1"]
    return [str(args.binaries / "tandem-server"), *flags]


def load(args, address: str, streams: int, channels: int, warm_up: float, seconds: float, output):
    """Starts the readers."""
    flags = [f"--server={address}", f"--output={output}", f"--streams={streams}"]
    flags += [f"--channels={channels}", f"--new-tokens={args.new_tokens}"]
    flags += [f"--warm-up={warm_up}", f"--seconds={seconds}"]
    return subprocess.Popen(
        [str(args.binaries / "stream_load"), *flags], stdout=subprocess.PIPE, text=True
    )


def wait_for(process, line: str) -> str:
    """The next line of the readers, which must begin with `line`."""
    said = process.stdout.readline().strip()
    if not said.startswith(line):
        process.wait(60)
        raise RuntimeError(f"stream_load said {said!r} and ended with {process.returncode}")
    return said


def turn(name: str, args) -> Turn:
    """One turn of one server."""
    with tempfile.TemporaryDirectory(prefix="tandem-streams-") as temporary:
        folder = Path(temporary)
        output = folder / "records"
        with running(
            command(name, args, args.streams, args.tick, args.pass_seconds, folder), folder
        ) as (
            own,
            address,
        ):
            idle = resident_bytes(own.pid)
            readers = load(
                args, address, args.streams, args.channels, args.warm_up, args.seconds, output
            )
            wait_for(readers, "begin")
            begin = cpu_seconds(own.pid), cpu_seconds(readers.pid), time.perf_counter()
            wait_for(readers, "end")
            end = cpu_seconds(own.pid), cpu_seconds(readers.pid), time.perf_counter()
            grown = resident_bytes(own.pid) - idle
            wait_for(readers, "tokens")
            if readers.wait(60) != 0:
                raise RuntimeError("streams failed")
        steps = np.loadtxt(folder / "trace", dtype=np.int64, ndmin=2)[:, 1]
        records = np.fromfile(output, dtype=RECORD)
    cpu, reader_cpu, seconds = (b - a for a, b in zip(begin, end, strict=True))
    delay = delays(steps, records) / 1e6
    tokens = len(records)
    return Turn(
        rate=tokens / seconds / args.streams,
        p50=float(np.percentile(delay, 50)),
        p99=float(np.percentile(delay, 99)),
        worst=float(delay.max()),
        cpu=cpu / tokens * 1e6,
        reader_cpu=reader_cpu / tokens * 1e6,
        idle_bytes=idle,
        stream_bytes=grown / args.streams,
    )


def open_bytes(name: str, args) -> float:
    """Resident bytes per stream of args.open streams, at a token per second each."""
    with tempfile.TemporaryDirectory(prefix="tandem-streams-") as temporary:
        folder = Path(temporary)
        with running(command(name, args, args.open, OPEN_TICK, OPEN_TICK, folder), folder) as (
            own,
            address,
        ):
            idle = resident_bytes(own.pid)
            channels = max(1, args.open // 1000)
            output = folder / "records"
            readers = load(args, address, args.open, channels, OPEN_WARM_UP, OPEN_SECONDS, output)
            wait_for(readers, "begin")
            wait_for(readers, "end")
            grown = resident_bytes(own.pid) - idle
            tokens = int(wait_for(readers, "tokens").split()[1])
            if readers.wait(60) != 0:
                raise RuntimeError("streams failed")
    if tokens < args.open * (OPEN_SECONDS / OPEN_TICK - 2):
        raise RuntimeError(f"{tokens} tokens in {OPEN_SECONDS} s: not all streams were running")
    return grown / args.open


def markdown(conditions: str, servers: list[Server], args) -> str:
    ours, bare = servers

    def row(title: str, figure: str, digits: int = 1, scale: float = 1.0) -> list[str]:
        cells = []
        for server in servers:
            values = [getattr(t, figure) * scale for t in server.turns]
            middle, low, high = statistics.median(values), min(values), max(values)
            cells.append(f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})")
        return [title, *cells]

    rows = [
        row("tokens per second and stream", "rate"),
        row("delay of a token, median, ms", "p50", 2),
        row("delay of a token, 99 %, ms", "p99", 2),
        row("longest delay, ms", "worst", 2),
        row("server CPU per token, µs", "cpu", 2),
        row("readers' CPU per token, µs", "reader_cpu", 2),
        row("memory without streams, MiB", "idle_bytes", 1, 2**-20),
        row("memory per stream, KiB", "stream_bytes", 1, 2**-10),
    ]
    if ours.open_bytes is not None and bare.open_bytes is not None:
        cells = [f"{s.open_bytes / 1024:.1f}" for s in servers]
        rows.append([f"memory per stream of {args.open:,}, KiB", *cells])
    above = (
        ""
        if ours.open_bytes is None
        else f" Each of {args.open:,} open streams takes {(ours.open_bytes - bare.open_bytes) / 1024:.1f} KiB "
        "more than a bare one."
    )
    ratio = ours.median("cpu") / bare.median("cpu")
    checks = (
        "The fake device\nchecks the memory of every row that a pass reads, and the server's CPU time includes it."
        if args.check_memory
        else "It does not\ncheck the memory that a pass reads (`check_memory: false`)."
    )
    main = table(["", *(server.name for server in servers)], rows)
    return f"""{args.streams:,} streams over {args.channels} connections, one token every {args.tick * 1000:.0f} ms for each.
Server CPU per token is **{ratio:.2f}** times the bare streamer's.{above}

{main}

Medians of {len(ours.turns)} turns of {args.seconds:.0f} s after {args.warm_up:.0f} s of warm-up, minimum and maximum in parentheses.
A request has a prompt of 16 tokens and generates {args.new_tokens}. A pass of the fake device takes {args.pass_seconds * 1000:.1f} ms. {checks}

{conditions}
"""


def failures(servers: list[Server]) -> list[str]:
    """Missed goals of --check."""
    ours, bare = servers
    found = []
    if (p99 := ours.median("p99")) > P99_MILLISECONDS:
        found.append(f"p99 of the delay: {p99:.1f} ms; allowed: {P99_MILLISECONDS} ms")
    if (ratio := ours.median("cpu") / bare.median("cpu")) > CPU_RATIO:
        found.append(f"CPU per token over the bare streamer's: {ratio:.2f}; allowed: {CPU_RATIO}")
    if ours.open_bytes is not None and bare.open_bytes is not None:
        above = ours.open_bytes - bare.open_bytes
        if above > STREAM_BYTES:
            found.append(
                f"bytes of a stream above a bare one: {above:.0f}; allowed: {STREAM_BYTES}"
            )
    return found


def parse(arguments):
    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=4, help="connections")
    parser.add_argument("--tick", type=float, default=0.02, help="seconds between tokens")
    parser.add_argument(
        "--pass-seconds",
        type=float,
        default=0.0155,
        help="duration of a pass of the fake device: the tick less the time between passes",
    )
    parser.add_argument("--new-tokens", type=int, default=256, help="new tokens of a request")
    parser.add_argument("--warm-up", type=float, default=6, help="seconds")
    parser.add_argument("--seconds", type=float, default=20, help="measured time of a turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--open", type=int, default=10000, help="streams of the memory measurement; 0: none"
    )
    parser.add_argument(
        "--check-memory", action="store_true", help="the fake device checks the memory of passes"
    )
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    run = cli.Run("scripts/bench_streams", arguments, args.write)
    servers = [Server("Tandem"), Server("bare streamer")]
    for i in range(args.repeats):
        for server in servers if i % 2 == 0 else reversed(servers):
            server.turns.append(turn(server.name, args))
            print(server.name, server.turns[-1], file=sys.stderr)
    if args.open > 0:
        for server in servers:
            server.open_bytes = open_bytes(server.name, args)
    text = markdown(run.conditions(), servers, args)
    cli.publish(text, args.write, PAGE, "streams")
    wrong = failures(servers) if args.check else []
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
