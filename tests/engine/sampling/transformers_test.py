"""Random rows for each logits processor, each warper and combinations of them, as Transformers has it.

The rows are made here and read by the C++ test, which compares (transformers_test.cpp).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
processor_goldens = pytest.importorskip("processor_goldens", exc_type=ImportError)

ROWS = 1000 if "TANDEM_NIGHT" in os.environ else 250


def test_random_rows_of_each_kind(binaries, tmp_path):
    program = binaries / "test_sampling"
    if not program.exists():
        pytest.skip(f"no {program}")
    golden = tmp_path / "golden.txt"
    again = processor_goldens.write(golden, ROWS, seed=11, max_vocab=64)
    assert again < 0.02 * ROWS * len(processor_goldens.KINDS)
    run = subprocess.run(
        [program, "--gtest_filter=Transformers.*"],
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            "TANDEM_PROCESSOR_GOLDEN": str(golden),
            "TANDEM_PROCESSOR_GOLDEN_ROWS": str(ROWS),
        },
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert "[  PASSED  ] 1 test." in run.stdout
