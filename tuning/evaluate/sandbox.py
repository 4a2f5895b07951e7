"""Runs untrusted programs in a child process with limits, and without network if possible.

Limits: wall and processor time, address space, open files, bytes of a file that is written (none). With
`unshare` the program has separate network and process namespaces, so its children end with it. Started by root, it
runs as user `nobody`, cannot fork and owns no files. Started by another user it can delete that user's files, so run
such evaluations as root, in a container, or as a dedicated user.
"""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534


@dataclass(frozen=True)
class Limits:
    seconds: float = 10.0
    bytes: int = 1 << 30  # of address space
    files: int = 16  # open at once


@dataclass(frozen=True)
class Outcome:
    passed: bool
    said: str  # how it ended: "passed", "timed out", or the last line of its errors


# Runs in the child, before the program: takes away what it may not have, and says at the end that the
# program has come there. A program that ends the process before has not passed.
START = """
import os, resource, sys
seconds, size, files, nobody = (int(a) for a in sys.argv[1:5])
secret, path = sys.stdin.readline().strip(), sys.argv[5]
with open(path, encoding="utf-8") as file:
    source = file.read()
code = compile(source, "program", "exec")
for what, most in (("CPU", seconds), ("AS", size), ("NOFILE", files), ("FSIZE", 0), ("CORE", 0)):
    limit = getattr(resource, "RLIMIT_" + what)
    resource.setrlimit(limit, (most, most))
if os.geteuid() == 0:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    os.setgroups([])
    os.setgid(nobody)
    os.setuid(nobody)

def run(code, secret, write=os.write, out=os.dup(1)):
    exec(code, {"__name__": "__main__"})
    write(out, secret.encode())

sys.argv = ["program"]
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
run(code, secret)
"""


def interpreter() -> str:
    """The system's Python, as the user `nobody` may be unable to read the current one."""
    system = "/usr/bin/python3"
    return system if os.access(system, os.X_OK) else sys.executable


@functools.cache
def own_namespaces() -> tuple[str, ...]:
    """The command that gives a program its own network and processes; empty where that is not allowed."""
    if shutil.which("unshare") is None:
        return ()
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        command[1:1] = ["--user", "--map-current-user"]
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return tuple(command) if tried.returncode == 0 else ()


def run(program: str, limits: Limits = Limits()) -> Outcome:
    """Whether the program ended without an exception, within the limits."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="tandem-program-") as folder:
        path = Path(folder) / "program.py"
        path.write_text(program, encoding="utf-8")
        Path(folder).chmod(0o755)
        numbers = [int(limits.seconds) + 1, limits.bytes, limits.files, NOBODY]
        child = subprocess.Popen(
            [*own_namespaces(), interpreter(), "-I", "-c", START, *map(str, numbers), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        try:
            out, errors = child.communicate((secret + "\n").encode(), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return Outcome(False, "timed out")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode == 0 and out.decode(errors="replace") == secret:
        return Outcome(True, "passed")
    lines = errors.decode(errors="replace").strip().splitlines()
    return Outcome(False, lines[-1] if lines else f"ended with status {child.returncode}")
