"""Totals of fuzzing runs, with a program that prints what libFuzzer prints."""

import json

import pytest

from tests.fuzz import campaign

TARGET = """#!/bin/sh
for word in "$@"; do
  case $word in
    -artifact_prefix=*) prefix=${word#-artifact_prefix=} ;;
    -runs=*) exit 9 ;;
  esac
  corpus=$word
done
echo "INFO: Loaded 1 PC tables (230 PCs): 230 [0x1,0x2),"
echo "#7 NEW    cov: 12 ft: 12 corp: 1/1b" && echo input > "$corpus/one"
if [ -e fails ]; then echo bad > "$prefix"crash-1; exit 1; fi
while [ "$(awk '{printf "%d", $14 + $15}' /proc/$$/stat)" -lt 5 ]; do :; done
echo "stat::number_of_executed_units: 40"
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "HOME", tmp_path)
    target = tmp_path / "fuzz_it"
    target.write_text(TARGET)
    target.chmod(0o755)
    folder = tmp_path / "build"
    (folder / "tests").mkdir(parents=True)
    listed = f'add_test([=[fuzz.it]=] "{target}" "-runs=2000" "-max_len=64")\n'
    (folder / "tests" / "CTestTestfile.cmake").write_text(listed)
    return folder


def test_runs_add_up(build, tmp_path, capsys):
    for _ in range(2):
        assert campaign.main(["--build", str(build), "--seconds", "0.01"]) == 0
    total = json.loads((tmp_path / "fuzz" / "kept.json").read_text())["it"]
    assert total["seconds"] > 0.05
    del total["seconds"]
    assert total == {"inputs": 80, "covered": 12, "edges": 230, "corpus": 1, "findings": 0}
    assert "| `it` | 0 | 80 | 12 | 230 | 1 | 0 |" in capsys.readouterr().out


def test_a_finding_is_counted_and_ends_the_target(build, tmp_path):
    (build / "fails").touch()
    assert campaign.main(["--build", str(build), "--seconds", "1000"]) == 1
    assert (tmp_path / "fuzz" / "it" / "findings" / "crash-1").exists()
    assert json.loads((tmp_path / "fuzz" / "kept.json").read_text())["it"]["findings"] == 1


def test_an_unknown_target_is_refused(build):
    with pytest.raises(SystemExit, match="--target other: not one of it"):
        campaign.main(["--build", str(build), "--target", "other"])
