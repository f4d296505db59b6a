"""ghostshard.optim beside public implementations of the same rules, if they are installed (bench/requirements-peers.txt)."""

import optim_twins as twins
import pytest
import torch
from torch import nn

from ghostshard.optim import Shampoo


@pytest.mark.parametrize("shape", [(16, 16), (24, 10)])
def test_shampoo_goes_the_way_of_a_public_one(shape):
    """pytorch-optimizer's (arXiv:1802.09568, algorithm 1): sums where ours has averages, no momentum, no grafting. Without a momentum and
    with averages that forget nothing the directions of all steps are one; their lengths are those of other rules."""
    peer = pytest.importorskip("pytorch_optimizer")
    ours, theirs = (nn.Parameter(torch.zeros(*shape)) for _ in range(2))
    options = {"side": 32, "refresh_every": 1, "factor_beta": 1 - 1e-6}
    own = Shampoo([ours], 1.0, (0.0, 0.999), weight_decay=0.0, **options)
    other = peer.Shampoo([theirs], lr=1.0, matrix_eps=1e-12)
    for step in range(8):
        before = ours.detach().clone(), theirs.detach().clone()
        for p in (ours, theirs):
            p.grad = twins.gradient(p, 0, step)
        own.step()
        other.step()
        a, b = ours.detach() - before[0], theirs.detach() - before[1]
        # Weights of 1e-6 in the averages, and roots of float32 factors, whose smallest eigenvalues are 1e-3 of the largest or more but for
        # the first steps: there they say nothing of directions that no gradient had.
        apart = (a / a.norm() - b / b.norm()).norm().item()
        assert apart < 1e-3, (step, apart)
    assert theirs.abs().max() > 0.1, "nothing was compared"
