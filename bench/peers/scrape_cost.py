"""Measures the cost of an endpoint picker: processor time of the server for scrapes of /metrics/gateway.

    python -m bench.peers.scrape_cost --model PATH [--pairs 5] [--seconds 10] [--rate 20] [--server PATH]

The server is idle. Windows with scrapes on one connection alternate with windows without.
"""

import http.client
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.peers import cli
from measure import machine, serving
from measure.paths import ROOT
from measure.report import spread, table

PAGE = ROOT / "docs" / "reports" / "serving.md"


def wait_for(ports: Path, process: subprocess.Popen) -> str:
    """The address of the metrics port."""
    while not ports.exists():
        if process.poll() is not None:
            raise RuntimeError("tandem-server ended")
        time.sleep(0.05)
    lines = dict(line.split("=", 1) for line in ports.read_text().splitlines())
    return lines["http"]


def scrape(connection: http.client.HTTPConnection, path: str = "/metrics/gateway") -> int:
    """Bytes of the answer."""
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: status {answer.status}")
    return len(text)


def window(process: int, seconds: float, rate: float, connection, path: str) -> float:
    """Processor seconds of the server per second, in percent of a core. Rate 0: no scrapes."""
    begin, before = time.monotonic(), machine.process_seconds(process)
    due = begin
    while due < begin + seconds:
        if rate:
            scrape(connection, path)
        due += 1 / rate if rate else seconds
        time.sleep(max(0, due - time.monotonic()))
    return (machine.process_seconds(process) - before) / (time.monotonic() - begin) * 100


def main(arguments=None) -> int:
    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--server", type=Path, default=serving.BINARY)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="of a window (10)")
    parser.add_argument("--rate", type=float, default=20, help="scrapes per second (20)")
    args = parser.parse_args(arguments)
    run = cli.Run("python -m bench.peers.scrape_cost", arguments, args.write)
    shares: dict[str, list[float]] = {"no scrapes": [], "/metrics/gateway": [], "/metrics": []}
    with tempfile.TemporaryDirectory() as folder:
        ports = Path(folder) / "ports"
        flags = [f"--model=m={args.model}", "--listen=127.0.0.1:0", "--http=127.0.0.1:0"]
        with open(Path(folder) / "log", "w") as log:
            process = subprocess.Popen(
                [args.server, *flags, f"--port-file={ports}", "--openai=127.0.0.1:0"], stderr=log
            )
        try:
            address = wait_for(ports, process)
            while True:  # it answers 503 until the model is loaded
                try:
                    urllib.request.urlopen(f"http://{address}/readyz").close()
                    break
                except OSError:
                    time.sleep(0.1)
            connection = http.client.HTTPConnection(address)
            size = scrape(connection)
            for pair in range(args.pairs):
                names = list(shares)
                for name in names if pair % 2 == 0 else reversed(names):
                    rate = 0 if name == "no scrapes" else args.rate
                    shares[name].append(window(process.pid, args.seconds, rate, connection, name))
        finally:
            process.terminate()
            process.wait(60)
    shown = table(["scrapes", "of a core, %"], [[n, spread(v)] for n, v in shares.items()])
    how = (
        f"{args.rate:g} scrapes per second on one connection, an idle server, {args.pairs} alternated "
        f"windows of {args.seconds:g} s. A page of /metrics/gateway has {size} bytes."
    )
    text = f"{shown}\n\n{how}\n\n{run.conditions()}\n"
    cli.publish(text, args.write, PAGE, "scrapes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
