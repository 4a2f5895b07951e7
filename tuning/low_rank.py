"""LoRA (arXiv 2106.09685): a matrix W is trained as W + B A, of which B begins at zero."""

import torch
from torch import nn
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """Adds up @ down, of `rank`, to a matrix [out, in]."""

    def __init__(self, weight: torch.Tensor, rank: int):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]) * weight.shape[1] ** -0.5)
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.up @ self.down


def add(model: nn.Module, rank: int, seed: int) -> list[nn.Parameter]:
    """Gives every linear layer but the head its own, and returns what is trained."""
    torch.manual_seed(seed)
    head = model.get_output_embeddings()
    trained: list[nn.Parameter] = []
    for module in list(model.modules()):
        if not isinstance(module, nn.Linear) or module is head:
            continue
        added = LowRank(module.weight, rank)
        parametrize.register_parametrization(module, "weight", added)
        module.parametrizations.weight.original.requires_grad_(False)
        trained += [added.down, added.up]
    return trained


def merge(model: nn.Module) -> None:
    """Each matrix becomes what it was trained to be."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
