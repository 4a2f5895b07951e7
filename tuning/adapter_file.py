"""Writes adapter folders for `extras` of a server (engine/backend/torch/weights/adapter_file.h)."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tuning import frozen_model

SAMPLES = 64


def fingerprint_of(tensors: dict[str, torch.Tensor]) -> str:
    """Fingerprint of a model's weights: 16 hexadecimal digits.

    FNV-1a over each tensor, sorted by name: the name, then 64 evenly spaced values, rounded to bf16.
    """
    value = 0xCBF29CE484222325
    for name in sorted(tensors):
        flat = tensors[name].reshape(-1)
        at = [i * (flat.numel() - 1) // (SAMPLES - 1) for i in range(SAMPLES)]
        bits = flat[at].to(torch.bfloat16).view(torch.int16)
        text = name.encode() + bits.numpy().astype("<i2").tobytes()
        for byte in text:
            value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
    return f"{value:016x}"


def write(
    folder: Path,
    kind: str,
    base: PreTrainedModel,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
    **fields,
) -> None:
    """`base`: the model in fp32, bf16 or the type of its file, which give equal fingerprints. `dtype`: of the stored
    tensors. `fields`: those of adapter.json for this kind."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = fingerprint_of(frozen_model.tensors_of(base))
    about = {
        "format": "tandem-adapter-1",
        "kind": kind,
        **fields,
        "base": {**frozen_model.shape_of(base), "fingerprint": sample},
    }
    (folder / "adapter.json").write_text(json.dumps(about, indent=2) + "\n")
    whole = {name: tensor.detach().to(dtype).contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "adapter.safetensors")
    (folder / "adapter.safetensors").chmod(0o644)
