"""The machine that a benchmark ran on, and what else it was doing."""

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

LIBC = ctypes.CDLL(None)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def instructions() -> str:
    """The widest of the vector instruction sets that matter here."""
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX"}
    return ", ".join(name for flag, name in names.items() if flag in flags)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def load() -> float:
    """Share of all processor time that was used in the last second, by anybody."""

    def read():
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]

    total, idle = read()
    time.sleep(1)
    total_now, idle_now = read()
    return 1 - (idle_now - idle) / max(1, total_now - total)


def load_before(write: bool) -> float:
    """load(), as a run begins. A busy machine is told of, and ends a run that would be written down:
    other engines suffer far more from it than ours, as their threads wait for each other."""
    busy = load()
    if busy > 0.1:
        print(f"{busy:.0%} of the machine is busy with something else", file=sys.stderr)
        if write:
            print("so this run would not be worth writing down", file=sys.stderr)
            raise SystemExit(2)
    return busy


def busy_seconds() -> float:
    """Processor time that anybody used since the machine started, this one's hosts included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupts, soft, stolen = (int(x) for x in fields[:8])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def group_and_ticks(process: Path) -> tuple[int, int]:
    """Of a folder in /proc: the process group, and processor time in the system's ticks."""
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[2]), int(fields[11]) + int(fields[12])


def process_seconds(process: int) -> float:
    """Processor time that a process has used."""
    return group_and_ticks(Path(f"/proc/{process}"))[1] / os.sysconf("SC_CLK_TCK")


def group_seconds(group: int) -> float:
    """Processor time that the live processes of a process group have used."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        # Others may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            of, used = group_and_ticks(process)
            ticks += used if of == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def end_with_parent() -> None:
    """For subprocess.Popen's preexec_fn: the child is killed when the thread that made it ends.

    However it ends; so make it in the main thread.
    """
    pr_set_pdeathsig = 1
    LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL)


def bandwidth() -> float:
    """Bytes per second of reading memory with all of torch's threads."""
    import torch

    values = torch.ones(128 << 20, dtype=torch.float32)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        best = min(best, time.perf_counter() - start)
    return values.numel() * values.element_size() / best


def commit(root: Path) -> str:
    """The commit that is checked out, with a note if files differ from it."""
    git = ["git", "-C", str(root)]
    try:
        name = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + (" with changes" if changed.strip() else "")
