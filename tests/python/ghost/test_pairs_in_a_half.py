"""A model that lets two examples meet: a half that has both shows nothing of it."""

import itertools

import pytest
import torch
from private_run import Run
from torch import nn

from ghostshard.ghost.checks.gradients import AttributionCheck, _with_bit


class Mixed(nn.Module):
    def __init__(self, of):
        super().__init__()
        self.first, self.last, self.of = nn.Linear(6, 8), nn.Linear(8, 3), of

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(0.7 * h + 0.3 * h[self.of(len(h))])


PAIRS = {
    "turned round": lambda n: torch.arange(n).flip(0),
    "neighbours": lambda n: (torch.arange(n) ^ 1).clamp(max=n - 1),
    "half and half": lambda n: torch.arange(n).roll(n // 2) if n % 2 == 0 else torch.arange(n).flip(0),
}


@pytest.mark.parametrize("of", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("units", [2, 4, 8, 12])
def test_pairs_are_seen_at_the_first_batch(of, units):
    for _ in range(8):  # halves are drawn by lot
        run = Run(model=Mixed(of), draws=(units,))
        with pytest.raises(RuntimeError, match="an example's gradient must not depend on other examples"):
            run.backward(*next(iter(run.loader)))


class OneMeetsAnother(Mixed):
    """The others are alone."""

    def __init__(self, one, other):
        super().__init__(None)
        self.one, self.other = one, other

    def forward(self, x):
        h = torch.tanh(self.first(x))
        met = torch.arange(len(h)) == self.one
        return self.last(h + met.unsqueeze(1) * h[self.other % len(h)])


@pytest.mark.parametrize("units", [2, 3, 7, 9, 16])
def test_any_two_examples_of_a_small_first_batch_that_meet_are_seen(units, monkeypatch):
    monkeypatch.setattr(AttributionCheck, "separates", True)
    for one, other in ((0, 1), (units - 1, 0), (units // 2, units // 2 - 1)) * 2:  # halves are drawn by lot
        run = Run(model=OneMeetsAnother(one, other), draws=(units,))
        with pytest.raises(RuntimeError, match="an example's .* must not depend on other examples"):
            run.backward(*next(iter(run.loader)))


@pytest.mark.parametrize("units", range(1, 17))
def test_every_two_examples_are_apart_in_some_half(units):
    for seed in range(20):
        for most in range(units, 17):  # of another rank
            halves = [_with_bit(bit, units, seed) for bit in range((most - 1).bit_length())]
            for one, other in itertools.combinations(range(units), 2):
                assert any((one in half) != (other in half) for half in halves)
            assert all(0 < len(half) < units for half in halves if units > 1)


def test_a_first_batch_that_is_large_is_looked_at_once(monkeypatch):
    monkeypatch.setattr(AttributionCheck, "separates", True)
    passes = {}
    for draws in ((8,) * 6, (20,) * 6, (20, 8, 8, 8, 8, 8)):
        run = Run(draws=draws)
        seen = []
        run.model.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
        for x, y in run.loader:
            run.step(x, y)
        passes[draws] = len(seen) - len(draws)
    small, large, mixed = passes.values()
    assert small == 3 * large and large == mixed > 0  # 8 examples have three halves
