"""The soak itself, for seconds: its load finds nothing wrong, its rests are quiet, its picture is one.

What takes longer is scripts/soak.
"""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.attack.harness import ROOT


def test_a_short_soak(binaries, tmp_path):
    run = subprocess.run(
        [
            *(sys.executable, "-m", "tests.attack.soak"),
            *("--minutes=0.1", "--rest-every=3", "--rate=40"),
            *(f"--svg={tmp_path}/soak.svg", f"--json={tmp_path}/soak.json"),
        ],
        cwd=ROOT,
        env={**os.environ, "TANDEM_BIN": str(binaries)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing leaked, nothing failed" in run.stdout
    result = json.loads((tmp_path / "soak.json").read_text())
    assert result["done"]["known OK"] > 10
    assert len(result["rests"]) >= 3
    paths = ElementTree.parse(tmp_path / "soak.svg").iter("{http://www.w3.org/2000/svg}path")
    assert [path.get("d").count("M") for path in paths] == 4 * [len(result["rests"])]


@pytest.mark.parametrize(
    ("filled", "wrong"), [(0, ["files", "memory"]), (8 << 20, ["files"])], ids=["leaks", "fills"]
)
def test_what_grows_is_seen(filled, wrong):
    from tests.attack.soak import Soak  # needs a server's configuration to be there

    class Nothing:
        wrong = []
        target = None

        def metric(self, name, **labels):
            return 0

    soak = Soak(Nothing(), Nothing())
    for i in range(10):
        soak.rests.append(
            {"files": 10 + i, "threads": 5, "memory": i * (8 << 20), "touched": i * filled}
        )
    assert [w.split(":")[0] for w in soak.verdict()] == wrong
