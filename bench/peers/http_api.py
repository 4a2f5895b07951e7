"""Server CPU per token over HTTP and over gRPC.

    scripts/bench_http [--write]

tandem-server with a fake device serves the readers of bench/http_load.cpp over each API in turn, with a
new process for each turn. Tokens are counted by the server's metrics.
"""

import statistics
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bench.peers import cli
from bench.peers.streams import cpu_seconds, running
from measure.paths import ROOT
from measure.report import table

PAGE = ROOT / "docs" / "reports" / "serving.md"
TOKENS = "tandem_generated_tokens_total"

CONFIG = """\
models {{
  name: "fake"
  kv_pages: {pages}
  fake {{ pass_seconds: {pass_seconds} trace_file: "{trace}" check_memory: false }}
}}
limits {{ max_running: 1024 max_waiting: 1024 max_waiting_per_client: 1024 step_rows: 16384 }}
server {{ max_concurrent_streams: 1024 max_connections_per_host: 1024 openai: "127.0.0.1:0" }}
"""
# Name, API, one connection per gRPC stream (as HTTP clients have).
APIS = (
    ("gRPC, one connection", "grpc", False),
    ("gRPC, one connection per stream", "grpc", True),
    ("HTTP", "openai", True),
)
PACES = (("unlimited", 0.0), ("a token every 10 ms", 0.01))


@dataclass
class Turn:
    rate: float  # tokens per second, all streams
    cpu: float  # of the server, microseconds per token
    joined: float  # tokens per message


def tokens(http: str) -> int:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(TOKENS + "{"))


def turn(args, api: str, own: bool, streams: int, pass_seconds: float) -> Turn:
    with tempfile.TemporaryDirectory(prefix="tandem-http-") as temporary:
        folder = Path(temporary)
        pages = streams * (args.new_tokens // 16 + 4)
        config = folder / "config.textproto"
        config.write_text(
            CONFIG.format(pages=pages, pass_seconds=pass_seconds, trace=folder / "trace")
        )
        command = [str(args.binaries / "tandem-server"), f"--config={config}"]
        flags = ["--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--grace-seconds=1"]
        with running([*command, *flags, "--log-level=warn"], folder) as (process, _):
            ports = dict(line.split("=", 1) for line in (folder / "ports").read_text().splitlines())
            load = [args.binaries / "http_load", f"--api={api}", f"--address={ports[api]}"]
            load += [f"--streams={streams}", f"--connections={streams if own else 1}"]
            load += [f"--new-tokens={args.new_tokens}", f"--seconds={args.seconds}"]
            with subprocess.Popen(load, stdout=subprocess.PIPE, text=True) as readers:
                at = []
                for word in ("begin", "end"):
                    said = readers.stdout.readline().strip()
                    if said != word:
                        raise RuntimeError(f"http_load said {said!r}")
                    at.append((cpu_seconds(process.pid), tokens(ports["http"])))
                last = readers.stdout.readline().split()
                if readers.wait(60) != 0:
                    raise RuntimeError("streams failed")
    (cpu_before, before), (cpu_after, after) = at
    made = after - before
    return Turn(
        rate=made / args.seconds,
        cpu=(cpu_after - cpu_before) / made * 1e6,
        joined=made / int(last[1]),
    )


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def markdown(results: dict, args, conditions: str) -> str:
    rows = []
    for (pace, streams), apis in results.items():
        cpus = {name: statistics.median(t.cpu for t in turns) for name, turns in apis.items()}
        for name, turns in apis.items():
            ratio = cpus[name] / cpus[APIS[1][0]]
            rows.append(
                [
                    pace,
                    str(streams),
                    name,
                    spread([t.rate for t in turns], 0),
                    spread([t.cpu for t in turns], 1),
                    f"**{ratio:.2f}**" if name == "HTTP" else f"{ratio:.2f}",
                    f"{statistics.median(t.joined for t in turns):.1f}",
                ]
            )
    head = ["pace", "streams", "API", "tokens/s", "server CPU, µs per token"]
    main = table([*head, "ratio", "tokens per message"], rows)
    return f"""{main}

Medians of {args.repeats} turns of {args.seconds:.0f} s, minimum and maximum in parentheses. A request has a prompt of 16 tokens and
generates {args.new_tokens}.

{conditions}
"""


def main(arguments=None) -> int:
    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 200])
    parser.add_argument("--new-tokens", type=int, default=256, help="new tokens of a request")
    parser.add_argument("--seconds", type=float, default=5, help="measured time of a turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/release/bin")
    args = parser.parse_args(arguments)
    run = cli.Run("scripts/bench_http", arguments, args.write)
    results = {}
    for pace, pass_seconds in PACES:
        for streams in args.streams:
            apis = results[pace, streams] = {name: [] for name, _, _ in APIS}
            for _ in range(args.repeats):
                for name, api, own in APIS:
                    apis[name].append(turn(args, api, own, streams, pass_seconds))
                    print(pace, streams, name, apis[name][-1], file=sys.stderr)
    text = markdown(results, args, run.conditions())
    cli.publish(text, args.write, PAGE, "http and grpc")
    return 0


if __name__ == "__main__":
    sys.exit(main())
