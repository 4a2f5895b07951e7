"""The example in client/examples/java: generated, compiled, and run against a server."""

import json
import os
import shutil
import subprocess

import pytest

from tests.client.conftest import checkout
from tests.conftest import HOME


@pytest.fixture(scope="session")
def java_program(tmp_path_factory):
    """java_program(*args): the compiled example."""
    if not (shutil.which("mvn") and (HOME / "maven").is_dir()):
        pytest.skip(f"Maven or {HOME / 'maven'} is missing (scripts/setup --full)")
    folder = (
        checkout(tmp_path_factory.mktemp("java"), "client/examples/java") / "client/examples/java"
    )
    maven = ["mvn", "-o", "-q", "-B", f"-Dmaven.repo.local={HOME / 'maven'}"]
    classpath = folder / "classpath"
    done = subprocess.run(
        [*maven, "compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]

    def run(*args):
        path = os.pathsep.join([str(folder / "target/classes"), classpath.read_text()])
        return subprocess.run(
            ["java", "-cp", path, "tandem.example.Main", *args],
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_streams(java_program, server, tandem):
    fields = {"maxNewTokens": 20, "seed": "18446744073709551615", "ignoreEos": True}
    done = java_program(server.grpc, "pair", "example", json.dumps(fields))
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[MAX_TOKENS: 20 tokens, seed 18446744073709551615]"
    expected = tandem(
        "generate", "--model=pair", "--prompt=example", "--max-new-tokens=20", "--ignore-eos",
        "--seed=18446744073709551615", "--format=json",
    )  # fmt: skip
    assert done.stdout == json.loads(expected.stdout)["text"] != ""


def test_errors_name_what_is_wrong(java_program, server):
    done = java_program(server.grpc, "none", "x")
    assert done.returncode == 1
    assert done.stderr.startswith('NOT_FOUND: model: "none"; known: "fake", "slow", "pair"')
