"""Models and criterions that keep things between batches: what follows from examples stays out of later batches' gradients."""

import collections
import copy

import numpy as np
import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

from ghostshard.ghost.checks.gradients import AttributionCheck


def passes(run):
    for x, y in run.loader:
        run.step(x, y)


class Keeping(nn.Module):
    """A layer, and `kept`, which later batches see."""

    def __init__(self, kept):
        super().__init__()
        self.layer, self.kept = nn.Linear(6, 3), kept


class Last(Keeping):
    def forward(self, x):
        out = self.layer(x) + (0 if self.kept is None else self.kept)
        self.kept = out.detach().mean(0)
        return out


class LastExample(Last):
    """Of one example alone."""

    def forward(self, x):
        out = self.layer(x) + (0 if self.kept is None else self.kept)
        self.kept = x[-1, :3]
        return out


class Queue(Keeping):
    def forward(self, x):
        out = self.layer(x)
        if self.kept:
            out = out @ torch.eye(3) + torch.stack(list(self.kept)).mean(0)
        self.kept.append(out.detach().mean(0))
        return out


class Table(Keeping):
    def forward(self, x):
        out = self.layer(x) + self.kept.get("mean", 0)
        self.kept["mean"] = 0.9 * self.kept.get("mean", 0) + 0.1 * x[:, :3].mean(0)
        return out


class Numbers(Keeping):
    def forward(self, x):
        out = self.layer(x) * (1 + self.kept[0])
        self.kept[0] = float(x.mean())
        return out


EVERYWHERE = []


class Outside(Keeping):
    """In a variable of the module that nothing restores."""

    def forward(self, x):
        out = self.layer(x) + (EVERYWHERE[-1] if EVERYWHERE else 0)
        EVERYWHERE.append(out.detach().mean(0))
        return out


CARRIED = {
    "last": lambda: Last(None), "last example": lambda: LastExample(None), "list": lambda: Queue([]), "deque": lambda: Queue(collections.deque(maxlen=4)),
    "dict": lambda: Table({}), "numbers": lambda: Numbers([0.0]), "outside": lambda: Outside(None),
}  # fmt: skip


@pytest.mark.parametrize("make", CARRIED.values(), ids=CARRIED)
def test_what_a_model_carries_to_the_next_batch_is_refused(make):
    run = Run(model=make())
    with pytest.raises(RuntimeError, match="outputs for the next batch follow from it|outputs changed with the inputs of others"):
        passes(run)
    assert run.charged == 0


def where_gradients_are_kept(make):
    """The model keeps nothing of a forward without them."""
    model = make()

    class Gated(type(model)):
        def forward(self, x):
            before = copy.deepcopy(self.kept)
            out = super().forward(x)
            self.kept = self.kept if torch.is_grad_enabled() else before
            return out

    model.__class__ = Gated
    return model


@pytest.mark.parametrize("make", [each for name, each in CARRIED.items() if name != "outside"], ids=[name for name in CARRIED if name != "outside"])
def test_so_is_what_it_carries_where_gradients_are_kept_alone(make):
    run = Run(model=where_gradients_are_kept(make))
    with pytest.raises(RuntimeError, match="outputs for the next batch follow from it"):
        passes(run)
    assert run.charged == 0


class AverageOfLosses(nn.Module):
    """Of batches before, by which losses are divided, where gradients are kept."""

    def __init__(self, *, buffer):
        super().__init__()
        self.buffer = buffer
        if buffer:
            self.register_buffer("mean", torch.ones(()))
        else:
            self.mean = 1.0

    def forward(self, outputs, targets):
        losses = F.cross_entropy(outputs, targets, reduction="none")
        found = losses / (self.mean.clone() if self.buffer else self.mean)
        if losses.requires_grad and len(losses):
            mean = losses.detach().mean()
            self.mean = 0.9 * self.mean + 0.1 * (mean if self.buffer else float(mean))
        return found


@pytest.mark.parametrize("buffer", [False, True])
def test_a_criterion_keeps_nothing_where_gradients_are_kept_alone(buffer):
    run = Run(criterion=AverageOfLosses(buffer=buffer))
    with pytest.raises(RuntimeError, match="the criterion keeps numbers or tensors that follow from examples"):
        passes(run)
    assert run.charged == 0


class Logging(nn.Module):
    """Keeps what nothing reads again, counts its calls, and scales by their number; coins of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.sizes, self.means, self.aux, self.held = nn.Linear(6, 3), 0, [], {}, None, torch.zeros(3)
        self.coins = np.random.default_rng(3)
        self.torch_coins = torch.Generator().manual_seed(3)

    def forward(self, x):
        self.calls += 1
        out = self.layer(x) / self.calls + self.coins.random() + torch.rand(3, generator=self.torch_coins)
        self.sizes.append(len(x))
        self.means.setdefault("all", collections.deque(maxlen=2)).append(x.detach().mean())
        self.aux = out.pow(2).mean()
        self.held.copy_(out.detach().sum(0))
        return out


def test_what_nothing_reads_again_is_taken_and_stays_of_the_loops_own_calls(monkeypatch):
    monkeypatch.setattr(AttributionCheck, "again", 1)
    run = Run(model=Logging())
    model = run.model
    for x, y in run.loader:
        run.optimizer.zero_grad()
        loss = run.criterion(run.module(x), y)
        aux, held, coins = model.aux, model.held.clone(), model.coins.bit_generator.state
        loss.backward()
        assert model.aux is aux and torch.equal(model.held, held) and model.coins.bit_generator.state == coins
        run.optimizer.step()
    assert run.charged == model.calls == len(model.sizes) == 5 and model.sizes == [8, 7, 9, 8, 6]
    assert len(model.means["all"]) == 2


class Components(nn.Module):
    """A criterion that keeps its parts for people."""

    def __init__(self):
        super().__init__()
        self.parts, self.history = {}, []

    def forward(self, out, y):
        losses, penalty = F.cross_entropy(out, y, reduction="none"), out.pow(2).mean(1)
        self.parts = {"loss": losses.mean().item(), "penalty": penalty.mean().item()}
        self.history.append(self.parts["loss"])
        return losses + 0.1 * penalty


def test_a_criterion_may_keep_its_parts_for_people():
    run = Run(criterion=Components())
    passes(run)
    assert run.charged == len(run.criterion.criterion.history) == 5


class Averaged(nn.Module):
    """Divides by the average of its history."""

    def __init__(self):
        super().__init__()
        self.history = [1.0]

    def forward(self, out, y):
        losses = F.cross_entropy(out, y, reduction="none")
        divided = losses / np.mean(self.history)
        self.history.append(float(losses.detach().mean()))
        return divided


class OfAMethod:
    """A trainer's method, as people write it."""

    def __init__(self):
        self.scale = 1.0

    def loss(self, out, y):
        losses = F.cross_entropy(out, y, reduction="none")
        divided = losses / self.scale
        self.scale = float(losses.detach().mean())
        return divided


@pytest.mark.parametrize("criterion", [Averaged, lambda: OfAMethod().loss], ids=["module", "method"])
def test_what_a_criterion_carries_to_the_next_batch_is_refused(criterion):
    run = Run(criterion=criterion())
    with pytest.raises(RuntimeError, match="criterion keeps numbers or tensors"):
        passes(run)
    assert run.charged == 0


class Scaling(nn.Module):
    """No rule: torch.func's gradients of one example after another. Counts its calls; tosses coins; goes another way for some values."""

    def __init__(self, coins=False, branches=False):
        super().__init__()
        self.scale, self.coins, self.branches = nn.Parameter(torch.ones(6)), coins, branches
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if self.branches and len(x) == 1 and float(x[0, 0]) > 0:  # vmap cannot follow
            x = x + 0.0
        if self.coins:
            x = F.dropout(x, 0.3, self.training)
        return x * self.scale * (1 + self.calls)


@pytest.mark.parametrize("options", [{}, {"coins": True}, {"branches": True}, {"coins": True, "branches": True}], ids=str)
def test_buffers_of_a_layer_without_a_rule_move_once_a_forward(options, monkeypatch):
    monkeypatch.setattr(AttributionCheck, "again", 1)
    run = Run(model=nn.Sequential(nn.Linear(6, 6), Scaling(**options), nn.Linear(6, 3)))
    for number, (x, y) in enumerate(run.loader):
        run.step(x, y)
        assert run.model[1].calls == number + 1
    assert run.charged == 5
