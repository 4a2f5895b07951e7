"""docs/reports/claims.md and scripts/claims: commands exist, no verdict is empty, nights resume."""

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

VERDICTS = ("reproduced", "in kind", "refuted here", "not run: ")


def load():
    loader = importlib.machinery.SourceFileLoader("claims", str(ROOT / "scripts/claims"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("claims", loader))
    sys.modules["claims"] = module
    loader.exec_module(module)
    return module


claims = load()
ROWS = claims.rows_of(claims.PAGE.read_text(encoding="utf-8"))
COMMANDS = sorted({row.command for row in ROWS if row.command})


def test_each_row_is_complete():
    names = [row.row for row in ROWS]
    assert len(names) == len(set(names)) > 45
    for row in ROWS:
        assert row.verdict.startswith(VERDICTS), row.row
        assert row.claim and row.ours and row.measured, row.row
        assert bool(row.command) == (row.minutes > 0), row.row
        decided = not row.verdict.startswith("not run")
        assert not decided or (row.command and row.ours != "-" and row.measured != "-"), row.row


def test_all_tables_figures_and_theorems_have_a_row():
    # A row names the others that it is about: "with table 4 and figures 1 and 2".
    papers = {
        "BL": (range(1, 6), range(1, 11)),
        "PP": (range(1, 9), range(1, 5)),
        "BT": (range(1, 10), range(1, 11)),
        "LS": (range(1, 14), range(1, 7)),
    }
    for paper, (tables, figures) in papers.items():
        seen = set()
        for row in ROWS:
            if not row.row.startswith(paper):
                continue
            seen.add(row.row.split("-")[1])
            for kind, first in re.findall(
                r"(table|figure)s? (\d+(?:(?:,| and| to) \d+)*)", row.claim
            ):
                numbers = [int(n) for n in re.findall(r"\d+", first)]
                if " to " in first:
                    numbers += range(numbers[0], numbers[1])
                seen |= {f"{kind[0].upper()}{n}" for n in numbers}
        expected = {f"T{n}" for n in tables} | {f"F{n}" for n in figures}
        assert expected <= seen, f"{paper}: {sorted(expected - seen)}"
    assert "PP-TH41" in {row.row for row in ROWS}


# Prints what `python -m MODULE --help` says, of each module. One process, as imports of LibTorch take seconds.
HELP = """
import contextlib, io, json, runpy, sys, traceback
said = {}
for module in sys.argv[1:]:
    sys.argv = [module, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
        except BaseException:
            status = traceback.format_exc()
    said[module] = [status, out.getvalue()]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, list]:
    commands = [command.split() for command in COMMANDS]
    modules = {module_of(words) for words in commands if not words[0].startswith("build/")}
    done = subprocess.run(
        [sys.executable, "-c", HELP, *sorted(modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def module_of(words: list[str]) -> str:
    if words[0].startswith("scripts/"):  # a wrapper, which builds before it runs a module
        script = (ROOT / words[0]).read_text(encoding="utf-8")
        return re.search(r'-m ([\w.]+) "\$@"', script)[1]
    assert words[:2] == ["python", "-m"]
    return words[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_programs_and_options_exist(command, helps):
    words = command.split()
    if words[0].startswith("build/test/bin/"):
        suite, test = re.fullmatch(r"--gtest_filter=(\w+)\.([\w*]+)", words[1]).groups()
        module = words[0].removeprefix("build/test/bin/test_")
        pattern = rf"TEST\({suite}, {test.replace('*', '[A-Za-z]*')}\)"
        files = list((ROOT / "tests/engine" / module).rglob("*_test.cpp"))
        assert any(re.search(pattern, f.read_text(encoding="utf-8")) for f in files), pattern
        return
    status, text = helps[module_of(words)]
    assert status == 0, status
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"{re.escape(word)}\b", text), word


def row(name, command, minutes=1):
    return claims.Row(name, "claim", command, minutes, "-", "in kind", "-")


def test_a_night_skips_finished_rows_and_reruns_failed_ones(tmp_path):
    (tmp_path / "fails").touch()
    count = "sh -c 'echo run >> %s'"
    rows = [
        row("A", count % "a"),
        row("B", "sh -c 'echo run >> b; test ! -e fails'"),
        row("C", ""),
        row("D", count % "d", minutes=100),
        row("E", count % "a"),  # A's
    ]

    def runs():
        return {
            n: (tmp_path / n).read_text().count("run") for n in "abd" if (tmp_path / n).exists()
        }

    assert claims.Runner(tmp_path / "state", tmp_path).night(rows, 60) == 1
    assert runs() == {"a": 1, "b": 1}  # D does not fit
    (tmp_path / "fails").unlink()
    second = claims.Runner(tmp_path / "state", tmp_path)
    assert second.finished(rows[0]) and not second.finished(rows[1]) and second.finished(rows[4])
    assert second.night(rows, 200) == 0
    assert runs() == {"a": 1, "b": 2, "d": 1}
    changed = [row("A", count % "a2"), *rows[1:]]
    assert claims.Runner(tmp_path / "state", tmp_path).night(changed, 200) == 0
    assert (tmp_path / "a2").exists()  # another command is another run
    assert runs() == {"a": 1, "b": 2, "d": 1}


def test_a_missing_program_fails_its_row_alone(tmp_path):
    runner = claims.Runner(tmp_path, tmp_path)
    assert runner.night([row("A", "no-such-program"), row("B", "true")], 10) == 1
    assert runner.state["A"]["status"] == 127
    assert (tmp_path / "A.txt").read_text()
    assert runner.finished(row("B", "true"))


def test_a_row_without_a_verdict_is_found():
    page = "| " + " | ".join(claims.COLUMNS) + " |\n|---|---|---|---|---|---|---|\n"
    assert claims.rows_of(page + "| X | c | - | - | - | | - |\n")[0].verdict == ""
    with pytest.raises(ValueError, match="X: 6 columns"):
        claims.rows_of(page + "| X | c | - | - | - | - |\n")


def test_unknown_rows_are_refused():
    done = subprocess.run([ROOT / "scripts/claims", "NO-ROW"], capture_output=True, text=True)
    assert done.returncode == 2 and "no such row: NO-ROW" in done.stderr
