"""Fixtures for tests that run the programs: `tandem-server` with fake models, and `tandem`."""

import os
import shutil
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOME = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem"))

# `fake` answers at once; `slow` takes 5 ms a token; `pair` has a small model that seldom agrees, and
# may leave the large one early.
FAKE_CONFIG = """
models { name: "fake" fake {} }
models { name: "slow" fake { pass_seconds: 0.005 } }
models { name: "little" fake { seed: 2 } }
deployments { name: "fake" large: "fake" }
deployments { name: "slow" large: "slow" small: "fake" }
deployments { name: "pair" large: "fake" small: "little" bild { early_exit_layer: 2 } }
"""
# The same with a chat template.
CHAT_CONFIG = FAKE_CONFIG.replace(
    "fake {}",
    'fake { chat_template: "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}" }',
    1,
)


@dataclass
class Server:
    process: subprocess.Popen
    log: Path
    ports: dict = field(default_factory=dict)

    @property
    def grpc(self):
        return self.ports["grpc"]

    @property
    def http(self):
        return self.ports["http"]

    def log_text(self):
        return self.log.read_text("utf-8", errors="replace")

    def wait_for_log(self, text, times=1):
        """Waits for a log line, which may come after the answer it is about."""
        self.until(lambda: self.log_text().count(text) >= times, f"{text} in the log")

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=60) as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            return answer.read().decode()

    def until(self, condition, what, seconds=60):
        """Waits for what must come true; `seconds` only bounds a failure."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log_text()[-2000:]
            assert time.monotonic() < end, f"never: {what}"
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM, timeout=60):
        """Sends a signal; gives the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout)


@pytest.fixture(scope="session")
def tool():
    """tool(name): path of a tool that scripts/setup installs, or that the machine has."""

    def find(name):
        own = HOME / "bin" / name
        found = str(own) if own.exists() else shutil.which(name)
        if not found:
            pytest.skip(f"{name} is neither in {own.parent} nor on PATH")
        return found

    return find


@pytest.fixture(scope="session")
def binaries():
    folder = Path(os.environ.get("TANDEM_BIN", ROOT / "build" / "release" / "bin"))
    if not (folder / "tandem-server").exists():
        pytest.skip(f"no tandem-server in {folder}")
    return folder


@pytest.fixture(scope="session")
def start_server(binaries, tmp_path_factory):
    """start_server(config_text, *flags): a server on free ports, stopped at the end of the session."""
    servers = []

    def start(config=None, *flags):
        folder = tmp_path_factory.mktemp("server")
        (folder / "config.textproto").write_text(config or FAKE_CONFIG, "utf-8")
        ports = folder / "ports"
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    binaries / "tandem-server",
                    f"--config={folder / 'config.textproto'}",
                    "--listen=127.0.0.1:0",
                    "--http=127.0.0.1:0",
                    f"--port-file={ports}",
                    *flags,
                ],
                stderr=out,
            )
        server = Server(process, log)
        servers.append(server)
        end = time.monotonic() + 120
        while not ports.exists():
            assert process.poll() is None, server.log_text()
            assert time.monotonic() < end, server.log_text()
            time.sleep(0.02)
        server.ports = dict(line.split("=", 1) for line in ports.read_text().split())
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server):
    return start_server()


@pytest.fixture
def tandem(binaries, server):
    """tandem(*args): runs the command line against `server`."""

    def run(*args, address=None, stdin="", env=None):
        return subprocess.run(
            [binaries / "tandem", *args],
            input=stdin.encode(),
            capture_output=True,
            timeout=120,
            env={**os.environ, "TANDEM_SERVER": address or server.grpc, **(env or {})},
        )

    return run
