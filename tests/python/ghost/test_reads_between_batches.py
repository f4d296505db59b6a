"""A draw in several batches, whose losses a loop reads between them: coins that come after that cannot be told from what was read."""

import random

import pytest
from private_run import Run
from torch import nn


def a_scale_by_coins(run, x, y, coins):
    return run.criterion(run.module(x * coins.uniform(0.5, 2)), y)


def a_turn_by_coins(run, x, y, coins):
    return run.criterion(run.module(x.flip(1) if coins.random() < 0.5 else x), y)


def a_weight_by_coins(run, x, y, coins):
    return coins.uniform(0.5, 2) * run.criterion(run.module(x), y)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("form", [a_scale_by_coins, a_turn_by_coins, a_weight_by_coins], ids=lambda form: form.__name__)
def test_coins_after_a_read_between_the_batches_of_a_draw(form, reads):
    """The sentence says where to read; a loop that does so is taken."""
    run, coins, kept = Run(accumulation_steps=2, criterion=nn.CrossEntropyLoss()), random.Random(3), []

    def steps():
        for i, (x, y) in enumerate(run.loader, 1):
            loss = form(run, x, y, coins)
            loss.backward()
            kept.append(loss.item() if reads else loss.detach())
            if i % 2 == 0:
                run.optimizer.step()
                run.optimizer.zero_grad()
                kept[:] = [float(each) for each in kept]

    if reads:
        with pytest.raises(ValueError, match=r"of a draw in several batches, read losses after the last one's backward \(keep loss.detach\(\)\)"):
            steps()
    else:
        steps()
        assert len(kept) == 10
