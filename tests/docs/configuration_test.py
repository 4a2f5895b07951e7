"""The example of docs/configuration.md is a valid deployment file."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(os.environ.get("TANDEM_BIN", ROOT / "build/test/bin")) / "tandem-server"


def test_the_example_passes_check(tmp_path):
    page = (ROOT / "docs/configuration.md").read_text("utf-8")
    (example,) = re.findall(r"^```textproto\n(.*?)^```$", page, re.S | re.M)
    file = tmp_path / "example.textproto"
    file.write_text(example.replace('"../models', f'"{ROOT}/models'), "utf-8")
    command = [SERVER, "--config", file, "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
