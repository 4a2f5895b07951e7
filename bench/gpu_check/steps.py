"""Steps with time limits, and the figures that they print. Needs only Python."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

END_AFTER = 5  # seconds from SIGTERM to SIGKILL


@dataclass
class Step:
    """A command whose lines of JSON, {"name": .., "value": .., "unit": ..}, are figures."""

    name: str
    command: list[str]
    limit: float  # seconds
    needs: str = ""  # a program without which the step is left out
    environment: dict[str, str] = field(default_factory=dict)
    end: str = ""  # a pattern that its output must contain, besides status 0


@dataclass
class Result:
    name: str
    status: str  # ok, failed, out of time, left out
    seconds: float = 0
    why: str = ""
    figures: list[dict] = field(default_factory=list)


def figures_of(text: str) -> list[dict]:
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                one = json.loads(line)
                if isinstance(one, dict) and "name" in one and "value" in one:
                    found.append(one)
    return found


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "said nothing"


def end_group(process: subprocess.Popen) -> None:
    """Ends a step with all that it started, first politely."""
    for number, patience in ((signal.SIGTERM, END_AFTER), (signal.SIGKILL, END_AFTER)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_step(step: Step, log: Path, environment: dict[str, str], limit: float) -> Result:
    """Runs it for at most `limit` seconds; its output goes to `log`."""
    if step.needs and not any(
        os.access(Path(folder) / step.needs, os.X_OK)
        for folder in environment.get("PATH", "").split(os.pathsep)
    ):
        return Result(step.name, "left out", why=f"no {step.needs} here")
    start = time.monotonic()
    late = False
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**environment, **step.environment},
                start_new_session=True,
            )
        except OSError as error:
            return Result(step.name, "failed", why=str(error))
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = True
        end_group(process)
    text = log.read_text("utf-8", errors="replace")
    result = Result(step.name, "ok", time.monotonic() - start, figures=figures_of(text))
    if late:
        result.status, result.why = "out of time", f"longer than {limit:.0f} s"
    elif process.returncode < 0:
        result.status = "failed"
        result.why = f"{signal.Signals(-process.returncode).name}: {last_words(text)}"
    elif process.returncode > 0 or (step.end and not re.search(step.end, text)):
        result.status, result.why = "failed", f"status {process.returncode}: {last_words(text)}"
    return result


def run_group(group: list[Step], out: Path, environment, budget: float) -> list[Result]:
    """Runs steps at the same time. Their logs are out/step_N.txt."""
    logs = [out / f"step_{i}.txt" for i in range(len(group))]

    def one(step: Step, log: Path) -> Result:
        log.write_text("")
        if budget < 1:
            return Result(step.name, "left out", why="no time left for it")
        result = run_step(step, log, environment, min(step.limit, budget))
        text = f"{result.status:>11}  {result.seconds:6.1f} s  {result.name}  {result.why}"
        print(text, flush=True)
        return result

    with ThreadPoolExecutor(len(group)) as pool:
        results = list(pool.map(one, group, logs))
    with (out / "log.txt").open("a", encoding="utf-8", errors="replace") as all_logs:
        for result, log in zip(results, logs, strict=True):
            all_logs.write(f"\n===== {result.name}: {result.status} {result.why}\n")
            all_logs.write(log.read_text("utf-8", errors="replace")[-200_000:])
            log.unlink()
    return results


def run_all(steps, out: Path, environment: dict[str, str], budget: float) -> list[Result]:
    """All steps in order, whatever becomes of one. After `budget` seconds the rest is left out.

    A list of steps runs at the same time. `steps` may be a generator whose later steps depend on
    what earlier ones wrote. results.json and log.txt in `out` are up to date after every step.
    """
    started = time.monotonic()
    results: list[Result] = []
    (out / "log.txt").write_text("")
    for step in steps:
        left = budget - (time.monotonic() - started) - 2 * END_AFTER
        group = step if isinstance(step, list) else [step]
        results += run_group(group, out, environment, left)
        write_json(out / "results.json", results)
    return results


def write_json(path: Path, results: list[Result]) -> None:
    path.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
