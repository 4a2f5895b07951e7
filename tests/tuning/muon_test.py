"""tuning/muon.py: updates are orthogonal, of the same size whatever the gradient's."""

import pytest
import torch

from tuning.muon import Muon, orthogonalize


@pytest.mark.parametrize("shape", [(2, 16, 16), (1, 16, 40), (3, 40, 16)])
def test_singular_values_come_near_one(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.3 and values.max() < 1.3
    assert 0.8 < values.mean() < 1.1


def test_step_does_not_depend_on_the_gradients_size():
    torch.manual_seed(0)
    gradient = torch.randn(12, 8)
    results = []
    for size in (1.0, 1e-3):
        weight = torch.nn.Parameter(torch.zeros(12, 8))
        weight.grad = size * gradient
        Muon([weight], lr=0.1).step()
        results.append(weight.detach())
    assert torch.allclose(results[0], results[1], atol=1e-3)
    # lr * sqrt(rows / columns) times a semi-orthogonal matrix
    values = torch.linalg.svdvals(results[0]) / (0.1 * 1.5**0.5)
    assert values.min() > 0.3 and values.max() < 1.3


def test_stacked_matrices_are_independent():
    torch.manual_seed(0)
    gradients = torch.randn(2, 8, 8)
    together = orthogonalize(gradients)
    for i in range(2):
        assert torch.allclose(orthogonalize(gradients[i : i + 1])[0], together[i], atol=1e-5)


def test_weight_decay_shrinks():
    weight = torch.nn.Parameter(torch.eye(4))
    weight.grad = torch.zeros(4, 4)
    Muon([weight], lr=0.5, weight_decay=0.1).step()
    assert torch.allclose(weight, 0.95 * torch.eye(4))
