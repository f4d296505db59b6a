"""Layers without a rule that count their calls: what they set on themselves is theirs afterwards, once for each forward."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn


class Counting(nn.Module):
    """Another layer from its sixth call on."""

    def __init__(self, coins=False, by_values=False):
        super().__init__()
        self.weight, self.calls, self.stage, self.coins, self.by_values = nn.Parameter(torch.randn(6)), 0, "first", coins, by_values

    def forward(self, x):
        self.calls += 1
        self.stage = "first" if self.calls < 6 else "second"
        if self.by_values and float(x.detach().abs().max()) < 0:  # torch.func.vmap follows no such thing
            return x
        x = nn.functional.dropout(x, 1e-9) if self.coins else x
        return x * self.weight * (1 if self.stage == "first" else 3)


class Inside(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(6)), Counting(**options)

    def forward(self, x):
        return self.inner(x) * self.weight


CASES = {
    "alone": lambda: Counting(), "coins": lambda: Counting(coins=True), "one after another": lambda: Counting(by_values=True),
    "coins, one after another": lambda: Counting(coins=True, by_values=True), "a child": lambda: Inside(), "a child, one after another": lambda: Inside(by_values=True),
}  # fmt: skip


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_a_layer_that_counts_its_calls(build):
    torch.manual_seed(4)
    model = nn.Sequential(build(), nn.Linear(6, 3))
    twin, private = copy.deepcopy(model), Private(model, 1e6)
    counts = lambda model: [each.calls for each in model.modules() if isinstance(each, Counting)]
    for _ in range(8):
        batch = torch.randn(5, 6), torch.randint(0, 3, (5,))
        found = private.step(class_loss, [batch])
        private.optimizer.zero_grad()
        twin.zero_grad()
        class_loss(twin, batch).sum().backward()
        assert counts(model) == counts(twin)
        assert oracle.worst_difference(found, {name: value.grad.double() for name, value in twin.named_parameters()}) < SUM_TOLERANCE
