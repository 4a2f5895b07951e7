"""Projectors as a server loads them: adapter.json and adapter.safetensors (weights/adapter_file.h)."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

SAMPLES = 64


def sample_of(model: PreTrainedModel) -> str:
    """What tells the model's weights from others of the same shape: FNV-1a, 64 bits, in hex.

    Over each tensor, sorted by name: the name, then 64 of its numbers from the first to the last,
    rounded to bf16. A tied output matrix is none of its tensors.
    """
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    value = 0xCBF29CE484222325
    for name in sorted(tensors):
        flat = tensors[name].reshape(-1)
        at = [i * (flat.numel() - 1) // (SAMPLES - 1) for i in range(SAMPLES)]
        bits = flat[at].to(torch.bfloat16).view(torch.int16)
        for byte in name.encode() + bits.numpy().astype("<i2").tobytes():
            value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
    return f"{value:016x}"


def base_of(model: PreTrainedModel) -> dict:
    config = model.config
    heads = config.num_attention_heads
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "sample": sample_of(model),
    }


def save(
    folder: Path,
    projector: nn.Sequential,
    large: PreTrainedModel,
    small: PreTrainedModel,
    layer: int,
    fusion: str,
    tokens: str = "shared",
) -> None:
    """`projector`: Linear, ReLU, Linear. `small` is the model that will load it."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "format": "tandem-adapter-1",
        "kind": "projector",
        "layer": layer,
        "fusion": fusion,
        "tokens": tokens,
        "source": {
            "hidden_size": large.config.hidden_size,
            "layers": large.config.num_hidden_layers,
            "sample": sample_of(large),
        },
        "base": base_of(small),
    }
    (folder / "adapter.json").write_text(json.dumps(about, indent=1) + "\n")
    tensors = {name: t.detach().float().contiguous() for name, t in projector.state_dict().items()}
    save_file(tensors, folder / "adapter.safetensors")
    (folder / "adapter.safetensors").chmod(0o644)
