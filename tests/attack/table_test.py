"""The table of attacks: each row names a test, and every recorded result is in it."""

import json
import re

import pytest

from tests.attack.table import (
    ATTACKS,
    BACKLOG,
    BODIES,
    RESTART,
    ROOT,
    TOGETHER,
    markdown,
    merged,
    verdict,
)

SAW = {
    "gap": 12.3,
    "gap_p99": 6.1,
    "refusal_median": 1.25,
    "refusal": 30.4,
    "probe": 4.0,
    "grown": 7.7,
    "allowed": 96,
    "peak": 17.8,
    "limit": 192.0,
    "status": 0,
    "listing": 2.0,
    "completion": 9.0,
}


def lines():
    kept = [{"test": attack.test, **SAW} for attack in ATTACKS]
    kept.append({"test": BACKLOG, "drained": 200, "seconds": 1.61})
    kept.append({"test": BODIES, "drained": 10, "seconds": 1.26})
    kept.append({"test": RESTART, "answered": {"unary": 3, "stream": 4}, "lost": 0})
    kept.append(
        {
            "test": "mutations_test.py::test_mutations_and_extremes",
            "codes": {"OK": 1000, "INVALID_ARGUMENT": 9000},
        }
    )
    kept.append(
        {
            "test": TOGETHER,
            "seconds": 10,
            "drain": 1.04,
            "resident": 299.6,
            "total": 470.2,
            "enforced": "enforced by a cgroup",
            "kills": 0,
        }
    )
    return [json.dumps(line) for line in kept]


@pytest.mark.parametrize("test", sorted({a.test for a in ATTACKS} | {BACKLOG, BODIES, RESTART}))
def test_rows_are_tests(test):
    file, name = test.split("[")[0].split("::")
    assert re.search(rf"^def {name}\(", (ROOT / "tests/attack" / file).read_text(), re.MULTILINE)


def test_page():
    page = markdown(merged(lines()), {"date": "today"})
    rows = [
        line
        for line in page.splitlines()
        if "| 6, 12 | 1.2, 30 | 4 | 2, 9 | 8 of 96 | 18 of 192 | 0 |" in line
    ]
    assert len(rows) == len(ATTACKS)
    assert "did not run" not in page
    assert "3 unary and 4 stream calls were answered, **0 lost**" in page
    assert "**10,000 requests of mutated bytes" in page
    assert "9,000 INVALID_ARGUMENT, 1,000 OK" in page
    assert "10 unparsed bodies" in page and "1.3 s" in page
    assert "200 calls" in page and "1.6 s" in page
    assert "470 MiB, enforced by a cgroup. Peak: 300 MiB." in page
    assert "| date | today |" in page


def test_missing_parts_are_reported():
    page = markdown(merged(lines()[1:]), {})
    assert page.count("did not run") == 7


def test_what_was_kept_is_in_the_page_or_an_error():
    with pytest.raises(ValueError, match="lacks.*new_test"):
        markdown(merged([json.dumps({"test": "new_test.py::test_x", **SAW})]), {})


def test_verdict_counts_what_was_set_out_for():
    kept = {"a": SAW, "b": {**SAW, "gap": 100.0, "refusal": 9.9}, "c": {"drained": 1}}
    assert (
        "Of 2 rows, the longest stream gap is under 100 ms in 1, and under 500 ms in 2"
        in verdict(kept)
    )
    assert "within a second in 2 of 2 rows" in verdict(kept)
    assert "under 10 ms in 2, the slowest in 1." in verdict(kept)
