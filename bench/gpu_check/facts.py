"""What machine this is: one figure a line."""

import json
import os
import platform
import shutil
import subprocess
import sys


def say(name, value, unit=""):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def of_machine():
    say("machine.cores", len(os.sched_getaffinity(0)))
    with open("/proc/meminfo", encoding="ascii") as file:
        say("machine.memory", round(int(file.readline().split()[1]) / 2**20, 1), "GiB")
    say("machine.libc", " ".join(platform.libc_ver()))
    say("machine.python", platform.python_version())


def of_gpus():
    program = shutil.which("nvidia-smi")
    if program is None:
        say("gpu", "no nvidia-smi")
        return
    fields = "name,driver_version,memory.total,memory.free,compute_cap,clocks.max.sm,power.limit"
    asked = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    rows = subprocess.run(asked, capture_output=True, text=True, timeout=15).stdout.splitlines()
    for i, row in enumerate(rows):
        for field, value in zip(fields.split(","), row.split(", "), strict=False):
            say(f"gpu.{i}.{field}", value)
    print(
        subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=15).stdout
    )


def of_torch():
    import torch

    say("torch", torch.__version__)
    say("torch.cuda", str(torch.version.cuda))
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        say(f"torch.{i}.multiprocessors", p.multi_processor_count)
        say(f"torch.{i}.l2", round(p.L2_cache_size / 2**20, 1), "MiB")
        peers = [
            j
            for j in range(torch.cuda.device_count())
            if j != i and torch.cuda.can_device_access_peer(i, j)
        ]
        say(f"torch.{i}.reads_memory_of", peers)


def main():
    of_machine()
    of_gpus()
    of_torch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
