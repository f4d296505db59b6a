"""A model that lets two examples meet: a half that has both shows nothing of it."""

import pytest
import torch
from private_run import Run
from torch import nn

from ghostshard.ghost.checks.gradients import _half_of


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
@pytest.mark.parametrize("units", [2, 4, 7, 8, 9, 12])
def test_pairs_are_seen_at_the_first_batch(of, units):
    for _ in range(8):  # halves are drawn by lot
        run = Run(model=Mixed(of), draws=(units,))
        with pytest.raises(RuntimeError, match="an example's .* must not depend on other examples"):
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
def test_any_two_examples_of_the_first_batch_that_meet_are_seen(units):
    for one, other in ((0, 1), (units - 1, 0), (units // 2, units // 2 - 1)) * 2:  # halves are drawn by lot
        run = Run(model=OneMeetsAnother(one, other), draws=(units,))
        with pytest.raises(RuntimeError, match="an example's .* must not depend on other examples"):
            run.backward(*next(iter(run.loader)))


def test_no_half_is_of_whole_pairs():
    for units in range(2, 40):
        for seed in range(5):
            half = _half_of(units, seed)
            assert len(half) % 2 == 1 and half < set(range(units))
    assert _half_of(1, 0) == _half_of(0, 0) == set()
