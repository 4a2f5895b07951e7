"""tuning/certified_head: upper bits of codes and the rows that survive."""

import torch

from tuning.certified_head import SIXTEEN, survivors, upper


def matrix(rows, seed):
    random = torch.Generator().manual_seed(seed)
    steps = 0.01 + torch.rand(rows, 2, generator=random)
    codes = torch.randint(-32, 32, (rows, 2 * SIXTEEN), generator=random)
    return codes * steps.repeat_interleave(SIXTEEN, 1), steps


def test_upper_bits_are_near():
    weight, steps = matrix(8, 1)
    off = (upper(weight, steps, 4) - weight).abs() / steps.repeat_interleave(SIXTEEN, 1)
    assert off.max() <= 1.5 + 1e-4
    assert torch.allclose(upper(weight, steps, 6), weight, atol=1e-4)
    assert (
        len((upper(weight, steps, 4)[0, :SIXTEEN] / steps[0, 0]).round(decimals=3).unique()) <= 16
    )


def test_the_best_row_survives_and_fewer_with_more_bits():
    weight, steps = matrix(500, 2)
    hidden = torch.randn(20, 2 * SIXTEEN, generator=torch.Generator().manual_seed(3))
    some, few = (survivors(weight, steps, hidden, bits, SIXTEEN) for bits in (3, 5))
    assert (few >= 1 / 500).all() and few.mean() < some.mean() < 1
    all_bits = survivors(weight, steps, hidden, 6, SIXTEEN)
    assert torch.allclose(all_bits, torch.full((20,), 1 / 500))
    loose = survivors(weight, steps, hidden, 5, 2 * SIXTEEN)
    assert (loose >= few - 1e-6).all()
