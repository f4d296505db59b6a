"""Layers whose settings or children are not those they were built with."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn


def dilated(padding=0, channels=4, **options):
    """As segmentation models do to a backbone's last stage."""
    convolution = nn.Conv2d(3, channels, 3, padding=padding, **options)
    convolution.dilation = (2, 2)
    convolution.padding = padding if isinstance(padding, str) else (2, 2)
    return convolution


class WithNone(nn.Module):
    """A child that stands for none, in a list that is taken apart by its places."""

    def __init__(self):
        super().__init__()
        self.scale, self.parts = nn.Parameter(torch.ones(5)), nn.ModuleList([None, nn.Linear(5, 5), None])

    def forward(self, x):
        before, layer, after = self.parts
        assert before is None and after is None and self.parts[1] is layer
        return layer(x * self.scale)


PICTURES, VECTORS = lambda units: torch.randn(units, 3, 6, 6), lambda units: torch.randn(units, 5)
CASES = {
    "dilated later": (lambda: nn.Sequential(dilated(1), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)), PICTURES),
    "dilated later, few places": (lambda: nn.Sequential(dilated(1, 64, stride=4), nn.Tanh(), nn.Flatten(), nn.Linear(256, 3)), PICTURES),
    "same": (lambda: nn.Sequential(dilated("same"), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)), PICTURES),
    "valid": (lambda: nn.Sequential(dilated("valid"), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)), PICTURES),
    "children that are None": (lambda: nn.Sequential(WithNone(), nn.Linear(5, 3)), VECTORS),
}  # fmt: skip


@pytest.mark.parametrize("build,inputs", CASES.values(), ids=CASES)
def test_a_layer_is_recorded_as_it_is_now(build, inputs):
    torch.manual_seed(3)
    model, batches = build(), [(inputs(4), torch.randint(0, 3, (4,)))]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches), expected) < SUM_TOLERANCE
