"""The common part of the benchmark scripts: options, the conditions of a run, and its output."""

import argparse
import datetime
import sys
from collections.abc import Iterable
from pathlib import Path

from measure import machine, report
from measure.paths import HOME, ROOT


def parser(doc: str, page: Path, busy: bool = False) -> argparse.ArgumentParser:
    """A parser with --write and, if `busy`, --busy; `doc` is the module's documentation."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--write", action="store_true", help=f"into {page.relative_to(ROOT)}")
    if busy:
        made.add_argument("--busy", action="store_true", help="write even if the machine is busy")
    return made


def gguf_parser(doc: str, page: Path) -> argparse.ArgumentParser:
    made = parser(doc, page)
    made.add_argument("models", nargs="*", help="names of scripts/models; default: all downloaded")
    return made


def gguf_files(names: list[str], programs: Iterable[Path], build: str) -> list[Path]:
    """Files of the models. Exits with status 1 if a file or a program is missing; `build` is the
    command that makes the programs."""
    folder = HOME / "models"
    files = [folder / f"{name}.gguf" for name in names] or sorted(folder.glob("*.gguf"))
    missing = [str(path) for path in [*files, *programs] if not Path(path).exists()]
    if missing or not files:
        what = ", ".join(missing) or folder
        print(f"missing: {what}; get them with: scripts/models fetch NAME, {build}")
        raise SystemExit(1)
    return files


class Run:
    """A run of a benchmark: `program` as the user calls it, its arguments, the load of the machine."""

    def __init__(self, program: str, arguments: list[str] | None, write: bool):
        """Measures the load. Exits with status 2 if `write` is set and the machine is busy."""
        self.command = " ".join([program, *(sys.argv[1:] if arguments is None else arguments)])
        self.busy = [machine.load_before(write)]

    def conditions(self, processor: str = "", more: Iterable[tuple[str, str]] = ()) -> str:
        """A table. Measures the load again; `processor` is added to the row of that name."""
        self.busy.append(machine.load())
        cores = f"{machine.processor()} ({machine.instructions()}), {machine.cores()} cores"
        rows = [
            ("command", f"`{self.command}`"),
            ("commit", machine.commit(ROOT)),
            ("date", datetime.date.today().isoformat()),
            ("processor", f"{cores}, {processor}" if processor else cores),
            ("machine busy before and after", ", ".join(f"{b:.0%}" for b in self.busy)),
            *more,
        ]
        return report.table(["condition", ""], [list(row) for row in rows])

    def about(self, more: str) -> str:
        """The conditions in a sentence each."""
        return (
            f"`{self.command}`. Commit {machine.commit(ROOT)}. {machine.cores()} cores of "
            f"{machine.processor()} ({machine.instructions()}), load before: {self.busy[0]:.0%}. {more}"
        )


def publish(text: str, write: bool, page: Path, name: str) -> None:
    """Prints the text and, if `write` is set, puts it between the page's markers of that name."""
    print(text)
    if write:
        report.put(page, name, text)
