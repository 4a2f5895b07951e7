"""Engines in separate processes: the protocol, and that they are idle between calls."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from bench.peers import worker
from measure import machine

HERE = str(Path(__file__).parent)


@pytest.fixture
def start():
    """Starts workers of the fake engine, and ends them."""
    started = []

    def make(precision="some", **environment):
        environment.setdefault("PYTHONPATH", HERE)
        one = worker.Worker(FakeEngine, Path("a folder"), precision, environment)
        started.append(one)
        return one

    yield make
    for one in started:
        one.close()


def test_answers_what_the_engine_answers(start):
    one = start()
    assert one.ask("details") == {"version": "fake 1"}
    assert one.ask("folder") == "a folder"
    assert one.ask("precision") == "some"
    one.ask("configure", step=1)
    assert one.ask("generate", prompts=[[7], [1, 2]], new_tokens=3) == [[[8, 9, 10], [3, 4, 5]], 7]
    assert one.ask("pass_seconds", context=1, rows=1, repeats=1) is None


def test_an_error_is_reported_and_the_engine_continues(start):
    one = start()
    with pytest.raises(worker.Failed, match="(?s)no step of 3.*by a library"):
        one.ask("configure", step=3)
    assert one.ask("generate", prompts=[[7]], new_tokens=1) == [[[8]], 5]


def test_a_precision_that_is_not_offered(start):
    with pytest.raises(worker.Refused, match="computes here with some only"):
        start("none")


def test_an_engine_that_ends_leaves_its_last_words(start):
    one = start()
    with pytest.raises(worker.Failed, match="(?s)ended with 3.*last words"):
        one.ask("die")


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_is_idle_between_calls(start):
    one = start()
    process = one.ask("process")
    assert process == one.process.pid
    assert state(process) == "T"
    with one.running():
        assert state(process) != "T"
        one.ask("spin", seconds=0)
        assert state(process) != "T", "asking within running() must not stop it"
    assert state(process) == "T"


def test_processor_time_is_counted(start):
    one = start()
    before, group = machine.process_seconds(one.process.pid), one.processor_seconds()
    one.ask("spin", seconds=0.1)
    assert machine.process_seconds(one.process.pid) - before >= 0.09
    assert one.processor_seconds() - group >= 0.09
    # Standing still it uses none, however long the test takes.
    still = one.processor_seconds()
    machine.load()
    assert one.processor_seconds() == still


def test_its_environment(start):
    assert start(FAKE_FACTOR="10").ask("generate", prompts=[[0]], new_tokens=2)[1] == 25


def test_closing_ends_it(start):
    one = start()
    process = one.process.pid
    one.close()
    assert not Path(f"/proc/{process}").exists() or state(process) == "Z"


def test_a_worker_ends_with_its_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, pathlib, os\n"
        "from fake_engine import FakeEngine\n"
        "from bench.peers import worker\n"
        "one = worker.Worker(FakeEngine, pathlib.Path('f'), 'some')\n"
        "print(one.process.pid, flush=True)\n"
        "os._exit(1)  # without a word to the worker, which is stopped\n"
    )
    import subprocess
    import sys

    path = os.pathsep.join([HERE, str(worker.ROOT)])
    command = [sys.executable, str(script)]
    out = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    ).stdout
    process = int(out)
    # A killed process is reaped by init; until then it is a zombie.
    for _ in range(10_000):
        if not Path(f"/proc/{process}").exists() or state(process) in "ZX":
            return
        os.sched_yield()
    pytest.fail(f"{process} still runs: {state(process)}")


STARTS = """
import contextlib, subprocess, grpc
from measure import machine
channel = grpc.insecure_channel("127.0.0.1:1")
with contextlib.suppress(grpc.FutureTimeoutError):
    grpc.channel_ready_future(channel).result(timeout=0.1)
for _ in range(100):
    subprocess.run(machine.ending_with_parent(["true"]), check=True)
"""


def test_starts_beside_threads_of_grpc():
    """A forked child would abort before it runs the program, in 1 to 5 of 100 starts."""
    done = subprocess.run([sys.executable, "-c", STARTS], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr


def test_serves_until_its_input_ends():
    out = io.StringIO()
    asked = [{"call": "configure", "with": {"step": 1}}, {"call": "nothing", "with": {}}]
    worker.serve(lambda: FakeEngine("f", "p"), [json.dumps(a) for a in asked], out)
    made, configured, unknown = [json.loads(line) for line in out.getvalue().splitlines()]
    assert made == {"result": "made"} and configured == {"result": None}
    assert unknown["kind"] == "AttributeError"
