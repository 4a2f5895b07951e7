"""The n-th thread of a server cannot be started, for n = 1, 2, ... until none fails: the server ends with
status 1 and a message, or it serves."""

import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import FAKE_CONFIG

MOST = 200  # threads; only bounds a failure


@pytest.fixture(scope="module")
def library(tool, tmp_path_factory):
    made = tmp_path_factory.mktemp("library") / "failed_thread.so"
    source = Path(__file__).with_name("failed_thread.c")
    subprocess.run([tool("cc"), "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def start(binaries, library, folder, n):
    """(process, whether its HTTP port is known)"""
    (folder / "config.textproto").write_text(FAKE_CONFIG, "utf-8")
    (folder / "ports").unlink(missing_ok=True)
    command = [binaries / "tandem-server", f"--config={folder / 'config.textproto'}"]
    command += [f"--{port}=127.0.0.1:0" for port in ("listen", "http", "openai")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--port-file={folder / 'ports'}"],
            stderr=log,
            env={**os.environ, "LD_PRELOAD": str(library), "FAIL_AT": str(n)},
        )
    end = time.monotonic() + 60  # only bounds a failure
    while process.poll() is None and not (folder / "ports").exists():
        assert time.monotonic() < end, "neither ended nor ready"
        time.sleep(0.02)
    return process, (folder / "ports").exists()


def test_a_thread_that_cannot_start(binaries, library, tmp_path):
    refused = 0
    for n in range(1, MOST):
        process, ready = start(binaries, library, tmp_path, n)
        if ready:
            ports = dict(line.split("=", 1) for line in (tmp_path / "ports").read_text().split())
            with urllib.request.urlopen(f"http://{ports['http']}/healthz", timeout=60) as answer:
                assert answer.status == 200, n
            process.send_signal(signal.SIGTERM)
        status = process.wait(60)
        log = (tmp_path / "log").read_text("utf-8")
        if "thread failed" not in log:
            break
        assert status == (0 if ready else 1), f"thread {n}: status {status}\n{log}"
        if not ready:
            refused += 1
            assert re.search(r"cannot start the thread for \w+", log), log
    else:
        raise AssertionError("every run has a failed thread")
    assert status == 0
    assert refused > 10
