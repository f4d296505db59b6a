"""Attributes that are set on what make_private() returned, which has the name of the criterion or the model in most scripts."""

import pytest
import torch
from private import Private
from private_run import Run
from torch import nn
from torch.nn import functional

from ghostshard.ghost.loss import PrivateCriterion

X, Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


class Beta(nn.Module):
    """A term whose weight a loop lets grow (a beta-VAE's)."""

    def __init__(self):
        super().__init__()
        self.beta = 0.0

    def forward(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="none") + self.beta * outputs.square().sum(1)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), 1.0

    def forward(self, x):
        return self.layer(x) * self.scale


def criterion_of(own):
    private = Private(Scaled(), 0.5)
    return private, PrivateCriterion(private.engine, private.optimizer, own)


def test_a_criterions_weight_grows():
    torch.manual_seed(1)
    own = Beta()
    private, criterion = criterion_of(own)
    criterion.beta = 0.5
    criterion.beta += 0.5
    assert own.beta == criterion.beta == 1.0
    outputs = private.model(X)
    assert torch.equal(criterion(private.module(X), Y).loss_per_sample.detach(), own(outputs, Y).detach())


def test_settings_of_torchs_criterion():
    own = nn.CrossEntropyLoss()
    private, criterion = criterion_of(own)
    criterion.label_smoothing, criterion.weight = 0.3, torch.tensor([1.0, 2.0, 3.0])
    expected = functional.cross_entropy(private.model(X), Y, weight=own.weight, label_smoothing=0.3, reduction="none")
    assert torch.allclose(criterion(private.module(X), Y).loss_per_sample, expected)
    criterion.train(False)
    assert not criterion.training and "training" in vars(criterion)
    with pytest.raises(AttributeError, match="no attribute 'margin'"):
        criterion.margin


def test_settings_of_a_function():
    def own(outputs, targets):
        return own.weight * functional.cross_entropy(outputs, targets, reduction="none")

    own.weight = 1.0
    private, criterion = criterion_of(own)
    criterion.weight = 3.0
    assert torch.allclose(criterion(private.module(X), Y).loss_per_sample, 3 * functional.cross_entropy(private.model(X), Y, reduction="none"))


def test_another_reduction_is_refused():
    """Of one number for each token it would be another loss."""
    private, criterion = criterion_of(nn.CrossEntropyLoss())
    criterion.reduction = "sum"
    with pytest.raises(ValueError, match=r"reduction became 'sum' after make_private\(\), which was given 'mean'"):
        criterion(private.module(X), Y)


def test_a_models_attribute_is_not_set_on_its_wrapper():
    private = Private(Scaled(), 0.5)
    with pytest.raises(AttributeError, match=r"'scale' is of the model.*take module._module.scale"):
        private.module.scale = 2.0
    with pytest.raises(AttributeError, match="'layer' is of the model"):
        private.module.layer = nn.Linear(6, 3)
    private.module.note = "for people"
    private.module._module.scale = 2.0
    assert private.model.scale == 2.0
    private.module.train(False)
    assert not private.module.training


SET_ONCE = [
    ("optimizer", "expected_batch_size", 80), ("optimizer", "loss_reduction", "sum"), ("optimizer", "generator", torch.Generator()), ("criterion", "loss_reduction", "sum"),
    ("module", "loss_reduction", "sum"), ("module", "batch_first", False), ("loader", "sample_rate", 0.5),
]  # fmt: skip


@pytest.mark.parametrize("of,name,value", SET_ONCE)
def test_what_belongs_to_the_run_is_not_set_later(of, name, value):
    """It would change nothing."""
    run = Run()
    holder = getattr(run, of)
    setattr(holder, name, getattr(holder, name))
    with pytest.raises(AttributeError, match=f"{name} is of the run that make_private.. began with .* It is said by "):
        setattr(holder, name, value)
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 5
