"""ghostshard.optim on bfloat16 parameters: rounding at random keeps what rounding to the nearest loses."""

import math

import pytest
import torch
from torch import nn

from ghostshard.optim import SOAP, AdamW, AdamW8bit, Muon, Shampoo

STEPS, LR = 40, 1e-5


def moved(kind, elements: int = 4096, **options) -> torch.Tensor:
    """By steps of LR each, from 1, where bfloat16's neighbours are 2^-8 and 2^-7 away."""
    p = nn.Parameter(torch.ones(64, elements // 64, dtype=torch.bfloat16))
    optimizer = kind([p], LR, weight_decay=0.0, **options)
    for _ in range(STEPS):
        p.grad = torch.full_like(p, -1.0)
        optimizer.step()
    return p.detach().double() - 1


@pytest.mark.parametrize("kind", [AdamW, AdamW8bit])
def test_steps_that_the_nearest_loses_are_taken_on_average(kind):
    assert moved(kind).abs().max() == 0, "a step of 1e-5 is less than half of 2^-7"
    found = moved(kind, stochastic_rounding=True)
    # A step's rounding has the variance u·(e − u) with e = 2^-7; five standard deviations of the mean of 4,096 weights. (A first moment in
    # 8 bits is off by at most 0.7 % of a step.)
    spread = math.sqrt(STEPS * LR * (2**-7 - LR) / found.numel())
    assert abs(found.mean().item() - STEPS * LR) < 5 * spread + 0.01 * STEPS * LR
    assert found.unique().numel() > 1


@pytest.mark.parametrize("kind", [Muon, Shampoo, SOAP])
def test_steps_of_matrices_that_the_nearest_loses_are_taken_on_average(kind):
    """Beside the same optimizer on float32, whose gradients do not depend on the weights: their mean distance along its way."""

    def moved(dtype: torch.dtype, **options) -> torch.Tensor:
        p = nn.Parameter(torch.ones(64, 96, dtype=dtype))
        rate = 5 * LR if kind is Muon else LR  # steps of about LR: Muon's have a root mean square of 0.2
        optimizer = kind([p], rate, weight_decay=0.0, **options)
        for _ in range(STEPS):
            p.grad = gradient.to(dtype)
            optimizer.step()
        return p.detach().double() - 1

    gradient = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    way = moved(torch.float32)
    assert moved(torch.bfloat16).abs().max() == 0, "steps of 1e-5 or so are less than half of 2^-8"
    found = moved(torch.bfloat16, stochastic_rounding=True)
    along = lambda values: (values * way).sum() / way.square().sum()
    # Roundings of a step u have the variance u·e at most, e = 2^-7, and go along the way by their share of it. Weighted by the square of
    # the way u is 1.6·LR for normal numbers. Five deviations.
    spread = math.sqrt(2 * STEPS * LR * 2**-7 / way.square().sum().item())
    assert spread < 0.1, "the test tells something"
    assert abs(along(found).item() - 1) < 5 * spread
    # A step moves a weight with a chance of u/e, some 0.1 %, and each step another one: if all had the same bits, 40 would move no more.
    assert (found != 0).double().mean() > 0.02
    assert found.unique().numel() > 1


@pytest.mark.parametrize("kind", [AdamW, Muon, Shampoo, SOAP])
def test_parameters_of_32_bits_are_not_rounded(kind):
    p, q = (nn.Parameter(torch.linspace(-1, 1, 100).view(5, 20)) for _ in range(2))
    for each, rounding in ((p, True), (q, False)):
        each.grad = torch.ones_like(each)
        kind([each], LR, stochastic_rounding=rounding).step()
    assert torch.equal(p, q)
