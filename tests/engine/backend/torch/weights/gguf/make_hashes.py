"""Makes tests/data/gguf/real_models.json: for each downloaded model of scripts/models, hashes of all
tensor values from gguf-py, by block type. Needs the package gguf (scripts/versions.env).

    python3 tests/engine/backend/torch/weights/gguf/make_hashes.py
"""

import json
import os
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

ROOT = Path(__file__).resolve().parents[6]
MODELS = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem")) / "models"
OUT = ROOT / "tests/data/gguf/real_models.json"
ROWS = 1024  # at once


def mixed(bits: np.ndarray, first: int) -> int:
    """The sum over i of mix(bits[i] + (first + i + 1) * golden), modulo 2^64."""
    index = np.arange(first + 1, first + 1 + bits.size, dtype=np.uint64)
    x = bits.astype(np.uint64) + index * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return int((x ^ (x >> np.uint64(32))).sum(dtype=np.uint64))


def tensor_hash(tensor) -> int:
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    total = done = 0
    for at in range(0, len(rows), ROWS):
        values = dequantize(rows[at : at + ROWS], tensor.tensor_type).astype(np.float32)
        bits = np.ascontiguousarray(values).view(np.uint32).ravel()
        total = (total + mixed(bits, done)) % 2**64
        done += bits.size
    return total


def hashes(path: Path) -> dict[str, str]:
    totals: dict[str, int] = {}
    for tensor in sorted(GGUFReader(path).tensors, key=lambda t: t.name):
        kind = tensor.tensor_type.name
        totals[kind] = (31 * totals.get(kind, 0) + tensor_hash(tensor)) % 2**64
    return {kind: f"{total:016x}" for kind, total in sorted(totals.items())}


def main() -> None:
    made = {path.name: hashes(path) for path in sorted(MODELS.glob("*.gguf"))}
    OUT.write_text(json.dumps(made, indent=1) + "\n")
    print(OUT.read_text())


if __name__ == "__main__":
    main()
