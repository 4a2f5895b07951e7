"""The checkout, and the folder of downloads and caches."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem"))
