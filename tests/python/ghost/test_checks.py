"""Models whose examples' gradients depend on each other are refused before anything of them is counted."""

import collections
import copy
import json
import math
import random

import numpy as np
import oracle
import pytest
import torch
from launch import HERE, run_ranks
from models import CASES, Language, class_loss, next_token_loss
from private import Private
from torch import nn

from ghostshard.ghost.checks.gradients import AttributionCheck

AS_SHIPPED = AttributionCheck.again  # conftest.py sets it to 0 for each test


class AcrossTheBatch(nn.Module):
    """Attention whose batch is the length and whose length is the batch."""

    def __init__(self, length: int):
        super().__init__()
        self.query, self.out = nn.Linear(6, 6), nn.Linear(6 * length, 3)

    def forward(self, x):
        q = self.query(x).transpose(0, 1)
        return self.out(nn.functional.scaled_dot_product_attention(q, q, q).transpose(0, 1).flatten(1))


class MinusTheMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x)
        return self.out(x - x.mean(0))


class TimeFirst(nn.Module):
    """A recurrent layer that takes [T, B, d], given [B, T, d]: only values show it if B = T."""

    def __init__(self, length: int):
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6 * length, 3)
        self.recurrent = nn.RNN(6, 6).requires_grad_(False)

    def forward(self, x):
        return self.out(self.recurrent(self.first(x))[0].flatten(1))


class LooksBack(nn.Module):
    """Each example also sees the one before it: of two, the loss of the second alone reaches the first."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.out(x + torch.cat([torch.zeros_like(x[:1]), x[:-1]]))


def batch(units: int, *shape: int):
    return torch.randn(units, *shape), torch.randint(0, 3, (units,))


MIXING = {
    "attention_across_the_batch": (lambda: AcrossTheBatch(4), lambda: batch(5, 4, 6), "query"),
    "batch_mean": (MinusTheMean, lambda: batch(5, 6), "first"),
    "batch_norm_without_parameters": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3)),
        lambda: batch(5, 6), "0",
    ),
    "time_first_where_batch_is_length": (lambda: TimeFirst(5), lambda: batch(5, 5, 6), "first"),
    "only_backwards_and_only_two": (LooksBack, lambda: batch(2, 6), "first"),
}  # fmt: skip


@pytest.mark.parametrize("build, make, layer", MIXING.values(), ids=MIXING.keys())
def test_a_layer_that_mixes_examples_is_refused_by_name(build, make, layer):
    torch.manual_seed(3)
    for _ in range(8):  # the halves are drawn by lot
        model = build()
        private = Private(model, 1.0)
        with pytest.raises(RuntimeError, match=rf"'{layer}\.(weight|bias)'.*must not depend on other examples"):
            private.backward(class_loss, make())
        assert not private.engine.session.open
        assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="since the last step"):
        private.released()


class DetachedMean(MinusTheMean):
    """No gradient flows, but each example's gradient depends on the others' values."""

    def forward(self, x):
        x = self.first(x)
        return self.out(x - x.detach().mean(0))


def frozen_below(model, layer: str):
    getattr(model, layer).requires_grad_(False)
    return model


UNSEEN_BY_GRADIENTS = {
    "detached_mean": (DetachedMean, lambda: batch(5, 6)),
    "mixing_below_all_that_trains": (lambda: frozen_below(MinusTheMean(), "first"), lambda: batch(5, 6)),
    "attention_below_all_that_trains": (lambda: frozen_below(AcrossTheBatch(4), "query"), lambda: batch(5, 4, 6)),
    "only_backwards_and_only_two": (lambda: frozen_below(LooksBack(), "first"), lambda: batch(2, 6)),
    "of_the_whole_batch": (
        lambda: nn.Sequential(nn.Flatten(1), nn.BatchNorm1d(24, affine=False), nn.Linear(24, 3)), lambda: batch(3, 4, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("build, make", UNSEEN_BY_GRADIENTS.values(), ids=UNSEEN_BY_GRADIENTS.keys())
def test_values_that_reach_other_examples_without_a_gradient(build, make):
    torch.manual_seed(3)
    for _ in range(8):
        private = Private(build(), 1.0)
        with pytest.raises(RuntimeError, match="output must not depend on other examples"):
            private.backward(class_loss, make())
        assert not private.engine.session.open


class Counts(nn.Module):
    """Draws from all three generators, and keeps a moving average in buffers, in place and anew."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("average", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.average = 0.5 * self.average + 0.5
        noise = random.random() + np.random.rand() + torch.rand(())
        return self.layer(x) * (noise + self.average)


def test_the_check_leaves_no_trace():
    def after(**options):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        model = Counts()
        Private(model, 1.0, **options).step(class_loss, [(torch.ones(4, 6), torch.zeros(4, dtype=torch.long))])
        return float(model.calls), float(model.average), random.random(), np.random.rand(), float(torch.rand(()))

    assert after() == after(attribution_check=False)
    assert after()[:2] == (1, 0.5)


def test_it_is_made_again_by_lot(monkeypatch):
    """A path through the model that opens later."""
    model = MinusTheMean()
    mixes = collections.deque([0.0])  # out of the check's sight, and the operations stay
    model.forward = lambda x: model.out(model.first(x) - mixes[0] * model.first(x).mean(0))
    monkeypatch.setattr(AttributionCheck, "again", 1)
    private = Private(model, 1.0)
    private.step(class_loss, [batch(5, 6)])
    mixes[0] = 1.0
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        private.backward(class_loss, batch(5, 6))


def test_the_lot_costs_less_than_one_percent():
    """Three backwards (each two of three parts of a step) and at most eleven forwards (one part each) in one of so many steps."""
    assert 0 < AS_SHIPPED * (3 * 2 + 11) / 3 < 0.01


def test_tokens_that_see_each_other_below_all_that_trains():
    torch.manual_seed(3)
    for _ in range(4):
        model = Language(tied=False)
        model.inner = nn.Sequential(model.inner, AcrossTokens())
        for name, p in model.named_parameters():
            p.requires_grad_(name.startswith("head"))
        with pytest.raises(RuntimeError, match="output must not depend"):
            Private(model, 1.0).backward(next_token_loss, (torch.randint(0, 11, (6, 7)),))


class AcrossTokens(nn.Module):
    def forward(self, x):
        return x + x.mean((0, 1))


def test_the_check_can_be_left_out():
    Private(MinusTheMean(), 1.0, attribution_check=False).step(class_loss, [batch(5, 6)])


def test_it_is_made_at_the_first_microbatch_of_two():
    private = Private(MinusTheMean(), 1.0)
    private.step(class_loss, [batch(1, 6), batch(0, 6), batch(1, 6)])
    private.backward(class_loss, batch(1, 6))
    with pytest.raises(RuntimeError, match="must not depend"):
        private.backward(class_loss, batch(2, 6))


def test_it_is_made_again_where_parameters_thaw():
    model = MinusTheMean()
    model.first.requires_grad_(False)
    mixes = collections.deque([0.0])  # out of the check's sight, and the operations stay
    model.forward = lambda x: model.out(model.first(x) - mixes[0] * model.first(x).mean(0))
    private = Private(model, 1.0)
    private.step(class_loss, [batch(5, 6)])
    mixes[0] = 1.0
    private.step(class_loss, [batch(5, 6)])  # not looked at again
    model.first.requires_grad_(True)
    with pytest.raises(RuntimeError, match="'first.(weight|bias)'"):
        private.backward(class_loss, batch(5, 6))


def counted(model) -> tuple[Private, list]:
    calls: list = []

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            calls.append(g)
            return g

    model[0].register_forward_hook(lambda _module, _args, output: Count.apply(output))
    return Private(model, 1.0), calls


def test_it_costs_thirteen_backwards_and_twenty_forwards_once():
    """Ten of the backwards and five of the forwards are of four examples at most; five forwards look for lengths that the model finds, four of them with one example."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    private, calls = counted(model)
    forwards = []
    model[1].register_forward_hook(lambda *_: forwards.append(torch.is_grad_enabled()))
    for _ in range(3):
        private.step(class_loss, [batch(4, 6), batch(3, 6)])
    assert len(calls) == 3 + 10 + 6
    assert forwards == [True] + 10 * [False] + 5 * [True] + 5 * [False] + 5 * [True]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_example_that_is_not_finite_is_no_leak(bad):
    torch.manual_seed(5)
    case = next(case for case in CASES if case.name == "mlp")
    model, (x, y) = case.build(), case.batches()[0]
    expected = oracle.clipped_sum(copy.deepcopy(model), case.loss, [(x[1:], y[1:])], 0.5)
    for _ in range(8):
        broken = x.clone()
        broken[0, 0] = bad
        found = Private(copy.deepcopy(model), 0.5).step(case.loss, [(broken, y)])
        assert oracle.worst_difference(found, expected) < 2e-5


def test_what_is_not_a_number_leaves_the_check_undecided():
    """One example whose own infinity makes NaN of a zero gradient: the check runs again until a batch decides."""

    class Overflows(nn.Module):
        def forward(self, x):
            return x / (1 + torch.exp(x.abs()))

    model = nn.Sequential(nn.Linear(6, 6), Overflows(), nn.Linear(6, 3))
    private, calls = counted(model)
    x, y = batch(4, 6)
    x[0] *= 1e5
    private.step(class_loss, [(x, y)])
    assert len(calls) == 14
    private.step(class_loss, [(torch.zeros(4, 6), y)])
    private.step(class_loss, [(torch.zeros(4, 6), y)])
    assert len(calls) == 14 + 14 + 1


def test_gradients_of_the_callers_own_leaves_are_of_one_backward():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = batch(4, 6)
    expected = x.clone().requires_grad_()
    class_loss(model, (expected, y)).sum().backward()
    model.zero_grad(set_to_none=True)
    mine = x.clone().requires_grad_()
    mine.grad = torch.ones_like(mine)
    Private(model, 1.0).backward(class_loss, (mine, y))
    torch.testing.assert_close(mine.grad, 1 + expected.grad, rtol=1e-5, atol=1e-6)


def test_dropout_repeats_its_coins():
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    torch.manual_seed(9)
    with_check = Private(copy.deepcopy(model), 0.5)
    x, y = batch(5, 6)

    def released(private):
        torch.manual_seed(1)
        return private.step(class_loss, [(x, y)])

    without = released(Private(copy.deepcopy(model), 0.5, attribution_check=False))
    assert all(torch.equal(value, without[name]) for name, value in released(with_check).items())


def test_records_are_made_once_by_a_model_with_ties():
    torch.manual_seed(4)
    model, ids = Language(tied=True, twice=True), torch.randint(0, 11, (6, 7))
    expected = oracle.clipped_sum(copy.deepcopy(model), next_token_loss, [(ids,)], 0.3)
    assert oracle.worst_difference(Private(model, 0.3).step(next_token_loss, [(ids,)]), expected) < 2e-5


def test_all_ranks_refuse_what_one_of_them_finds(tmp_path):
    """Rank 0 has five examples, rank 1 first none, then one: both stop at the same microbatch, with the same words."""
    file = tmp_path / "results.json"
    run_ranks(HERE / "engine_ranks_main.py", 2, str(file), "leaks")
    for first, second in json.loads(file.read_text()):
        assert first == second
        assert "'0.weight'" in first[-1] or "'0.bias'" in first[-1]
        assert first[:-1] == ["stepped"]


def test_ranks_have_batches_of_one_kind(tmp_path):
    file = tmp_path / "results.json"
    run_ranks(HERE / "engine_ranks_main.py", 2, str(file), "kinds")
    for lived in json.loads(file.read_text()):
        assert "some rank's are and another's are not" in lived[0]
        assert lived[1] == "stepped"
        assert "this one is not" in lived[2]
