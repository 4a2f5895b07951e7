"""A process of tandem-server that belongs to this one."""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

_MAX_SOCKET_PATH = 100  # bytes; the kernel's limit is 107
_LINES = 40  # of the server's output that an error shows
_STOP_SECONDS = 10


def find_program(program: str | os.PathLike | None) -> str:
    """`program`, or tandem-server in PATH, or that of this Python environment."""
    found = shutil.which(program or "tandem-server")
    if found is None and program is None:
        found = shutil.which(str(Path(sys.executable).with_name("tandem-server")))
    if found is None:
        raise FileNotFoundError(
            f"{program or 'tandem-server'}: no such program; install the package tandem-server, or build it (scripts/build release "
            "tandem-server tandem-pull) and add its folder to PATH, or pass program=PATH"
        )
    return found


def _stop(process: subprocess.Popen, folder: str) -> None:
    """The server stops when its standard input ends."""
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


class LocalServer:
    """Returns once the models are loaded; `address` is then that of its gRPC API. If this process ends, however it does, the
    kernel closes the server's standard input, and the server stops. `verbose`: print its warnings and the progress of downloads."""

    def __init__(
        self,
        flags: Sequence[str],
        *,
        program: str | os.PathLike | None = None,
        timeout: float | None = None,
        verbose: bool = True,
    ):
        found = find_program(program)
        folder = tempfile.mkdtemp(prefix="tandem-")  # only this user may enter it
        socket = f"{folder}/grpc"
        listen = f"unix:{socket}" if len(os.fsencode(socket)) <= _MAX_SOCKET_PATH else "127.0.0.1:0"
        ready = Path(folder) / "ready"
        command = [
            found,
            f"--listen={listen}",
            "--http=off",
            "--log-level=warn",
            "--grace-seconds=0",
            "--stop-with-stdin",
            f"--port-file={ready}",
            *flags,
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES)
        self._verbose = verbose
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._stop = weakref.finalize(self, _stop, self._process, folder)
        try:
            self._wait(ready, timeout)
        except BaseException:
            self.close()
            raise
        self.address = dict(line.split("=", 1) for line in ready.read_text().splitlines())["grpc"]

    def _read(self) -> None:
        for line in self._process.stderr:
            self._lines.append(line)
            if self._verbose:
                sys.stderr.write(line)

    def _wait(self, ready: Path, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not ready.exists():
            try:
                status = self._process.wait(0.02)
            except subprocess.TimeoutExpired:
                if end is not None and time.monotonic() > end:
                    raise TimeoutError(f"tandem-server is not ready after {timeout} s") from None
                continue
            self._reader.join(_STOP_SECONDS)
            raise RuntimeError(
                f"tandem-server ended with status {status}:\n{''.join(self._lines)}".rstrip()
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._stop()
