"""Layers over coordinates and distances that a model makes itself and all examples share."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from torch import nn
from torch.nn import functional as F


class Distances(nn.Module):
    """Attention whose bias a small network makes of distances (Swin v2, dynamic position bias)."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(6, 12), nn.Linear(6, 3)
        self.bias = nn.Sequential(nn.Linear(1, 5), nn.LayerNorm(5), nn.SiLU(), nn.Linear(5, 1))

    def forward(self, x):
        places = torch.arange(x.shape[1])
        bias = self.bias(torch.arange(1.0 - x.shape[1], x.shape[1], dtype=x.dtype)[:, None])[:, 0]
        queries, keys = self.first(x).chunk(2, -1)
        scores = queries @ keys.transpose(1, 2) + bias[places[:, None] - places + x.shape[1] - 1]
        return self.out((scores.softmax(-1) @ x).mean(1))


class Grid(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_places, self.of_examples, self.out = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)), nn.Linear(6, 4), nn.Linear(9, 3)

    def forward(self, x):
        grid = torch.cartesian_prod(*[torch.linspace(0, 1, 3, dtype=x.dtype)] * 2)
        return self.out(torch.einsum("bd,nd->bn", self.of_examples(x.mean(1)), self.of_places(grid)))


class Mixed(nn.Module):
    """What it takes for coordinates are a mean over the examples."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.out((self.one(x) + self.two(x.mean(0))).tanh().mean(1))


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def batch(units, places):
    return torch.randn(units, places, 6), torch.randint(0, 3, (units,))


@pytest.mark.parametrize("extents", [[(4, 5)], [(5, 4), (7, 4), (3, 2)], [(4, 5), (9, 5), (1, 5)]], ids=str)
@pytest.mark.parametrize("build", [Distances, Grid])
def test_coordinates_are_everyones(build, extents):
    """Also where there come to be as many of them as units."""
    torch.manual_seed(3)
    model, batches = build(), [batch(*each) for each in extents]
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, batches, 0.5)
    assert all(float(value.abs().max()) > 0 for value in expected.values())
    assert oracle.worst_difference(Private(model, 0.5).step(loss, batches), expected) < SUM_TOLERANCE


def test_as_many_distances_as_units_at_first_are_refused():
    torch.manual_seed(3)
    with pytest.raises((RuntimeError, ValueError)):
        Private(Distances(), 0.5).step(loss, [batch(7, 4)])


def test_what_follows_from_the_batch_is_not_everyones():
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        Private(Mixed(), 0.5).step(loss, [batch(4, 5)])
