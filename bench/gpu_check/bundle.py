"""Makes the folder that checks a GPU node: programs, the Debian libraries they load, test data, scripts.

LibTorch and CUDA are not in it: they come out of the node's Python wheels, of the same versions.
"""

import argparse
import json
import lzma
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ["test_torch", "bench_device", "bench_step", "tandem-server", "tandem"]
OF_CUDA = ["test_cuda_link"]  # where the build has them
DATA = ["tests/data", "models/code-large", "models/code-large-bita", "models/code-small"]
KERNELS = "bench/kernels/gpu_kernels.cu"  # compiled on the node, with all that it includes
INCLUDE = re.compile(r'^\s*#\s*include "((?:bench|engine)/[^"]+)"', re.MULTILINE)
LIMIT = 45  # MB
WINDOW = 128 << 20  # of the compressor, so that code which several programs have is stored once
PAYLOAD = "payload.tar.xz"  # what ./run unpacks beside it
# Libraries of the node. The loader refuses C and C++ libraries older than Debian 12's.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|atomic|cuda))\.so.*")
RUN = """#!/bin/sh
# ./run --help; README: docs/gpu_check.md of the sources
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
PYTHONPATH=$here exec "${PYTHON:-python3}" -m gpu_check "$@"
"""


def libraries(programs: list[Path]) -> dict[str, Path]:
    """Debian's libraries that these load, by name."""
    text = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, check=True
    ).stdout
    missing = sorted(set(re.findall(r"^\s*(\S+) => not found", text, re.M)) - {"libcuda.so.1"})
    if missing:
        raise SystemExit(f"not found: {', '.join(missing)}")
    found = {}
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", text, re.M):
        if re.match(r"/(usr/)?lib/", path) and not SYSTEM.fullmatch(name):
            found[name] = Path(path)
    return found


def strip(program: Path) -> None:
    tool = shutil.which("llvm-strip-19") or shutil.which("strip")
    if tool is None:
        raise SystemExit("neither llvm-strip-19 nor strip here: run scripts/setup")
    subprocess.run([tool, "--strip-all", str(program)], check=True)


def size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def sources_of(path: str) -> set[str]:
    """A source, and the headers of this repository that it includes, without those of tests."""
    found, new = set(), {path}
    while new:
        one = new.pop()
        found.add(one)
        new |= set(INCLUDE.findall((ROOT / one).read_text())) - found
    return found


def fill(binaries: Path, out: Path) -> list[str]:
    """Programs, libraries, data and sources; the programs' names."""
    (out / "bin").mkdir()
    (out / "lib").mkdir()
    names = PROGRAMS + [n for n in OF_CUDA if (binaries / n).exists()]
    for name in names:
        if not (binaries / name).exists():
            raise SystemExit(f"no {name} in {binaries}: build it first")
    for name, path in libraries([binaries / n for n in names]).items():
        shutil.copyfile(path, out / "lib" / name)
    for name in names:
        shutil.copy(binaries / name, out / "bin" / name)
        strip(out / "bin" / name)
    for name in DATA:
        shutil.copytree(ROOT / name, out / name, ignore=shutil.ignore_patterns("*.tar.xz"))
    for name in sorted(sources_of(KERNELS)):
        to = out / "sources" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, to)
    return names


def compression(quickly: bool) -> list[dict]:
    x86 = {"id": lzma.FILTER_X86}  # addresses of calls, relative to the program
    return [x86, {"id": lzma.FILTER_LZMA2, "preset": 0 if quickly else 6, "dict_size": WINDOW}]


def make(binaries: Path, out: Path, quickly: bool = False) -> dict[str, int]:
    """Fills `out`, which must be empty or not there; what it consists of, in bytes."""
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder)
        names = fill(binaries, inside)
        parts = {p.name: size(p) for p in sorted(inside.iterdir())}
        with (
            lzma.open(out / PAYLOAD, "wb", filters=compression(quickly)) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for part in sorted(inside.iterdir()):
                tar.add(part, arcname=part.name)
    own = Path(__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "bundle.py")
    shutil.copytree(own, out / "gpu_check", ignore=ignored)
    run = out / "run"
    run.write_text(RUN)
    run.chmod(run.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    manifest = {"commit": commit, "bytes": parts, "programs": names}
    (out / "MANIFEST.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return parts


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, metavar="FOLDER", required=True)
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/cuda/bin")
    args = parser.parse_args(arguments)
    parts = make(args.binaries, args.bundle)
    for name, n in parts.items():
        print(f"{n / 1e6:7.1f} MB  {name}")
    whole = size(args.bundle)
    print(f"{whole / 1e6:7.1f} MB  {args.bundle}, packed")
    if whole > LIMIT * 1e6:
        print(f"larger than {LIMIT} MB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
