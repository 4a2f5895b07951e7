"""Fixtures for tests of the clients: the Python package and the examples, each as its users get it."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import HOME, ROOT

PACKAGE = ROOT / "client/python"
EXAMPLES = ROOT / "client/examples"
MODULES = HOME / "node" / "node_modules"


def checkout(folder, *parts):
    """A checkout of these parts of the repository, whose files may be written over."""
    (folder / "proto").symlink_to(ROOT / "proto")
    for part in parts:
        shutil.copytree(ROOT / part, folder / part)
    return folder


@pytest.fixture(scope="session")
def tandem_client(tmp_path_factory):
    """The installed package, without a network."""
    for module in ("grpc", "grpc_tools", "setuptools"):
        pytest.importorskip(module)
    copy = checkout(tmp_path_factory.mktemp("checkout"), "client/python")
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", site, copy / "client" / "python"],
        check=True,
        timeout=120,
    )
    sys.path.insert(0, str(site))
    import tandem_client

    assert tandem_client.__file__.startswith(str(site))
    return tandem_client


@pytest.fixture(scope="session")
def node():
    """node(script, *args): runs an example in JavaScript."""
    if not (shutil.which("node") and (MODULES / "openai").is_dir()):
        pytest.skip(f"node or its packages in {MODULES} are missing (scripts/setup --full)")

    def run(script, *args):
        return subprocess.run(
            ["node", EXAMPLES / "node" / script, *args],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "NODE_PATH": str(MODULES)},
        )

    return run


@pytest.fixture(scope="session")
def go_tools(tmp_path_factory):
    """Environment in which Go builds the client and the example, without a network."""
    versions = (ROOT / "scripts/versions.env").read_text("utf-8")
    least = re.search(r'^GO_FOR_EXAMPLE="([\d.]+)"', versions, re.MULTILINE).group(1)
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if not go or not shutil.which("protoc"):
        pytest.skip("Go or protoc is missing")
    env = {
        **os.environ,
        "PATH": f"{os.path.dirname(go)}:{os.environ['PATH']}",
        "CGO_ENABLED": "0",
        # With it, objects are found in Go's cache whatever the folder is.
        "GOFLAGS": "-trimpath",
        "GOMODCACHE": str(HOME / "go"),  # where scripts/setup has put them
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }
    found = subprocess.run(["go", "env", "GOVERSION"], env=env, capture_output=True, text=True)
    version = found.stdout.strip().removeprefix("go").split(".")
    if [int(part) for part in version[:2]] < [int(part) for part in least.split(".")]:
        pytest.skip(f"Go {'.'.join(version)} is older than {least}")
    modules = ("client/go", "client/examples/go")
    copy = checkout(tmp_path_factory.mktemp("modules"), *modules)
    for module in modules:
        done = subprocess.run(["go", "mod", "download"], cwd=copy / module, env=env)
        if done.returncode != 0:
            pytest.skip(f"the modules of {module} are missing (scripts/setup --full)")
    return env


def run_go(command, folder, env):
    """Output of a command that must succeed."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def go_program(tmp_path_factory, go_tools):
    """The example in Go with the stubs of client/go, made anew and compiled."""
    copy = checkout(tmp_path_factory.mktemp("go"), "client/go", "client/examples/go")
    folder = copy / "client/examples/go"
    run_go(["./generate.sh"], copy / "client/go", go_tools)
    for command in (["go", "vet", "."], ["go", "build", "-o", "example", "."]):
        run_go(command, folder, go_tools)
    return folder / "example"
