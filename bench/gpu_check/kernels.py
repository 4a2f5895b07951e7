"""Compiles the program of kernels (bench/kernels) with this machine's nvcc, and runs it.

    python3 -m gpu_check.kernels SOURCES [OPTION ...]

SOURCES is the root of its sources. The options are those of the program.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = "bench/kernels/gpu_kernels.cu"


def compile_command(sources: Path, out: Path) -> list[str]:
    return [
        "nvcc",
        "-std=c++20",
        "-O3",
        "-arch=native",
        f"-I{sources}",
        "-o",
        str(out),
        str(sources / PROGRAM),
    ]


def main(arguments: list[str]) -> int:
    sources, *options = arguments
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "gpu_kernels"
        compiled = subprocess.run(compile_command(Path(sources), program))
        if compiled.returncode != 0:
            print(f"nvcc: status {compiled.returncode}", flush=True)
            return 1
        return subprocess.run([str(program), *options]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
