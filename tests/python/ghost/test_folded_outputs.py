"""Layers without a rule that flatten [units, n, ...] to [units · n, ...] themselves, as the routers of mixtures do."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from torch import nn
from torch.nn import functional as F

import ghostshard
from ghostshard.ghost.rules import layer as rules


class Router(nn.Module):
    """[units, n, 6] -> weights and numbers of the chosen, [units · n, 2]."""

    def __init__(self, coins=0.0):
        super().__init__()
        self.weight, self.coins = nn.Parameter(torch.randn(4, 6)), coins

    def forward(self, x):
        scores = F.linear(F.dropout(x, self.coins, self.training).flatten(0, 1), self.weight).softmax(-1)
        return scores.topk(2, dim=-1)


class Experts(nn.Module):
    """[rows, 6], each by the experts that were chosen for it."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 6, 6) * 0.5)

    def forward(self, x, weights, chosen):
        found = torch.zeros_like(x)
        for i in chosen.unique():
            row, place = torch.where(chosen == i)
            found = found.index_add(0, row, (x[row] @ self.weights[i]).tanh() * weights[row, place, None])
        return found


class Mixture(nn.Module):
    def __init__(self, router):
        super().__init__()
        self.below, self.router, self.experts, self.out = nn.Linear(6, 6), router, Experts(), nn.Linear(6, 3)

    def forward(self, x):
        x = self.below(x)
        weights, chosen = self.router(x)
        return self.out((x + self.experts(x.flatten(0, 1), weights, chosen).view(x.shape)).mean(1))


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def batch(units, places):
    return torch.randn(units, places, 6), torch.randint(0, 3, (units,))


def assert_right(model, batches):
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, batches, 0.5)
    assert all(float(value.abs().max()) > 0 for value in expected.values())
    assert oracle.worst_difference(Private(model, 0.5).step(loss, batches), expected) < SUM_TOLERANCE


@pytest.mark.parametrize("extents", [[(5, 3)], [(4, 4)], [(2, 2), (3, 1), (2, 5)], [(3, 1), (1, 3), (6, 2)], [(1, 4), (4, 8)]], ids=str)
def test_a_router_that_flattens_is_exact(extents):
    torch.manual_seed(3)
    assert_right(Mixture(Router()), [batch(*each) for each in extents])


def test_a_router_that_tosses_coins_has_its_units_own():
    torch.manual_seed(3)
    model = Mixture(Router(coins=0.5))
    released = Private(copy.deepcopy(model), 0.5).step(loss, [batch(4, 3)])
    assert all(float(value.abs().max()) > 0 for value in released.values())


class Turned(nn.Module):
    """Time first: [units, n, 6] -> [n · units, 3]."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return F.linear(x.transpose(0, 1).flatten(0, 1), self.weight)


class OfTurned(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.below, self.layer = nn.Linear(6, 6), Turned(weight)

    def forward(self, x):
        return self.layer(self.below(x)).view(x.shape[1], x.shape[0], 3).mean(0)


@pytest.mark.parametrize("places", [2, 4])
@pytest.mark.parametrize("weight", [torch.randn(3, 6, generator=torch.Generator().manual_seed(1)), torch.zeros(3, 6)], ids=["weights", "zeros"])
def test_rows_in_another_order_are_not_taken_for_the_units(places, weight):
    """Also if the first outputs are all alike, in any order."""
    torch.manual_seed(3)
    with pytest.raises((RuntimeError, ValueError)):
        Private(OfTurned(weight), 0.5).step(loss, [batch(4, places)])


class WithATable(nn.Module):
    """Beside its output it gives a table of as many rows as four units have together."""

    def __init__(self):
        super().__init__()
        self.weight, self.table = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(8, 3))

    def forward(self, x):
        return x @ self.weight, self.table


class OfATable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = WithATable(), nn.Linear(6, 3)

    def forward(self, x):
        x, table = self.layer(x)
        return self.out(x).mean(1) + table.mean(0)


def test_a_table_of_as_many_rows_stays_everyones():
    torch.manual_seed(3)
    assert_right(OfATable(), [batch(4, 5)])


class Autoencoder(nn.Module):
    """Its decoder is its encoder's weight."""

    def __init__(self):
        super().__init__()
        self.encoder, self.out = nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(F.linear(self.encoder(x).tanh(), self.encoder.weight.t()).mean(1))


def test_a_module_that_reads_a_childs_weight_is_one_layer_if_told_so():
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match=r"register_rule\(TheModule\)\(ghostshard.per_example\)"):
        Private(Autoencoder(), 0.5).step(loss, [batch(4, 5)])
    ghostshard.register_rule(Autoencoder)(ghostshard.per_example)
    try:
        assert_right(Autoencoder(), [batch(4, 5)])
    finally:
        del rules._RULES[Autoencoder]
