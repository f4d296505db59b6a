"""What a model computes may change after its first batches (a forward that is put in its place, a module, a class, a flag): then it is checked anew."""

import types

import pytest
import torch
from private_run import Run
from torch import nn

from ghostshard.ghost.checks.gradients import AttributionCheck

MIXED = "outputs changed with the inputs of others"


def mixed(x):
    return x - x.detach().mean(0)


class Modes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.between, self.last = nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 3)
        self.mixes, self.mode = False, "plain"
        self.stage, self.bank, self.config = 0, None, types.SimpleNamespace(mixes=False)

    def forward(self, x):
        h = self.between(torch.tanh(self.first(x)))
        return self.last(mixed(h) if self.mixes or self.mode == "mixed" or self.stage > 2 or self.config.mixes else mixed(h) if self.bank else self._changed(h))

    def _changed(self, h):
        return h


class Counting(Modes):
    """Its counter makes checks of its own, so what is to be seen by another sign is tried without it."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Mixing(nn.Module):
    def forward(self, x):
        return mixed(x)


class MixedModes(Modes):
    def forward(self, x):
        return super().forward(mixed(x))


def puts_a_forward(of, change):
    given = of.forward
    of.forward = lambda x: given(change(x))


DEEDS = {
    "a forward": lambda model, change: puts_a_forward(model, change), "a layer's forward": lambda model, change: puts_a_forward(model.last, change),
    "a module's forward": lambda model, change: puts_a_forward(model.between, change),
    "a flag": lambda model, change: setattr(model, "mixes", change is mixed), "a word": lambda model, change: setattr(model, "mode", "mixed" if change is mixed else "other"),
    "a number": lambda model, change: setattr(model, "stage", 3 if change is mixed else 2),
    "a method": lambda model, change: setattr(model, "_changed", lambda h: change(h)),
    "what was None": lambda model, change: setattr(model, "bank", [1] if change is mixed else []),
    "a configuration": lambda model, change: setattr(model.config, "mixes", change is mixed),
    "a module": lambda model, change: setattr(model, "between", Mixing() if change is mixed else nn.Tanh()),
    "a class": lambda model, change: setattr(model, "__class__", MixedModes if change is mixed else type("Others", (Modes,), {})),
}  # fmt: skip


def trained(deed, change):
    run = Run(model=Modes())
    for number, (x, y) in enumerate(run.loader):
        if number == 2:
            deed(run.model, change)
        run.step(x, y)
    return run


@pytest.mark.parametrize("name", DEEDS)
def test_what_mixes_later_is_refused(name):
    with pytest.raises(RuntimeError, match=MIXED):
        trained(DEEDS[name], mixed)


@pytest.mark.parametrize("name", DEEDS)
def test_what_keeps_examples_apart_trains_on(name):
    assert trained(DEEDS[name], torch.relu).charged == 5


def test_a_flag_that_changes_back_costs_one_check():
    run = Run(model=Counting(), draws=(8,) * 9)
    for number, (x, y) in enumerate(run.loader):
        run.model.mode, before = ("plain", "other")[number % 2], run.model.calls
        run.step(x, y)
        assert number < 5 or run.model.calls == before + 1  # its own counter is looked at three times


def test_a_word_that_is_new_in_every_batch_is_not_looked_at_for_ever():
    run = Run(model=Counting(), draws=(2,) * 70)
    for number, (x, y) in enumerate(run.loader):
        run.model.mode, before = f"step {number}", run.model.calls
        run.step(x, y)
    assert run.model.calls == before + 1


NEIGHBOURS = 0


def weighted(out, y, by):
    """By each example's own output, or by that of a neighbour."""
    return torch.nn.functional.cross_entropy(out, y, reduction="none") * (1 + out.detach().softmax(1).roll(by, 0)[:, 0])


def by_a_global(out, y):
    return weighted(out, y, NEIGHBOURS)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.mode, self.by = "own", 0

    def forward(self, out, y):
        return weighted(out, y, self.by if self.mode == "own" else 1)


CRITERIONS = {
    "a word": (Weighted, lambda run: setattr(run.criterion, "mode", "neighbour")), "a number": (Weighted, lambda run: setattr(run.criterion, "by", 1)),
    "a global": (lambda: by_a_global, lambda run: globals().update(NEIGHBOURS=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CRITERIONS)
def test_a_criterion_that_mixes_once_it_is_set_so_is_refused(name, monkeypatch):
    monkeypatch.setitem(globals(), "NEIGHBOURS", 0)
    monkeypatch.setattr(AttributionCheck, "again", 0.0)
    build, change = CRITERIONS[name]
    run = Run(criterion=build(), draws=(8,) * 12)
    with pytest.raises(RuntimeError, match="an example's loss must not depend on other examples"):
        for number, (x, y) in enumerate(run.loader):
            if number == 11:  # all calls that are looked at anyway are over
                change(run)
            run.step(x, y)
    assert run.charged == 11
