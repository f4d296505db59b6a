"""Layers without a rule of their own, in every shape of arguments and outputs that people write."""

import copy
from collections import namedtuple

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn

Pair = namedtuple("Pair", "first second")


class Layer(nn.Module):
    """tanh(x W), in a tree that `give` makes."""

    def __init__(self, give):
        super().__init__()
        self.weight, self.give = nn.Parameter(torch.randn(6, 6) * 0.5), give

    def forward(self, x, *args, **kwargs):
        return self.give(torch.tanh(x @ self.weight), x, *args, **kwargs)


class Model(nn.Module):
    """The layer between two others; `take` makes one tensor of what the layer gives, `call` calls it."""

    def __init__(self, give, take=lambda y: y, call=lambda layer, x: layer(x)):
        super().__init__()
        self.below, self.layer, self.out = nn.Linear(6, 6), Layer(give), nn.Linear(6, 3)
        self.take, self.call = take, call

    def forward(self, x):
        return self.out(self.take(self.call(self.layer, self.below(x))))


def model_output(y, x):
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.BaseModelOutput(last_hidden_state=y, hidden_states=(x, y))


TABLE = torch.linspace(0.5, 1.5, 6)
CASES = {
    "tensor": (lambda: Model(lambda y, x: y)),
    "dict": (lambda: Model(lambda y, x: {"y": y, "n": 3, "none": None}, lambda found: found["y"] * found["n"])),
    "list": (lambda: Model(lambda y, x: [y, None], lambda found: found[0])),
    "tuple_of_both": (lambda: Model(lambda y, x: (y, x), lambda found: found[0] + found[1])),
    "named_tuple": (lambda: Model(lambda y, x: Pair(y, x * 2), lambda found: found.first * found.second)),
    "nested": (lambda: Model(lambda y, x: {"a": [y, (x, y * 2)]}, lambda found: found["a"][0] + found["a"][1][1])),
    "model_output": (lambda: Model(model_output, lambda found: found.last_hidden_state + found.hidden_states[0])),
    "one_of_two_is_used": (lambda: Model(lambda y, x: (y, y * 2), lambda found: found[1])),
    "with_integers": (lambda: Model(lambda y, x: (y, (y > 0).long()), lambda found: found[0] * (1 + found[1]))),
    "keyword_arguments": (
        lambda: Model(lambda y, x, *, scale, shift=None: y * scale + shift, call=lambda layer, x: layer(x, scale=2.0, shift=x))
    ),
    "x_by_keyword": (lambda: Model(lambda y, x, more: y + more, call=lambda layer, x: layer(x=x, more=x * 2))),
    "a_shared_table": (lambda: Model(lambda y, x, table: y * table[None], call=lambda layer, x: layer(x, TABLE))),
    "a_shared_row": (lambda: Model(lambda y, x, table: y * table, call=lambda layer, x: layer(x, TABLE[None]))),
    "a_list_of_tensors": (
        lambda: Model(lambda y, x, more: y + more[0] * more[1]["k"], call=lambda layer, x: layer(x, [x, {"k": 0.5}]))
    ),
    "plain_values": (
        lambda: Model(lambda y, x, on, dtype: y.to(dtype) if on else x, call=lambda layer, x: layer(x, True, x.dtype))
    ),
}  # fmt: skip


def batch(units: int = 5):
    return torch.randn(units, 6), torch.randint(0, 3, (units,))


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_a_layer_of_any_shape_is_exact(build):
    """With everything below it: a gradient that stopped at the layer would be zero there."""
    torch.manual_seed(3)
    model, batches = build(), [batch(), batch(2)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert all(float(value.abs().max()) > 0 for value in expected.values())
    found = Private(model, 0.5).step(class_loss, batches)
    assert oracle.worst_difference(found, expected) < SUM_TOLERANCE


class Remembers(nn.Module):
    def forward(self, x):
        return x


REFUSED = {
    "an_object_of_ones_own": (
        lambda: Model(lambda y, x, cache: y, call=lambda layer, x: layer(x, Remembers())), "need tensors and plain values.*Remembers"
    ),
    "a_shared_tensor_with_a_gradient": (
        lambda: Model(lambda y, x, table: y * table, call=lambda layer, x: layer(x, x.mean(0, keepdim=True))), "must be that of the 5 units"
    ),
    "a_gradient_that_is_nobodys": (
        lambda: Model(lambda y, x: (y, y.square().sum()), lambda found: found[0] + found[1]), "its gradient would be nobody's"
    ),
    "a_table_of_the_units_extent": (
        lambda: Model(lambda y, x, table: y * table[:, None].sum(), call=lambda layer, x: layer(x, torch.arange(5.0))),
        "an example alone another output|mixes examples|must not depend",
    ),
    "dropout_by_hand": (
        lambda: Model(lambda y, x: y * (torch.arange(len(y))[:, None] % 2)), "gives an example alone another output"
    ),
}  # fmt: skip


@pytest.mark.parametrize("build, sentence", REFUSED.values(), ids=REFUSED)
def test_what_has_no_per_example_gradient_is_refused(build, sentence):
    torch.manual_seed(3)
    model = build()
    with pytest.raises((RuntimeError, ValueError), match=sentence):
        Private(model, 0.5).step(class_loss, [batch()])
    assert all(p.grad is None for p in model.parameters())


class NanoGpt(nn.Module):
    """Positions are looked up once, without a batch: [T]."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.out = nn.Embedding(11, 6), nn.Embedding(8, 6), nn.Linear(6, 3)

    def forward(self, ids):
        return self.out(torch.tanh(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))).mean(1))


def test_places_that_all_examples_share():
    """Also for a batch of as many examples as there are places, which then have one id for each."""
    torch.manual_seed(3)
    model = NanoGpt()
    batches = [(torch.randint(0, 11, (units, 5)), torch.randint(0, 3, (units,))) for units in (3, 5, 1)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches), expected) < SUM_TOLERANCE
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        Private(NanoGpt(), 0.5).step(class_loss, [batches[1]])  # the first batch of all cannot tell
