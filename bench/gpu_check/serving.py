"""The server on a device: all methods of the demo and PPD, and shutdown under load. Prints lines of JSON for
steps.figures_of."""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CONFIG = """
models {{
  name: "code-large" path: "{models}/code-large" device: "{device}"
  extras {{ name: "code-large-bita" path: "{models}/code-large-bita" }}
  kv_pages: {pages}
}}
models {{ name: "code-small" path: "{models}/code-small" device: "{device}" }}
models {{ name: "worker" path: "{models}/code-large" device: "{device}/1" layers: 4 }}
deployments {{
  name: "code" large: "code-large" small: "code-small"
  bild {{ fallback_threshold: 0.2 rollback_threshold: 0.69 }}
  bita {{ adapter: "code-large-bita" }}
  ppd {{ exit_layer: 4 workers: "worker" num_candidates: 3 }}
}}
{more}
"""


def say(name, value, unit=""):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


class Server:
    def __init__(
        self,
        args,
        folder: Path,
        more: str = "",
        device: str | None = None,
        pages: int = 0,
        config: str = CONFIG,
    ):
        """pages: of the large model; 0: from the device's memory."""
        text = config.format(
            models=args.models, device=device or args.device, more=more, pages=pages
        )
        (folder / "config.textproto").write_text(text)
        self.ports_file = folder / "ports"
        self.log = folder / "log"
        command = [args.bin / "tandem-server", f"--config={folder / 'config.textproto'}"]
        command += ["--listen=127.0.0.1:0", "--http=127.0.0.1:0", f"--port-file={self.ports_file}"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stderr=out, stdout=out)

    def wait_until_ready(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while not self.ports_file.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the server does not start: " + self.last_words())
            time.sleep(0.02)
        return self.addresses()["grpc"]

    def addresses(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.ports_file.read_text().split())

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(
            f"http://{self.addresses()['http']}/metrics", timeout=10
        ) as page:
            text = page.read().decode()
        return float(re.search(rf"^{name} (\S+)", text, re.M)[1])

    def last_words(self) -> str:
        return " | ".join(self.log.read_text("utf-8", "replace").splitlines()[-3:])

    def end(self, seconds: float = 30) -> int:
        """Its exit status; that of SIGKILL if it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def tandem(args, address: str, *words: str, seconds: float = 60) -> subprocess.CompletedProcess:
    command = [args.bin / "tandem", words[0], f"--server={address}", *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


def methods(args, address: str) -> list[str]:
    """One prompt by every method: tokens a second, and whether the answers are the same."""
    done = tandem(
        args,
        address,
        "compare",
        "def fib(n):",
        f"--max-new-tokens={args.tokens}",
        "--temperature=0",
        seconds=120,
    )
    print(done.stdout + done.stderr, flush=True)
    if done.returncode != 0:
        return [f"compare: status {done.returncode}"]
    wrong = []
    rows = re.findall(
        r"^(\w+) +(EXACT|EXACT_UP_TO_ROUNDING|LOSSY|DISTRIBUTION) +(\d+) .* s +([\d.]+) ",
        done.stdout,
        re.M,
    )
    for name, contract, tokens, rate in rows:
        say(f"server.{name}", float(rate), "tokens/s")
        same = name == "autoregressive" or f"== {name}: the same" in done.stdout
        say(f"server.{name}.same", same)
        if int(tokens) < 1:
            wrong.append(f"{name}: no tokens")
        # Without batch invariance the drafting methods are EXACT_UP_TO_ROUNDING.
        if contract == "EXACT" and not same:
            wrong.append(f"{name}: other tokens")
    if len(rows) < 6:
        wrong.append(f"{len(rows)} methods answered, not 6")
    return wrong


def load(args, address: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "bench.json"
        done = tandem(
            args,
            address,
            "bench",
            f"--concurrency={args.concurrency}",
            f"--requests={2 * args.concurrency}",
            f"--max-new-tokens={args.tokens}",
            f"--json={page}",
            seconds=200,
        )
        print(done.stdout + done.stderr, flush=True)
        return [] if done.returncode == 0 else [f"bench: status {done.returncode}"]


def drain(args, server: Server, address: str) -> list[str]:
    """On SIGTERM, an answer in progress completes, and then the server ends."""
    answer = subprocess.Popen(
        [args.bin / "tandem", "generate", f"--server={address}", "def f(", "--max-new-tokens=400"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert answer.stdout is not None
    answer.stdout.read(1)
    status = server.end()
    answer.communicate(timeout=60)
    say("server.drain", "ok" if status == answer.returncode == 0 else "wrong")
    if status != 0 or answer.returncode != 0:
        return [f"drain: the server ended with {status}, the answer with {answer.returncode}"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    args = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder))
        try:
            address = server.wait_until_ready(90)
            wrong += methods(args, address)
            wrong += load(args, address)
            wrong += drain(args, server, address)
        except (RuntimeError, subprocess.SubprocessError) as error:
            wrong.append(str(error))
        finally:
            server.end()
            print(server.log.read_text("utf-8", "replace")[-3000:], flush=True)
    print("\n".join(wrong) if wrong else "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
