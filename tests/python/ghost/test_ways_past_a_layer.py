"""A layer without a rule that reads its own parameters, gives its outputs or leaves its losses by ways on which torch.func does not come; and views of what layers give."""

import collections
import copy
import dataclasses
import functools
import types

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn
from torch.nn import functional as F


class Keeps(nn.Module):
    """Keeps a way to its own weight in an attribute."""

    def __init__(self, way):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(6, 6) * 0.5), nn.Parameter(torch.ones(6))
        self.way = way(self)

    def project(self, x):
        return x @ self.weight

    def forward(self, x):
        way = self.way.of if hasattr(self.way, "of") else next(iter(self.way.values())) if isinstance(self.way, dict) else self.way
        return torch.tanh(way(x)) * self.scale


def model_of(layer):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 3))


BATCH = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)), torch.arange(5) % 3
EXACT = {
    "a method": lambda self: self.project, "in a dict": lambda self: {"of": self.project}, "partial": lambda self: functools.partial(self.project),
    "partial of a partial": lambda self: functools.partial(functools.partial(self.project)),
}  # fmt: skip
OTHER_WAYS = {
    "a lambda": lambda self: lambda x: x @ self.weight, "a namespace": lambda self: types.SimpleNamespace(of=self.project), "vmap": lambda self: torch.vmap(self.project),
    "a partial of the weight": lambda self: functools.partial(F.linear, weight=self.weight),
}  # fmt: skip


@pytest.mark.parametrize("way", EXACT.values(), ids=EXACT)
def test_methods_in_attributes_are_the_layers_own(way):
    model = model_of(Keeps(way))
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [BATCH], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, [BATCH]), expected) < SUM_TOLERANCE


@pytest.mark.parametrize("way", OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_a_way_that_no_examples_weight_comes_on_is_refused(way):
    with pytest.raises((RuntimeError, ValueError), match="reads a parameter of its own by another way|keeps parameters in a list or dict"):
        Private(model_of(Keeps(way)), 0.5).step(class_loss, [BATCH])


# Outputs --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor


class Gives(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.weight, self.give = nn.Parameter(torch.ones(6)), give

    def forward(self, x):
        return self.give(torch.tanh(x) * self.weight)


class Takes(nn.Module):
    def __init__(self, give, take):
        super().__init__()
        torch.manual_seed(3)
        self.below, self.layer, self.out, self.take = nn.Linear(6, 6), Gives(give), nn.Linear(6, 3), take

    def forward(self, x):
        return self.out(self.take(self.layer(self.below(x))))


@dataclasses.dataclass(frozen=True)
class Both:
    """What a layer gives beside its output, of which nobody trains on a part."""

    hidden: torch.Tensor
    maps: list
    name: str = "both"


DATACLASSES = {
    "a dataclass": (Output, lambda y: y.hidden), "in a list": (lambda y: [1, Output(y)], lambda y: y[1].hidden),
    "one beside": (lambda y: (y, Both(y * 2, [y.detach(), None])), lambda y: y[0]), "of several": (lambda y: Both(y * 2, [y, None]), lambda y: y.hidden + y.maps[0]),
}  # fmt: skip


@pytest.mark.parametrize("give, take", DATACLASSES.values(), ids=DATACLASSES)
def test_outputs_in_dataclasses_are_exact(give, take):
    model = Takes(give, take)
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [BATCH], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, [BATCH]), expected) < SUM_TOLERANCE


OBJECTS = {
    "a distribution": (lambda y: torch.distributions.Normal(y, 1.0), lambda y: y.mean),
    "a deque": (lambda y: collections.deque([y]), lambda y: y[0]), "an iterator": (lambda y: iter([y]), next),
    "in a list": (lambda y: [1, types.SimpleNamespace(hidden=y)], lambda y: y[1].hidden),
}  # fmt: skip


@pytest.mark.parametrize("give, take", OBJECTS.values(), ids=OBJECTS)
def test_outputs_in_an_object_are_refused(give, take):
    with pytest.raises(ValueError, match="gives tensors within"):
        Private(Takes(give, take), 0.5).step(class_loss, [BATCH])


# Beside the output ----------------------------------------------------------------------------------------------------


class Leaves(nn.Module):
    def __init__(self, what, where):
        super().__init__()
        self.weight, self.aux, self.kept = nn.Parameter(torch.eye(6)), None, []
        self.what, self.where = what, where

    def forward(self, x):
        gate = torch.sigmoid(x @ self.weight)
        if self.where == "an attribute":
            self.aux = self.what(gate)
        elif self.where == "a list":
            self.kept.append(self.what(gate))
        return x * gate


@pytest.mark.parametrize("where", ["an attribute", "a list"])
def test_a_loss_that_is_left_beside_the_output_is_refused(where):
    with pytest.raises(RuntimeError, match="leaves a loss in its attribute"):
        Private(model_of(Leaves(lambda gate: gate.square().mean(1), where)), 0.5).step(class_loss, [BATCH])


@pytest.mark.parametrize("of", [lambda gate: gate.detach().mean(), lambda gate: gate], ids=["detached", "a map"])
def test_what_else_is_left_is_none(of):
    model = model_of(Leaves(of, "an attribute"))
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [BATCH], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, [BATCH]), expected) < SUM_TOLERANCE


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn(6))

    def forward(self, x):
        x += self.places
        return x * 2


def test_a_layer_that_writes_to_its_argument_is_refused_with_a_true_sentence():
    with pytest.raises(RuntimeError, match="writes to an argument"):
        Private(model_of(Adds()), 0.5).step(class_loss, [BATCH])


# Views of outputs -----------------------------------------------------------------------------------------------------


class Pictures(nn.Module):
    """Flattened by view(), which takes no tensor that is laid out otherwise."""

    def __init__(self, *layers, act):
        super().__init__()
        torch.manual_seed(3)
        self.layers, self.act = nn.Sequential(*layers), act
        self.out = nn.Linear(layers[0](torch.randn(1, 3, 8, 8)).numel() if len(layers) == 1 else self.layers(torch.randn(1, 3, 8, 8)).numel(), 3)

    def forward(self, x):
        return self.out(self.act(self.layers(x)).view(len(x), -1))


def pictures():
    g = torch.Generator().manual_seed(2)
    return torch.randn(5, 3, 8, 8, generator=g), torch.arange(5) % 3


VIEWED = {
    "group norm": lambda: Pictures(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), act=nn.ReLU()), "a late convolution": lambda: Pictures(nn.Conv2d(3, 32, 4, 4), nn.Conv2d(32, 64, 2), act=nn.ReLU()),
    "instance norm, in place": lambda: Pictures(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), act=nn.ReLU(inplace=True)),
    "group norm, in place": lambda: Pictures(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), act=nn.ReLU(inplace=True)),
}  # fmt: skip


@pytest.mark.parametrize("build", VIEWED.values(), ids=VIEWED)
def test_outputs_are_laid_out_as_the_layers_own(build):
    model, batch = build(), pictures()
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [batch], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, [batch]), expected) < SUM_TOLERANCE


def test_an_evaluation_may_compute_with_other_weights():
    """An average of the weights, by torch.func.functional_call."""
    private = Private(model_of(nn.GroupNorm(2, 6)), 0.5)
    private.step(class_loss, [BATCH])
    twice = {name: 2 * value.detach() for name, value in private.model.named_parameters()}
    expected = copy.deepcopy(private.model)
    expected.load_state_dict(twice)
    with torch.no_grad():
        assert torch.allclose(torch.func.functional_call(private.model, twice, (BATCH[0],)), expected(BATCH[0]))
