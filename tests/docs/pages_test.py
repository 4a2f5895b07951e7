"""Runs every fenced `sh` block of README and of Getting started, in order, as a reader would.

A block whose info string is `sh no-test` is not run: it downloads, needs root or a cluster.
"""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARIES = os.environ.get("TANDEM_BIN", str(ROOT / "build/test/bin"))
PAGES = ["README.md", "docs/getting_started.md"]
BLOCK = re.compile(r"^```sh[ ]*\n(.*?)^```\s*$", re.S | re.M)


def run(block):
    """Status and output of the block, with the built programs first in PATH."""
    process = subprocess.Popen(
        ["bash", "-c", "set -euo pipefail\n" + block],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{BINARIES}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
        return process.returncode, output
    finally:
        with contextlib.suppress(ProcessLookupError):  # what a failed block left running
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page):
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert blocks, f"{page}: no sh blocks"
    for block in blocks:
        status, output = run(block)
        assert status == 0, f"{block}\n{output}"
