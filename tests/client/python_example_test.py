"""The example in client/examples/python runs against a server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("grpc_tools")

EXAMPLE = Path(__file__).resolve().parents[2] / "client/examples/python/generate.py"


def run(*args):
    return subprocess.run(
        [sys.executable, EXAMPLE, *args], capture_output=True, text=True, timeout=120
    )


def test_streams_what_the_server_makes(server, tandem):
    expected = json.loads(
        tandem(
            "generate",
            "--model=fake",
            "--prompt=example",
            "--max-new-tokens=20",
            "--temperature=0",
            "--format=json",
        ).stdout
    )
    done = run(
        "--server",
        server.grpc,
        "--model=fake",
        "--prompt=example",
        "--max-new-tokens=20",
        "--temperature=0",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.removesuffix("\n") == expected["text"] or done.stdout == expected["text"]
    tokens = expected["usage"]["completion_tokens"]
    assert f"[{expected['finish_reason']}: {tokens} tokens]" in done.stderr


def test_errors_are_statuses(server):
    done = run("--server", server.grpc, "--model=nope", "--prompt=x")
    assert done.returncode == 1
    assert done.stderr.startswith("NOT_FOUND: ")
    assert "Traceback" not in done.stderr
