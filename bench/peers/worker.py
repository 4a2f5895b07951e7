"""An engine in a separate process, controlled by pipes and stopped while others are measured.

    python -m bench.peers.worker bench.peers.engines:LlamaCpp bf16 models/code-large

The child reads a JSON object per line, {"call": method, "with": {arguments}}, and answers with a line
{"result": ...} or {"error": ..., "kind": ...}. Its first line reports that the engine is ready. Standard
output of libraries goes to standard error.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import machine
from measure.paths import ROOT


class Failed(RuntimeError):
    """The engine raised, or its process ended, with the end of its output."""


class Refused(Failed):
    """The engine raised ValueError: it does not support this precision here."""


class Worker:
    """The parent's end. Between calls the processes of the engine are stopped (SIGSTOP)."""

    def __init__(self, kind: type, folder: Path, precision: str, environment=None):
        self.name = f"{kind.__name__} {precision}"
        self.kind, self.folder, self.precision = kind, folder, precision
        self.environment = environment or {}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close())
        self.process = subprocess.Popen(
            machine.ending_with_parent(
                [
                    *(sys.executable, "-m", "bench.peers.worker"),
                    *(f"{kind.__module__}:{kind.__qualname__}", precision, folder),
                ]
            ),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **self.environment},
            start_new_session=True,  # so a group of its own, with its children
        )
        try:
            self.answer()
            self.stop()
        except BaseException:
            self.close()
            raise

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.name} ended with {self.process.wait()}:\n{self.written()}")
        answer = json.loads(line)
        if "error" in answer:
            if answer["kind"] == "ValueError":
                raise Refused(answer["error"])
            raise Failed(f"{answer['error']}\n{self.written()}")
        return answer["result"]

    def written(self) -> str:
        """The end of the output of the engine's processes."""
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")[-2000:]

    def ask(self, method: str, **arguments):
        with self.running():
            print(json.dumps({"call": method, "with": arguments}), file=self.process.stdin)
            self.process.stdin.flush()
            return self.answer()

    def running(self):
        """A context for several calls in which the engine is not stopped."""
        return _Running(self)

    def stop(self):
        """Returns when the engine is stopped."""
        self.signal(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):  # it has ended; the next call reports it
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.stopped = True

    def go(self):
        self.signal(signal.SIGCONT)
        self.stopped = False

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def processor_seconds(self) -> float:
        """Processor seconds of the engine and its children."""
        return machine.group_seconds(self.process.pid)

    def close(self):
        """Ends the engine's processes, at first by a request."""
        self.go()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


class _Running:
    def __init__(self, worker: Worker):
        self.worker = worker

    def __enter__(self):
        self.outermost = self.worker.stopped
        if self.outermost:
            self.worker.go()

    def __exit__(self, *_):
        if self.outermost:
            self.worker.stop()


def serve(make, lines, out) -> None:
    """The child: makes the engine and answers the calls in `lines`."""

    def say(**answer):
        print(json.dumps(answer), file=out, flush=True)

    def tried(function):
        try:
            return function(), None
        except Exception as error:
            say(error=str(error), kind=type(error).__name__)
            return None, error

    engine, error = tried(make)
    if error:
        return
    say(result="made")
    for line in lines:
        asked = json.loads(line)

        def call(name=asked["call"], arguments=asked["with"]):
            member = getattr(engine, name)
            return member(**arguments) if callable(member) else member

        value, error = tried(call)
        if not error:
            say(result=value)
    engine.close()


def main(arguments=None) -> None:
    kind, precision, folder = arguments or sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, name = kind.split(":")
    make = getattr(importlib.import_module(module), name)
    serve(lambda: make(Path(folder), precision), sys.stdin, out)


if __name__ == "__main__":
    main()
