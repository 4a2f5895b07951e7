"""Projectors as a server loads them: adapter.json and adapter.safetensors (weights/adapter_file.h)."""

from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from tuning import adapter_file, frozen_model


def fingerprint_of(model: PreTrainedModel) -> str:
    """Fingerprint of the model's weights."""
    return adapter_file.fingerprint_of(frozen_model.tensors_of(model))


def source_of(large: PreTrainedModel) -> dict:
    """Description of the large model in a projector's file."""
    return {
        "hidden_size": large.config.hidden_size,
        "layers": large.config.num_hidden_layers,
        "fingerprint": fingerprint_of(large),
    }


def save(
    folder: Path,
    projector: nn.Sequential,
    source: dict,
    small: PreTrainedModel,
    layer: int,
    fusion: str,
    tokens: str = "shared",
) -> None:
    """`projector`: Linear, ReLU, Linear. `small` is the model that will load it."""
    adapter_file.write(
        folder,
        "projector",
        small,
        projector.state_dict(),
        layer=layer,
        fusion=fusion,
        tokens=tokens,
        source=source,
    )
