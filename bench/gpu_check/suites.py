"""Runs a GoogleTest program's suites of devices, each in a process of its own: a crash or a hang in one
hides no other.

Each has a figure for the number of tests that ran. A suite without one has failed. A suite that fails on a GPU is
run again in ways that each switch one thing off; a figure names the first way in which it passes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# Those with tests that run on the device that TANDEM_TEST_DEVICE names.
SUITES = (
    "EncoderDecoder",
    "Forward",
    "ForwardKv",
    "ForwardTypes",
    "Fp8",
    "Fp8Models",
    "GgufEncoders",
    "GgufFamilies",
    "GgufT5",
    "GoldenLoras",
    "Heads",
    "InBlocks",
    "Late",
    "LayerRanges",
    "LlmToSlmGolden",
    "Logits",
    "LoraBatches",
    "MaskRowsRead",
    "Oracle",
    "Platforms",
    "PromptChunks",
    "TorchAdapters",
    "TorchDevice",
    "TorchValues",
    "Tree",
    "TreeOfEarlyLayers",
)

# Suites of many tests, which run in several processes.
SHARDS = {"Oracle": 4, "LoraBatches": 2, "EncoderDecoder": 2}

# What may be wrong if a suite passes so: kernels that begin before the last has ended, replayed graphs, and launches
# that are not waited for.
WAYS = (
    {"TANDEM_CUDA_OVERLAP": "0"},
    {"TANDEM_TEST_GRAPHS": "0"},
    {"CUDA_LAUNCH_BLOCKING": "1", "TANDEM_CUDA_OVERLAP": "0", "TANDEM_TEST_GRAPHS": "0"},
)


NO_TEST = "no test ran"


@dataclass
class Run:
    status: str  # "0", another exit status, "out of time", NO_TEST
    said: str
    ran: int = 0
    skipped: int = 0

    @property
    def passed(self) -> bool:
        return self.status == "0"


def say(name, value, unit="") -> None:
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def listed(program: str) -> list[str]:
    """The suites as filters name them, such as "Types/Forward."."""
    text = subprocess.run(
        [program, "--gtest_list_tests"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return [
        line.split("#")[0].strip()
        for line in text.splitlines()
        if line and line[0] not in " \t" and line.split("#")[0].strip().endswith(".")
    ]


def bare(suite: str) -> str:
    """Without the name of an instance: "Types/Forward." is Forward."""
    return suite.rstrip(".").split("/")[-1]


def results_in(report: Path) -> list[str]:
    """COMPLETED or SKIPPED for each test; empty if the program did not come to its end."""
    if not report.exists():
        return []
    suites = json.loads(report.read_text())["testsuites"]
    return [test.get("result", "") for suite in suites for test in suite["testsuite"]]


def run(program: str, suite: str, limit: float, environment: dict[str, str]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [program, f"--gtest_filter={suite}*", "--gtest_brief=1"]
        try:
            done = subprocess.run(
                [*command, f"--gtest_output=json:{report}"],
                capture_output=True,
                timeout=limit,
                env={**os.environ, **environment},
            )
        except subprocess.TimeoutExpired:
            return Run("out of time", "")
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        results = results_in(report)
    found = Run(str(done.returncode), said, results.count("COMPLETED"), results.count("SKIPPED"))
    if found.passed and found.ran == 0:
        found.status = NO_TEST
    return found


def shards_of(suite: str, every: int) -> list[dict[str, str]]:
    """Of one test in `every`, from the first on."""
    n = SHARDS.get(bare(suite), 1)
    total = str(n * every)
    return [{"GTEST_TOTAL_SHARDS": total, "GTEST_SHARD_INDEX": str(i)} for i in range(n)]


def joined(runs: list[Run]) -> Run:
    """Of a suite's shards. Its status is that of the first shard that failed."""
    ran, skipped = sum(r.ran for r in runs), sum(r.skipped for r in runs)
    wrong = [r for r in runs if not r.passed and r.status != NO_TEST]
    if not wrong and ran == 0:
        return Run(NO_TEST, "", ran, skipped)
    return Run(wrong[0].status if wrong else "0", "".join(r.said for r in wrong), ran, skipped)


def narrowed(program: str, suite: str, limit: float, end: float) -> None:
    """Says the first of WAYS in which a failing suite passes."""
    for way in WAYS:
        if time.monotonic() + limit > end:
            say(f"suite.{suite}.passes_with", "no time left to try")
            return
        if run(program, suite, limit, way).passed:
            say(f"suite.{suite}.passes_with", " ".join(f"{k}={v}" for k, v in way.items()))
            return
    say(f"suite.{suite}.passes_with", "none of the ways")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--limit", type=float, default=60, help="seconds for a suite")
    parser.add_argument("--seconds", type=float, default=380, help="for all suites and narrowing")
    parser.add_argument("--jobs", type=int, default=1, help="suites at the same time")
    parser.add_argument("--every", type=int, default=1, help="runs one test in so many of a suite")
    args = parser.parse_args(arguments)
    end = time.monotonic() + args.seconds
    there = [suite for suite in listed(args.program) if bare(suite) in SUITES]
    missing = sorted(set(SUITES) - {bare(suite) for suite in there})
    if missing:
        print(f"not in {args.program}: {', '.join(missing)}", flush=True)
    passed, ran, wrong = 0, 0, []

    def timed(suite: str, shard: dict[str, str]) -> tuple[Run, float]:
        start = time.monotonic()
        return run(args.program, suite, args.limit, shard), time.monotonic() - start

    with ThreadPoolExecutor(args.jobs) as pool:
        # The longest begin first.
        order = sorted(there, key=lambda suite: -SHARDS.get(bare(suite), 1))
        runs = {
            s: [pool.submit(timed, s, shard) for shard in shards_of(s, args.every)] for s in order
        }
        for suite in there:
            parts = [each.result() for each in runs[suite]]
            found = joined([part for part, _ in parts])
            print(f"{suite} {found.status} {max(s for _, s in parts):.1f} s", flush=True)
            name = suite.rstrip(".")
            unit = f"tests, {found.skipped} skipped" if found.skipped else "tests"
            say(f"suite.{name}.tests", found.ran, unit)
            ran += found.ran
            if found.passed:
                passed += 1
                continue
            wrong.append(suite)
            print(found.said[-4000:], flush=True)
            say(f"suite.{name}", found.status)
    if not os.environ.get("TANDEM_TEST_DEVICE", "cpu").startswith("cpu"):
        for suite in wrong:
            narrowed(args.program, suite.rstrip("."), args.limit, end)
    say("suites.passed", passed)
    say("suites.failed", len(wrong))
    say("suites.tests", ran, "tests")
    print("failed: " + ", ".join(wrong) if wrong else "all passed")
    return 1 if wrong or missing or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
