"""tuning/evaluate/sandbox: programs that misbehave are stopped, and have not passed."""

import os
from pathlib import Path

import pytest

from tuning.evaluate.sandbox import Limits, own_namespaces, run

SHORT = Limits(seconds=1.0)


def test_a_program_passes_that_comes_to_its_end():
    assert run("x = 1\nassert x + 1 == 2\nprint('noise')\n").passed
    wrong = run("assert 1 + 1 == 3, 'no'\n")
    assert not wrong.passed and wrong.said == "AssertionError: no"
    assert run("import collections, heapq, math, re, typing\n").passed
    assert "SyntaxError" in run("def f(:\n").said


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "import os; os._exit(0)"])
def test_leaving_early_is_not_passing(end):
    assert not run(end + "\nassert False\n").passed


def test_an_endless_loop_is_stopped():
    assert run("while True:\n    pass\n", SHORT).said == "timed out"
    assert run("import time\ntime.sleep(1e6)\n", SHORT).said == "timed out"


def test_memory_is_bounded():
    assert "MemoryError" in run("x = bytearray(4 << 30)\n").said
    assert not run("x = []\nwhile True:\n    x.append(bytes(1 << 24))\n").passed


def test_nothing_can_be_written(tmp_path):
    tmp_path.chmod(0o777)
    target = tmp_path / "left"
    assert not run(f"open({str(target)!r}, 'w').write('x' * 100)\n").passed
    assert not target.exists() or target.stat().st_size == 0


def test_the_number_of_open_files_is_bounded():
    many = "files = [open('/dev/null') for _ in range(100)]\n"
    assert "Too many open files" in run(many).said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_root_becomes_nobody_who_cannot_fork():
    assert run("import os\nassert os.getuid() == 65534 and os.getgid() == 65534\n").passed
    assert "BlockingIOError" in run("import os\nos.fork()\n").said
    assert not run("import os\nos.remove('/etc/hostname')\n").passed


@pytest.mark.skipif(not own_namespaces(), reason="no namespaces here")
def test_there_is_no_network():
    said = run("import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)\n", SHORT).said
    assert "Network is unreachable" in said


@pytest.mark.skipif(not own_namespaces(), reason="no namespaces here")
def test_it_sees_no_process_but_itself():
    assert run("import os\nassert os.getpid() == 1\n").passed
    assert not run("import os, signal\nos.kill(os.getppid() or 2, signal.SIGKILL)\n").passed


def test_the_folder_is_gone_afterwards():
    said = run("import os\nraise ValueError(os.getcwd())\n").said
    assert not Path(said.removeprefix("ValueError: ")).exists()
