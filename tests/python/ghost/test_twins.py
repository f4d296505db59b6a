"""What ranks of a tensor-parallel axis tell of their forwards' arguments (checks/twins.py)."""

import pytest
import torch

from ghostshard.ghost.checks.replicas import NONE
from ghostshard.ghost.checks.twins import Twins
from ghostshard.ghost.ranks import Ranks

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(2))


def told(rank, *given):
    """By a rank of two axes of two."""
    return Twins(Ranks(torch.device("cpu"), (1, 2, 2), rank)).here(given)


@pytest.mark.parametrize("one, two", [
    (X, X.roll(1, 0)), (IDS, IDS.flip(0)), (X, X[:4]), (X, X + torch.randn(8, 6)), (X[:0], X[:1]), (IDS, IDS + torch.eye(4, 9).long()),
    ({"ids": IDS, "mask": IDS > 3}, {"ids": IDS, "mask": IDS > 9}),
], ids=["order", "ids", "fewer", "augmented", "empty", "one token each", "mask"])  # fmt: skip
def test_other_batches_of_one_axis_are_refused(one, two):
    found = [told(0, one), told(1, two), told(2, X), told(3, X)]
    with pytest.raises(RuntimeError, match="rank 0 and rank 1 hold parts of the same layers .* were given different batches"):
        Twins(Ranks(torch.device("cpu"))).refuse_apart(found)


@pytest.mark.parametrize("given", [X, X[:0], IDS, X * float("nan"), torch.zeros(3, 4), (X.bfloat16(), {"ids": IDS}), X + 1j * X, ()], ids=str)
def test_one_batch_of_each_axis_is_taken(given):
    Twins(Ranks(torch.device("cpu"))).refuse_apart([told(0, given), told(1, given), told(2, X), told(3, X)])


def test_what_devices_round_differently_is_one_batch():
    Twins(Ranks(torch.device("cpu"))).refuse_apart([told(0, X), told(1, X * (1 + 1e-4 * torch.rand(8, 6)))])


def test_a_model_that_is_not_cut_and_the_users_word_compare_nothing():
    assert Twins(Ranks(torch.device("cpu"), (2, 2, 1), 1)).here((X,)) == NONE
    vouched = Twins(Ranks(torch.device("cpu"), (1, 2, 2), 1))
    vouched.vouched = True
    assert vouched.here((X,)) == NONE
