"""tuning/draft_rounding: rounding of a small model's matrices."""

import pytest
import torch

from tuning.draft_rounding import BLOCK, rounded


@pytest.mark.parametrize("bits", [3, 4])
def test_blocks_have_few_values(bits):
    weight = torch.randn(4, 3 * BLOCK, generator=torch.Generator().manual_seed(1))
    for block in rounded(weight, bits).reshape(-1, BLOCK):
        assert len(block.unique()) <= 2**bits


def test_values_of_a_grid_are_kept():
    weight = torch.arange(2 * BLOCK).remainder(8).reshape(2, BLOCK) * 0.25 - 0.5
    assert torch.equal(rounded(weight, 3), weight)
    constant = torch.full((1, BLOCK), 0.5)
    assert torch.equal(rounded(constant, 3), constant)


def test_the_error_is_less_than_that_of_the_range_alone():
    weight = torch.randn(64, 2 * BLOCK, generator=torch.Generator().manual_seed(2))
    x = weight.reshape(-1, BLOCK)
    least, step = x.amin(1, True), (x.amax(1, True) - x.amin(1, True)) / 7
    plain = ((x - least) / step).round() * step + least
    error, plain_error = (
        (y.reshape(x.shape) - x).square().sum() for y in (rounded(weight, 3), plain)
    )
    assert error < 0.97 * plain_error
    assert (rounded(weight, 5) - weight).square().sum() < error / 10
