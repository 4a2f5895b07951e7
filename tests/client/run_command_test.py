"""`tandem pull`, `tandem run` and `tandem-server --model ORG/REPO` against a stub of the hub."""

import os
import subprocess

import pytest

from tests.client.hub_stub import COMMIT, OTHER, Hub, Repo, serve
from tests.conftest import ROOT


def repo_of(name):
    folder = ROOT / "models" / name
    return Repo({f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()})


@pytest.fixture
def hub():
    hub = Hub({f"org/{name}": repo_of(name) for name in ("code-large", "code-small")})
    server = serve(hub)
    yield hub
    server.shutdown()


@pytest.fixture
def run(binaries, hub, tmp_path):
    """run(program, *arguments, input=""): the finished process."""
    if not (binaries / "tandem-pull").exists():
        pytest.skip(f"no tandem-pull in {binaries}")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment = clean | {"HF_ENDPOINT": f"http://{hub.address}", "HF_HOME": str(tmp_path)}

    def run(program, *arguments, text=""):
        return subprocess.run(
            [binaries / program, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
        )

    return run


def test_pull_prints_paths(run, tmp_path):
    done = run("tandem", "pull", "org/code-small", "--quiet")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == f"{tmp_path}/hub/models--org--code-small/snapshots/{COMMIT}\n"
    done = run("tandem", "pull", "org/none")
    assert done.returncode == 1 and "no such repository" in done.stderr
    assert run("tandem", "pull").returncode == 2


def test_check_reads_only_the_cache(run, hub):
    done = run("tandem-server", "--model=org/code-small", "--check")
    assert done.returncode == 1 and "`tandem pull` fetches models" in done.stderr
    assert not hub.requests
    assert run("tandem", "pull", "org/code-small").returncode == 0
    done = run("tandem-server", "--model=org/code-small", "--check")
    assert done.returncode == 0, done.stderr


def test_run_serves_and_talks(run, hub):
    chat = (
        "run",
        "org/code-large",
        "--small=org/code-small",
        "--max-new-tokens=8",
        "--temperature=0",
    )
    done = run("tandem", *chat, text="def add(a, b):\n")
    assert done.returncode == 1 and "chat template" in done.stderr, "these models have none"
    assert "org/code-large [####" in done.stderr, "the progress of the download"
    hub.repos["org/code-large"].commits["main"] = OTHER
    hub.repos["org/code-large"].files["chat_template.jinja"] = (
        b"{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    done = run("tandem", *chat, text="def add(a, b):\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_run_of_what_is_not_there(run):
    done = run("tandem", "run", "org/none", text="hello\n")
    assert done.returncode == 1
    assert "no such repository" in done.stderr and "tandem-server ended" in done.stderr
    done = run("tandem", "run", text="hello\n")
    assert done.returncode == 2
