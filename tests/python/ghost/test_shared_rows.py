"""Rows that are not [units, ...]: tables that all units share, flattened rows, layers that only a loop can follow, coins inside of a layer."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn
from torch.nn import functional

from ghostshard.ghost.rows import rows_of_each
from ghostshard.ghost.shared import Shared, shared


def difference(model, batches, clip_norm=0.3):
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, clip_norm)
    return oracle.worst_difference(Private(model, clip_norm).step(class_loss, batches), expected)


def texts(*units):
    return [(torch.randint(0, 11, (count, 6)), torch.randint(0, 3, (count,))) for count in units]


class Placed(nn.Module):
    """Words and places; `join` brings them together."""

    def __init__(self, join):
        super().__init__()
        self.tokens, self.places, self.out, self.join = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.Linear(8, 3), join

    def forward(self, ids):
        return self.out(torch.tanh(self.join(self, self.tokens(ids), len(ids))).mean(1))


class Distances(nn.Module):
    """A table of distances that is added to every example's scores, as T5 has it; once in place, once made the batch's own."""

    def __init__(self, own):
        super().__init__()
        self.tokens, self.bias, self.out, self.own = nn.Embedding(11, 8), nn.Embedding(11, 2), nn.Linear(8, 3), own

    def forward(self, ids):
        x, places = self.tokens(ids), torch.arange(ids.shape[1])
        table = self.bias(places[:, None] - places[None, :] + 5).permute(2, 0, 1).unsqueeze(0)
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        scores = heads @ heads.transpose(2, 3)
        if self.own:
            table = table.expand((len(ids), -1, -1, -1)).contiguous()
        scores += table[:, :, -scores.shape[2] :, :]
        return self.out((torch.softmax(scores, -1) @ heads).transpose(1, 2).flatten(2).mean(1))


SHARED = {
    "added": lambda m, x, n: x + m.places(torch.arange(6)),
    "with_an_extent_of_1": lambda m, x, n: x * m.places(torch.arange(6)[None]),
    "repeated": lambda m, x, n: x + m.places(torch.arange(6)[None]).repeat(n, 1, 1),
    "repeated_from_two_extents": lambda m, x, n: x + m.places(torch.arange(6)).repeat(n, 1, 1),
    "expanded": lambda m, x, n: x + m.places(torch.arange(6)).expand(n, 6, 8),
    "sliced_and_scaled": lambda m, x, n: x + 2 * torch.tanh(m.places(torch.arange(6)))[None, :6],
    "before_the_words": lambda m, x, n: torch.cat([m.places(torch.arange(2)).expand(n, 2, 8), x], 1),
}


@pytest.mark.parametrize("join", SHARED.values(), ids=SHARED)
def test_places_of_all_examples(join):
    torch.manual_seed(3)
    assert difference(Placed(join), texts(5, 1, 3)) < SUM_TOLERANCE


@pytest.mark.parametrize("own", [False, True], ids=["added_in_place", "expanded"])
def test_a_table_of_distances(own):
    torch.manual_seed(3)
    assert difference(Distances(own), texts(5, 1, 3)) < SUM_TOLERANCE


def test_a_table_of_as_many_distances_as_examples():
    """The first batch has six texts of six tokens, so that the table's ids [6,6] might be the texts' own."""
    torch.manual_seed(3)
    assert difference(Distances(True), texts(6, 2)) < SUM_TOLERANCE


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


PAST = {
    "a_function_of_ones_own": lambda m, x, n: x + Identity.apply(m.places(torch.arange(6))),
    "rows_of_nobody_known": lambda m, x, n: (x.mean(0) + m.places(torch.arange(6)))[None].repeat(n, 1, 1),
}


@pytest.mark.parametrize("join", PAST.values(), ids=PAST)
def test_what_goes_past_the_units_values_is_refused(join):
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="that all units share"):
        difference(Placed(join), texts(5))


def test_it_reads_like_the_shared_tensor():
    of_units = torch.randn(5, 4, 2, requires_grad=True)
    found = shared(of_units, leading_one=True)
    assert isinstance(found, Shared) and found.shape == (1, 4, 2) and found.dim() == 3 and len(found) == 1 and found.size(1) == 4
    assert torch.equal((found + torch.zeros(5, 4, 2, requires_grad=True)), of_units)
    assert not found.is_nested and not found.is_sparse and found.is_cpu and found.is_contiguous() and found.stride() == (8, 2, 1)
    assert isinstance(shared(of_units[:1]), torch.Tensor) and not isinstance(shared(of_units[:1]), Shared)


class Flat(nn.Module):
    """Flattens rows before its layers; `order` brings them out of order."""

    def __init__(self, order=lambda x: x.reshape(-1, 8)):
        super().__init__()
        self.tokens, self.norm, self.one, self.two, self.out = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.order = order

    def forward(self, ids):
        x = self.tokens(ids)
        y = self.two(torch.relu(self.one(self.norm(self.order(x)))))
        return self.out((x + y.view(x.shape)).mean(1))


def test_flattened_rows():
    torch.manual_seed(3)
    assert difference(Flat(), texts(5, 2, 1)) < SUM_TOLERANCE


ORDERS = {
    "time_first": lambda x: x.transpose(0, 1).reshape(-1, 8),
    "sorted": lambda x: x.reshape(-1, 8)[torch.arange(6 * len(x)).flip(0)],
    "chosen": lambda x: x[torch.ones(x.shape[:2], dtype=torch.bool)],
    "rolled": lambda x: torch.roll(x.reshape(-1, 8), 1, 0),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_rows_of_an_order_that_is_not_certain_are_refused(order):
    """Without the check of gradients, which a later batch does not have."""
    torch.manual_seed(3)
    model = Flat(order)
    with pytest.raises(ValueError, match="the first extent must be that of the 5 units"):
        Private(model, 0.3, attribution_check=False).step(class_loss, texts(5))


PROVEN = {
    "flatten": (lambda x: x.flatten(0, 1), 6), "gelu": (lambda x: functional.gelu(x.reshape(-1, 8)), 6),
    "two_inputs": (lambda x: x.reshape(-1, 8) * torch.sigmoid(x.flatten(0, 1)), 6), "last": (lambda x: x.reshape(30, 8).softmax(-1), 6),
    "frozen_layer": (lambda x: functional.linear(x.reshape(-1, 8), torch.ones(3, 8)), 6),
    "softmax_over_rows": (lambda x: x.reshape(30, 8).softmax(0), None), "transposed": (lambda x: x.transpose(0, 1).reshape(30, 8), None),
    "one_of_two": (lambda x: x.reshape(-1, 8) + x.transpose(0, 1).reshape(-1, 8), None), "no_gradient": (lambda x: x.detach().reshape(-1, 8), None),
    "cut_elsewhere": (lambda x: x.reshape(10, 24), 2), "cut_across": (lambda x: x.reshape(6, 40), None),
}  # fmt: skip


@pytest.mark.parametrize("make, rows", PROVEN.values(), ids=PROVEN)
def test_which_rows_are_whose(make, rows):
    assert rows_of_each(make(torch.randn(5, 6, 8, requires_grad=True) * 1), 5) == rows


class Chooses(nn.Module):
    """A mixture of two experts: the values decide which weight is used."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, 8, 8) * 0.3)

    def forward(self, x):
        flat = x.reshape(-1, 8)
        found = torch.zeros_like(flat)
        for number, weight in enumerate(self.experts):
            rows = torch.nonzero((flat[:, 0] > 0) == bool(number)).flatten()
            found = found.index_add(0, rows, flat[rows] @ weight)
        return found.view(x.shape)


@pytest.mark.parametrize("flat", [False, True], ids=["of_units", "of_flattened_rows"])
def test_a_layer_that_only_a_loop_can_follow(flat):
    torch.manual_seed(3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.layer, self.out = nn.Embedding(11, 8), Chooses(), nn.Linear(8, 3)

        def forward(self, ids):
            x = self.tokens(ids)
            y = self.layer(x.reshape(-1, 8)).view(x.shape) if flat else self.layer(x)
            return self.out(y.mean(1))

    assert difference(Model(), texts(5, 2)) < SUM_TOLERANCE


class Tosses(nn.Module):
    """dropout(x W), without a module that says so."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return functional.dropout(x @ self.weight, 0.5, training=self.training)


def test_coins_inside_of_a_layer_are_tossed_again():
    """Each example's gradient is of the coins that its output shows, and the generator is where the forward left it."""
    torch.manual_seed(3)
    model = nn.Sequential(Tosses())
    private, x = Private(model, 1e6, attribution_check=False), torch.randn(5, 6)
    for _ in range(2):
        outputs = private.module(x)
        before = torch.get_rng_state()
        private.backward(lambda *_: outputs.sum(1), (x,))
        assert torch.equal(before, torch.get_rng_state())
        kept = 2.0 * (outputs.detach() != 0)
        found = private.released()["0.weight"]
        assert 0 < kept.mean() < 2
        torch.testing.assert_close(found, x.T @ kept)


def test_a_mask_that_is_broadcast_in_one_batch_is_each_units_own_in_another():
    """T5 adds masks to its table of distances: [1, 1, 1, T] where none hides anything of its own, [units, 1, 1, T] elsewhere."""
    add = lambda bias, mask: bias + mask
    table = torch.randn(4, 2, 3, 3)
    for mask in (torch.zeros(1, 1, 1, 3), torch.randn(4, 1, 1, 3)):
        found = add(shared(table, leading_one=True), mask)
        expected = table + mask
        assert torch.equal(found.own(1) if found.rows else found.behind.squeeze(1), expected)
