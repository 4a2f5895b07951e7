"""A few calls of each kind fail, in each phase (scripts/faults lets every call fail)."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("grpc_tools")

from tests.attack.harness import Api  # noqa: E402
from tests.faults import faults  # noqa: E402

POINTS = 3
THREADS = 6  # of the start


@pytest.fixture(scope="module")
def bench(binaries, tool, tmp_path_factory):
    for name in ("cc", "openssl"):
        tool(name)
    folder = tmp_path_factory.mktemp("faults")
    made = faults.Bench(Path(binaries), folder, Api(tmp_path_factory.mktemp("api")))
    faults.learn(made)
    yield made
    shutil.rmtree(folder)


@pytest.mark.parametrize("which", faults.CLASSES)
@pytest.mark.parametrize("phase", faults.PHASES)
def test_a_call_fails(bench, phase, which):
    points = []
    most = THREADS if (phase, which) == ("start", "thread") else POINTS
    calls = faults.run(bench, phase, which, most, points.append)
    assert not [str(point) for point in points if point.bad]
    assert bool(points) == (calls > 0)
    if (phase, which) == ("start", "thread"):
        assert sum(point.outcome == "refused" for point in points) > THREADS // 2
        assert all(
            "cannot start the thread for" in p.detail for p in points if p.outcome == "refused"
        )


def test_a_fresh_server_waits_for_its_reload(bench):
    """It did not where the last failure was a write, so the old and the new token were accepted."""
    bench.control.memory[40:54] = (1).to_bytes(8, "little") + b"write\n"
    assert bench.control.failed and bench.control.function == "write"
    faults.fresh(bench, "reload").kill()
    assert not bench.control.failed


def test_points_are_spread():
    assert faults.spread(3, 8) == [1, 2, 3]
    assert faults.spread(100, 4) == [1, 34, 67, 100]
    assert faults.spread(0, 4) == []
