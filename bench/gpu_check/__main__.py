"""Checks this machine in three parts of at most nine and a half minutes each, or in a dry run.

    ./run --part 1                    correctness
    ./run --part 2                    kernels
    ./run --part 3                    throughput
    ./run --dry --device cpu:0        all three with tiny shapes, to test the scripts; one test in eight of a suite
    ./run --dry --all-tests ...       the same with all tests

Every step has a time limit, and no failure stops the rest. A table is printed at the end. --out (or $OUT, else the
folder "result") gets results.json, table.txt and log.txt. Exit status 0: every step passed.
"""

import argparse
import functools
import hashlib
import importlib.util
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from .steps import Step, run_all
from .table import table

BUDGET = 570  # seconds of a part
PARTS = {1: "is it right", 2: "kernels", 3: "the headline"}


def library_folders() -> list[Path]:
    """Libraries of LibTorch and CUDA in the wheels of this Python."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    torch = Path(spec.origin).parent
    return [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]


def unpacked(bundle: Path) -> Path:
    """The folder of programs and data: next to the payload, or below /tmp if the folder is read-only."""
    beside = bundle if os.access(bundle, os.W_OK) else Path(tempfile.gettempdir())
    payload_hash = hashlib.sha256((bundle / "payload.tar.xz").read_bytes()).hexdigest()
    folder = beside / f"unpacked-{payload_hash[:12]}"
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(dir=beside))
        with tarfile.open(bundle / "payload.tar.xz") as payload:
            # Debian 12's Python does not know filters yet.
            payload.extractall(
                fresh, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
            )
        fresh.rename(folder)
    return folder


def environment_of(bundle: Path, files: Path, device: str) -> dict[str, str]:
    folders = [files / "lib", *library_folders()]
    own = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join([*map(str, folders), *([own] if own else [])]),
        "PYTHONPATH": str(bundle),
        "PYTHONUNBUFFERED": "1",
        "TANDEM_SOURCE": str(files),
        "TANDEM_TEST_DEVICE": device,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def module(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"gpu_check.{name}", *words]


# Tests of test_torch for compute-sanitizer. Instances are in front of the names.
SANITIZED = {
    "memcheck": "Heads.SeveralInOnePass:*/GoldenLoras.LogitsAreThoseOfPeft/llama2",
    "racecheck": "Heads.SeveralInOnePass",
    "initcheck": "Heads.SeveralInOnePass",
}
SOME_PASSED = r"\[  PASSED  \] [1-9]"  # GoogleTest's exit status is 0 if a filter matches nothing

# In a dry run: tiny tensors are no work for several threads, which wait for each other on a busy machine.
ALONE = {"OMP_NUM_THREADS": "1"}


def part_1(files: Path, device: str, dry: bool, all_tests: bool = False):
    bin_ = files / "bin"
    tests = str(bin_ / "test_torch")
    yield Step("facts", module("facts"), 40)
    if (bin_ / "test_cuda_link").exists():
        said = "torch sees CUDA: " + ("" if device.startswith("cpu") else "yes")
        yield Step("link", [str(bin_ / "test_cuda_link")], 40, end=said)
    ceilings = [str(bin_ / "bench_device"), f"--device={device}", "--only=ceilings"]
    ceilings += ["--small", "--seconds=0.001"] if dry else []
    yield Step("ceilings", ceilings, 80, environment=ALONE if dry else {})
    served = [f"--bin={bin_}", f"--models={files / 'models'}", f"--device={device}"]
    served += ["--tokens=8", "--patience=90"] if dry else []
    together = [Step("served blocks", module("blocks", *served), 200 if dry else 60)]
    limits = ["--limit=200", "--seconds=390"] if dry else ["--limit=60", "--seconds=390"]
    # Each process needs a second or more to load LibTorch, and uses little of a GPU.
    limits += ["--every=8"] if dry and not all_tests else []
    limits += [f"--jobs={max(1, min(8, len(os.sched_getaffinity(0)) // 2))}"]
    together.append(Step("suites", module("suites", tests, *limits), 400))
    if not device.startswith("cpu"):
        for tool, names in SANITIZED.items():
            command = ["compute-sanitizer", f"--tool={tool}", "--error-exitcode=9", tests]
            command += [f"--gtest_filter={names}", "--gtest_brief=1"]
            step = Step(f"sanitizer.{tool}", command, 120, needs="compute-sanitizer")
            step.end = SOME_PASSED
            together.append(step)
    yield together


def part_2(files: Path, device: str, dry: bool):
    command = [str(files / "bin" / "bench_device"), f"--device={device}"]
    command += ["--small", "--seconds=0.0001"] if dry else ["--seconds=0.2"]
    alone = ALONE if dry else {}
    if not device.startswith("cpu"):
        kernels = module("kernels", str(files / "sources"), *(["--small"] if dry else []))
        yield Step("kernels", kernels, 100, needs="nvcc")
    yield Step("products", [*command, "--only=products"], 110, environment=alone)
    threads = f"--threads={len(os.sched_getaffinity(0))}"  # the CPU's products beside the device's
    yield Step("blocks", [*command, "--only=blocks", threads], 90, environment=alone)
    few = [*command, "--only=attention", "--only=loras"]
    yield Step("attention", few, 60, environment=alone)
    step = module("headline", f"--program={files / 'bin' / 'bench_step'}", f"--device={device}")
    tiny = ["--shape=tiny", "--seconds=0.01", "--context=64"]
    words = tiny if dry else ["--shape=1b", "--context=256", "--prefill=512", "--prefill=4096"]
    yield Step("launches", [*step, *words, "--ways", "--prompt-ways"], 100)
    words = [*tiny, "--blocks=q4_0"] if dry else ["--shape=7b", "--blocks=q4_k", "--context=256"]
    yield Step("7b of blocks", [*step, *words], 100)


def part_3(files: Path, device: str, dry: bool):
    bin_ = files / "bin"
    step = module("headline", f"--program={bin_ / 'bench_step'}", f"--device={device}")
    of_server = [f"--bin={bin_}", f"--models={files / 'models'}", f"--device={device}"]
    serving = module("serving", *of_server)
    faults = module("faults", *of_server)
    if dry:
        words = ["--shape=tiny", "--seconds=0.01", "--context=64", "--tokens=2", "--peer=eager"]
        yield Step("tiny", [*step, *words, "--prefill=512"], 200)
        yield Step("ragged", [*step, *words, "--ragged"], 200, environment=ALONE)
        yield Step("serving", [*serving, "--tokens=8", "--concurrency=2"], 200)
        patient = ["--tokens=8", "--concurrency=2", "--patience=90"]  # a slow machine is no fault
        yield Step("faults", [*faults, *patient], 200)
        return
    peers = ["--peer=eager", "--peer=compiled"]
    yield Step("7b", [*step, "--shape=7b", *peers, "--prefill=512", "--prefill=4096"], 190)
    ragged = ["--shape=7b", "--ragged", "--context=2048", "--tokens=16", "--peer=eager"]
    yield Step("ragged", [*step, *ragged], 100)
    yield Step("serving", serving, 80)
    yield Step("faults", faults, 70)
    yield Step("1b", [*step, "--shape=1b", "--peer=eager"], 55)
    yield Step("13b", [*step, "--shape=13b"], 65)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=int, choices=PARTS, action="append", default=[])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, a few seconds")
    parser.add_argument("--all-tests", action="store_true", help="of the suites, in a dry run")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for each part")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "result")))
    args = parser.parse_args(arguments)
    bundle = Path(__file__).resolve().parent.parent
    files = unpacked(bundle)
    environment = environment_of(bundle, files, args.device)
    status = 0
    for part in args.part or PARTS:
        print(f"\n== part {part}: {PARTS[part]} ({args.device})", flush=True)
        out = args.out / f"part_{part}"
        out.mkdir(parents=True, exist_ok=True)
        first = functools.partial(part_1, all_tests=args.all_tests)
        steps = {1: first, 2: part_2, 3: part_3}[part](files, args.device, args.dry)
        results = run_all(steps, out, environment, args.budget)
        text = table(results, judge=not args.dry and not args.device.startswith("cpu"))
        (out / "table.txt").write_text(text)
        print("\n" + text, flush=True)
        status |= any(r.status in ("failed", "out of time") for r in results)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
