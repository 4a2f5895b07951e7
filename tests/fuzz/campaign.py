"""Runs each fuzz target for a time of one processor, and reports inputs, coverage and findings.

    scripts/fuzz [--seconds N] [--target NAME] [--write]

The commands are those of ctest (fuzz.NAME of the ASan build) without their limit on the number of inputs. Inputs that reach new
code are kept in TANDEM_HOME/fuzz/NAME, so a run continues where the last one ended. `kept.json` of that folder has the totals.
"""

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.peers.cli import Run, publish
from measure.paths import HOME, ROOT
from measure.report import table

PAGE = ROOT / "docs" / "reports" / "fuzzing.md"
CHUNK_SECONDS = 60  # of one process; short, as the inputs found so far survive its end


@dataclass
class Total:
    """Of all runs of a target. Edges: those of the instrumented code that its program contains."""

    seconds: float = 0  # of a processor
    inputs: int = 0
    covered: int = 0
    edges: int = 0
    corpus: int = 0
    findings: int = 0


def commands(build: Path) -> dict[str, list[str]]:
    """Target name -> its command in ctest."""
    listed = build / "tests" / "CTestTestfile.cmake"
    text = listed.read_text() if listed.exists() else ""
    found = re.findall(r"^add_test\(\[=\[fuzz\.(\w+)\]=\] (.*)\)$", text, re.MULTILINE)
    return {name: shlex.split(command) for name, command in found}


def fuzz(command: list[str], build: Path, folder: Path, seconds: float, total: Total) -> None:
    """Adds a run of `seconds` to `total`, or less if it ends with a finding."""
    dropped = ("-runs=", "-seed=", "-verbosity=", "-artifact_prefix=")
    flags = [word for word in command if not word.startswith(dropped)]
    corpus, found = folder / "corpus", folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    before = len(list(found.iterdir()))
    with (folder / "log").open("w+") as log:
        flags += [
            f"-max_total_time={int(seconds)}",
            f"-seed={random.randrange(1, 2**31)}",
            "-print_final_stats=1",
            "-report_slow_units=1000000",  # slow on a busy machine; -timeout is an error
        ]
        process = subprocess.Popen(
            [*flags, f"-artifact_prefix={found}/", str(corpus)], cwd=build, stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read()
    total.seconds += usage.ru_utime + usage.ru_stime
    if stated := re.search(r"number_of_executed_units: (\d+)", text):
        total.inputs += int(stated[1])
    total.covered = max([total.covered, *(int(n) for n in re.findall(r"cov: (\d+)", text))])
    total.edges = sum(int(n) for n in re.findall(r"\((\d+) PCs\)", text))
    total.corpus = len(list(corpus.iterdir()))
    new = len(list(found.iterdir())) - before
    total.findings += new
    if process.returncode != 0 and new == 0:
        raise SystemExit(f"{command[0]}: status {process.returncode}, no finding\n{text[-2000:]}")


def markdown(totals: dict[str, Total]) -> str:
    header = [
        "target",
        "processor time, min",
        "inputs",
        "edges covered",
        "of",
        "inputs kept",
        "findings",
    ]
    rows = [
        [
            f"`{name}`",
            f"{t.seconds / 60:.0f}",
            f"{t.inputs:,}",
            f"{t.covered:,}",
            f"{t.edges:,}",
            f"{t.corpus:,}",
            str(t.findings),
        ]
        for name, t in sorted(totals.items())
    ]
    hours = sum(t.seconds for t in totals.values()) / 3600
    inputs = sum(t.inputs for t in totals.values())
    findings = sum(t.findings for t in totals.values())
    text = f"{len(totals)} targets, {hours:.1f} hours of one processor, {inputs / 1e6:.0f} million inputs; findings: {findings}."
    return table(header, rows) + "\n" + text + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "asan")
    parser.add_argument(
        "--seconds", type=float, default=300, help="of a processor, for each target"
    )
    parser.add_argument("--target", action="append", help="default: all")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    args = parser.parse_args(arguments)

    home = HOME / "fuzz"
    home.mkdir(parents=True, exist_ok=True)
    kept = home / "kept.json"
    totals = (
        {name: Total(**t) for name, t in json.loads(kept.read_text()).items()}
        if kept.exists()
        else {}
    )
    targets = commands(args.build)
    if unknown := set(args.target or []) - set(targets):
        raise SystemExit(
            f"--target {', '.join(unknown)}: not one of {', '.join(targets) or 'none'}; build the preset asan"
        )
    run = Run("scripts/fuzz", arguments, False)
    for name in args.target or targets:
        total = totals.setdefault(name, Total())
        end, findings = total.seconds + args.seconds, total.findings
        while total.seconds < end and total.findings == findings:
            left = end - total.seconds
            fuzz(targets[name], args.build, home / name, max(1, min(CHUNK_SECONDS, left)), total)
            kept.write_text(json.dumps({n: asdict(t) for n, t in totals.items()}, indent=1))
        print(f"{name}: {asdict(total)}", flush=True)
    publish(markdown(totals) + "\n" + run.conditions(), args.write, PAGE, "fuzzing")
    return 1 if any(t.findings for t in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
