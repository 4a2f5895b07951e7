"""The machine of a benchmark and its load."""

import contextlib
import os
import platform
import subprocess
import sys
import time
from pathlib import Path


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def instructions() -> str:
    """The relevant vector instruction sets."""
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX"}
    return ", ".join(name for flag, name in names.items() if flag in flags)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def load() -> float:
    """Share of processor time that all processes used within one second."""

    def read():
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]

    total, idle = read()
    time.sleep(1)
    total_now, idle_now = read()
    return 1 - (idle_now - idle) / max(1, total_now - total)


def load_before(write: bool) -> float:
    """load() before a run. Warns if the machine is busy, and exits with status 2 if `write` is set: load slows
    other engines more than Tandem, as their threads wait for each other."""
    busy = load()
    if busy > 0.1:
        print(f"other processes use {busy:.0%} of the machine", file=sys.stderr)
        if write:
            print("--write needs an idle machine", file=sys.stderr)
            raise SystemExit(2)
    return busy


def busy_seconds() -> float:
    """Processor seconds of all processes since boot, including stolen time."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupts, soft, stolen = (int(x) for x in fields[:8])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def group_and_ticks(process: Path) -> tuple[int, int]:
    """Process group and processor ticks of a folder in /proc."""
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[2]), int(fields[11]) + int(fields[12])


def process_seconds(process: int) -> float:
    """Processor seconds of a process."""
    return group_and_ticks(Path(f"/proc/{process}"))[1] / os.sysconf("SC_CLK_TCK")


def group_seconds(group: int) -> float:
    """Processor seconds of the live processes of a process group."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        # Processes can end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            of, used = group_and_ticks(process)
            ticks += used if of == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def ending_with_parent(command: list) -> list:
    """A command for subprocess.Popen whose process is killed when the thread that started it ends, for any reason.
    So start it in the main thread.

    Not a preexec_fn: Popen would fork, and threads that gRPC starts in the forked child abort once their
    descriptors are closed, in 5 of 100 starts on a busy machine.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *map(str, command)]


def bandwidth() -> float:
    """Memory bandwidth in bytes per second, with all threads of torch."""
    import torch

    values = torch.ones(128 << 20, dtype=torch.float32)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        best = min(best, time.perf_counter() - start)
    return values.numel() * values.element_size() / best


def commit(root: Path) -> str:
    """The checked-out commit, with a note if files differ from it."""
    git = ["git", "-C", str(root)]
    try:
        name = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + (" with changes" if changed.strip() else "")
