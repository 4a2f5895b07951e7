"""Makes tests/data/gguf/blocks.safetensors: random blocks of each type and their values from
gguf-py. Needs the package gguf (PIP_GOLDENS in scripts/versions.env).

    python3 tests/engine/backend/torch/weights/gguf/make_goldens.py
"""

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[6]
# Where a block has its fp16 numbers, in bytes; the rest may be anything.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
# Zeros of both signs, subnormal, smallest normal, ordinary and largest numbers, as bits.
SCALES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x1234, 0xA678, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


def blocks_of(name, rng):
    kind = getattr(gguf.GGMLQuantizationType, name)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    count = 11 if values == 256 else 33
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    blocks[count - 2] = 0x00  # extreme codes
    blocks[count - 1] = 0xFF
    for place, at in enumerate(HALVES[name]):
        for i in range(count):
            half = SCALES[(i * (3 if place else 1) + place) % len(SCALES)]
            blocks[i, at : at + 2] = np.frombuffer(np.uint16(half).tobytes(), np.uint8)
    with np.errstate(all="ignore"):
        decoded = dequantize(blocks, kind)
    decoded = decoded.astype(np.float32).reshape(count, values)
    assert np.isfinite(decoded).all()
    return blocks, decoded


def main():
    rng = np.random.default_rng(7)
    tensors = {}
    for name in HALVES:
        blocks, values = blocks_of(name, rng)
        tensors[f"{name}.blocks"] = blocks
        tensors[f"{name}.values"] = values
    path = ROOT / "tests" / "data" / "gguf" / "blocks.safetensors"
    save_file(tensors, path)
    print(path.relative_to(ROOT), path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
