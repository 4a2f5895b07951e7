"""The examples in client/examples/node run against a server."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "client/examples/node"
HOME = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem"))
MODULES = HOME / "node" / "node_modules"

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and (MODULES / "openai").is_dir()),
    reason=f"node or its packages in {MODULES} are missing (scripts/setup --full)",
)


@pytest.fixture(scope="module")
def door(start_server):
    return start_server(None, "--openai=127.0.0.1:0")


def run(script, *args):
    return subprocess.run(
        ["node", EXAMPLES / script, *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NODE_PATH": str(MODULES)},
    )


def by_grpc(door, **fields):
    fields = {"seed": "18446744073709551615", "temperature": 1, "ignore_eos": True, **fields}
    return run(
        "generate.js",
        f"--server={door.grpc}",
        "--model=pair",
        "--prompt=example",
        "--max-new-tokens=20",
        f"--fields={json.dumps(fields)}",
    )


def by_openai(door, *args):
    address = door.ports["openai"]
    return run(
        "openai.js",
        f"--server={address}",
        "--model=pair",
        "--prompt=example",
        "--max-tokens=20",
        *args,
    )


def test_grpc_streams(door, tandem):
    done = by_grpc(door)
    assert done.returncode == 0, done.stderr
    assert "[MAX_TOKENS: 20 tokens, seed 18446744073709551615]" in done.stderr
    expected = tandem(
        "generate",
        "--model=pair",
        "--prompt=example",
        "--max-new-tokens=20",
        "--temperature=1",
        "--ignore-eos",
        "--seed=18446744073709551615",
        "--format=json",
        address=door.grpc,
    )
    assert done.stdout == json.loads(expected.stdout)["text"]


def test_grpc_names_that_the_loader_would_drop_are_errors(door):
    for fields, message in (
        ({"maxNewTokens": 3}, "maxNewTokens: no such field"),
        ({"bild": {"rollback": 1}}, "bild.rollback: no such field"),
    ):
        done = by_grpc(door, **fields)
        assert done.returncode == 1
        assert message in done.stderr


def test_openais_client_lists_completes_streams_and_fails(door):
    address = door.ports["openai"]
    listed = run("openai.js", f"--server={address}", "--list")
    assert listed.stdout.split() == ["fake", "slow", "pair"], listed.stderr
    whole = by_openai(door, "--whole", "--seed=18446744073709551615", "--method=speculative")
    assert whole.returncode == 0, whole.stderr
    assert "[speculative: " in whole.stderr
    streamed = by_openai(door, "--seed=18446744073709551615")
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stderr.strip() == whole.stderr.replace("speculative: ", "").strip()
    assert streamed.stdout == whole.stdout != ""
    failed = by_openai(door, "--method=none")
    assert failed.returncode == 1
    assert "400 invalid_field: tandem.method: another; allowed: auto" in failed.stderr
