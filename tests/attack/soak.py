"""Mixed load with faults on the wire for as long as is wanted, and what the server holds meanwhile.

Once in a while the load rests: then no request, page, call or connection may be left, and no more
files and memory than at the rests before.

    scripts/soak                                          # ten minutes
    scripts/soak --minutes 60 --svg docs/soak.svg         # with a picture of it
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.attack.harness import ROOT, Api, Target
from tests.attack.soak_load import Load
from tests.attack.soak_plot import draw
from tests.attack.wire import Wire
from tests.conftest import Server

# Pools small enough to be full soon, and connections that end of age now and then.
CONFIG = f"""
models {{ name: "fake" kv_pages: 512 fake {{ pass_seconds: 0.001 }} }}
models {{ name: "little" kv_pages: 512 fake {{ seed: 2 pass_seconds: 0.0005 }} }}
models {{
  name: "code-large" path: "{ROOT}/models/code-large" device: "cpu:1" kv_pages: 256
  extras {{ name: "bita" path: "{ROOT}/models/code-large-bita" }}
}}
models {{ name: "code-small" path: "{ROOT}/models/code-small" device: "cpu:1" kv_pages: 256 }}
devices {{ name: "cpu:0" threads: 1 }}
devices {{ name: "cpu:1" threads: 1 }}
deployments {{ name: "fake" large: "fake" }}
deployments {{ name: "pair" large: "fake" small: "little" bild {{ early_exit_layer: 2 }} }}
deployments {{ name: "code" large: "code-large" small: "code-small" bita {{ adapter: "bita" }} }}
limits {{ max_running: 32 max_waiting: 64 stalled_stream_seconds: 20 }}
server {{ max_connection_age_seconds: 30 }}
"""
MODELS_WITH_KV = ("fake", "little", "code-large", "code-small")
QUIET = (  # what must be nothing at a rest
    "tandem_requests_running",
    "tandem_requests_waiting",
    "tandem_requests_tokenizing",
    "tandem_requests_paused",
    "tandem_waiting_bytes",
    "tandem_open_calls",
    "tandem_connections",
)
SPARE_FILES = 2
SPARE_BYTES = 8 << 20  # besides KV pages that are used for the first time
SPARE_THREADS = 8  # gRPC starts and ends some as it sees fit


def start(folder, binaries):
    config, ports = folder / "config", folder / "ports"
    config.write_text(CONFIG)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                binaries / "tandem-server",
                f"--config={config}",
                "--listen=127.0.0.1:0",
                "--http=127.0.0.1:0",
                f"--port-file={ports}",
                "--log-level=warn",
            ],
            stderr=log,
        )
    while not ports.exists():
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)
    return Server(
        process, folder / "log", dict(line.split("=", 1) for line in ports.read_text().split())
    )


def held(rest, what):
    """What a rest has of something; of memory without the KV pages that fill it by and by."""
    return rest[what] - (rest["touched"] if what == "memory" else 0)


class Soak:
    def __init__(self, target, load, report=None):
        """`report` is called after each rest, so that something is left of a soak that is cut off."""
        self.target, self.load, self.report = target, load, report
        self.began = time.monotonic()
        self.samples, self.rests, self.wrong = [], [], []
        self.touched = {}

    def sample(self):
        target = self.target
        self.touch()
        return {
            "seconds": round(time.monotonic() - self.began, 1),
            "memory": target.memory(),
            "touched": sum(self.touched.values()),
            "files": target.files(),
            "threads": target.threads(),
            "pages": target.metric("tandem_kv_cache_pages", state="used"),
            "cached": target.metric("tandem_kv_cache_pages", state="cached"),
            "running": target.metric("tandem_requests_running"),
            "done": sum(self.load.done.values()),
        }

    def touch(self):
        """Counts the bytes of KV pages that have been used, per model: a pool is resident only as far
        as it was written, and is used to its end before a page is reused."""
        for model in MODELS_WITH_KV:
            pages = {
                state: self.target.metric("tandem_kv_cache_pages", model=model, state=state)
                for state in ("used", "cached", "free")
            }
            whole = self.target.metric("tandem_device_memory_bytes", model=model, kind="kv_cache")
            share = (pages["used"] + pages["cached"]) / sum(pages.values())
            self.touched[model] = max(self.touched.get(model, 0), round(whole * share))

    def rest(self):
        """Lets everything end; what is then left is sampled, and must be nothing."""
        self.load.rest()

        def nothing():
            left = sum(self.target.metric(name) for name in QUIET)
            return left + self.target.metric("tandem_kv_cache_pages", state="used") == 0

        self.target.until(nothing, "no request, page, call or connection is left", 120)
        if self.target.http("/healthz")[0] != 200:
            self.wrong.append("/healthz is not 200 at a rest")
        self.rests.append(self.sample())
        if self.report and self.samples:
            self.report()
        self.load.resume()

    def run(self, seconds, every, rest_every):
        self.rest()  # before anything
        next_rest = time.monotonic() + rest_every
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(every, max(0.0, end - time.monotonic())))
            self.samples.append(self.sample())
            if time.monotonic() > next_rest:
                self.rest()
                next_rest = time.monotonic() + rest_every
        self.rest()
        self.load.rest()

    def verdict(self):
        """What was wrong, in words."""
        wrong = self.wrong + self.load.wrong[:10]
        internal = self.target.metric("tandem_requests_failed_total", status="INTERNAL")
        if internal:
            wrong.append(f"{internal:.0f} requests ended with INTERNAL")
        # The first rest is before anything; by the third everything has been used once.
        rests = self.rests[2:]
        if len(rests) < 4:
            return wrong
        half = len(rests) // 2
        early, late = rests[:half], rests[half:]
        for what, spare in (
            ("files", SPARE_FILES),
            ("threads", SPARE_THREADS),
            ("memory", SPARE_BYTES),
        ):
            grown = statistics.median(held(r, what) for r in late) - statistics.median(
                held(r, what) for r in early
            )
            if grown > spare:
                wrong.append(f"{what}: {grown:.0f} more at late rests than at early ones")
        return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=40, help="what is begun in a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rest-every", type=float, default=60, help="seconds between rests")
    parser.add_argument("--svg", type=Path, help="where the picture goes")
    parser.add_argument("--json", type=Path, help="where the samples go")
    arguments = parser.parse_args()
    binaries = Path(os.environ.get("TANDEM_BIN", ROOT / "build" / "release" / "bin"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = Target(start(folder, binaries), Api(folder))
        wire = Wire(target.server.grpc, arguments.seed)
        load = Load(target, wire, arguments.rate, seed=arguments.seed)

        def report():
            if arguments.json:
                arguments.json.write_text(json.dumps(result(), indent=1))
            if arguments.svg:
                arguments.svg.write_text(draw(result()))

        def result():
            done = {" ".join(k): n for k, n in sorted(load.done.items())}
            found = {"samples": soak.samples, "rests": soak.rests}
            return {**found, "done": done, "fates": wire.fates, "wrong": load.wrong}

        soak = Soak(target, load, report)
        try:
            soak.run(60 * arguments.minutes, 5, arguments.rest_every)
            wrong = soak.verdict()
        finally:
            load.close()
            wire.close()
        status = target.server.stop()
    if status != 0:
        wrong.append(f"the server ended with status {status}")
    print(f"{sum(load.done.values())} actions: {result()['done']}")
    print(f"connections of the wire: {wire.fates}")
    first, last = soak.rests[min(2, len(soak.rests) - 1)], soak.rests[-1]
    for what in ("memory", "touched", "files", "threads"):
        print(f"{what} at a rest: {first[what]} early, {last[what]} at the end")
    print("\n".join(wrong) if wrong else "nothing leaked, nothing failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
