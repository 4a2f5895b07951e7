"""Runs every fenced `sh` block of README and of Getting started, in order, as a reader would.

A block whose info string is `sh no-test` is not run: it downloads, needs root or a cluster. A block that
starts a server in the foreground runs until the next such block or the end of the page.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARIES = os.environ.get("TANDEM_BIN", str(ROOT / "build/test/bin"))
PAGES = ["README.md", "docs/getting_started.md"]
READY = "http://127.0.0.1:9400/readyz"
BLOCK = re.compile(r"^```sh[ ]*\n(.*?)^```\s*$", re.S | re.M)
SERVER = re.compile(r"^(?:\S*/)?tandem-server\b(?!.*(?:--(?:help|check|version)|&\s*$))", re.M)


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text("utf-8"))


def is_ready():
    try:
        with urllib.request.urlopen(READY, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


class Shell:
    """Runs blocks in the checkout with the built programs first in PATH."""

    def __init__(self, folder):
        self.server = None
        self.log = folder / "server.log"
        self.env = {**os.environ, "PATH": f"{BINARIES}:{os.environ['PATH']}"}

    def start(self, block):
        script = "set -euo pipefail\n" + block.replace("build/release/bin", BINARIES)
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if not SERVER.search(block) else self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def run(self, block):
        if SERVER.search(block):
            self.stop()
            self.server = self.start(block)
            deadline = time.monotonic() + 120
            while not is_ready():
                assert self.server.poll() is None, self.log.read_text("utf-8")
                assert time.monotonic() < deadline, self.log.read_text("utf-8")
                time.sleep(0.2)
            return
        process = self.start(block)
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the block left running
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"{block}\n{output}"

    def stop(self):
        if self.server is not None and self.server.poll() is None:
            os.killpg(self.server.pid, signal.SIGTERM)
            try:
                self.server.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(self.server.pid, signal.SIGKILL)
        self.server = None


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.stop()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page, shell):
    if is_ready():
        pytest.skip("another server listens on 127.0.0.1:9400")
    found = blocks(page)
    assert found, f"{page}: no sh blocks"
    for block in found:
        shell.run(block)
