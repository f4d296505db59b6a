"""A model or a criterion that pairs the batch with itself: a half of whole pairs shows nothing of it."""

import pytest
import torch
from private_run import Run
from torch import nn

from ghostshard.ghost.checks.gradients import AttributionCheck


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


@pytest.mark.parametrize("units", [7, 9])
def test_an_example_that_is_left_over_does_not_hide_pairs(units, monkeypatch):
    monkeypatch.setattr(AttributionCheck, "more_looks", 3)
    for _ in range(8):
        run = Run(model=Mixed(PAIRS["turned round"]), draws=(units,))
        with pytest.raises(RuntimeError, match="an example's gradient must not depend on other examples"):
            run.backward(*next(iter(run.loader)))


def test_a_first_batch_that_is_large_is_looked_at_once(monkeypatch):
    monkeypatch.setattr(AttributionCheck, "more_looks", 3)
    for draws, checks in (((8,) * 6, 4), ((20,) * 6, 1), ((20, 8, 8, 8), 1)):
        run = Run(draws=draws)
        seen = []
        run.model.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
        for x, y in run.loader:
            run.step(x, y)
        assert (len(seen) - len(draws)) % checks == 0 and (len(seen) > len(draws) + 3 * checks) and (checks > 1) == (len(seen) > 4 * len(draws))
