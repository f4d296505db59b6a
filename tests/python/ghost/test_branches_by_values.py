"""Losses that a loop chooses by values of the draw at hand, among tensors and losses that were made before or on lines that one branch alone reaches: one
example would choose for all others. Counters and coins may choose, and numbers may be read for people."""

import math
import random

import numpy as np
import pytest
import torch
from private_run import Run
from torch.nn import functional as F

REFUSED = "the loss is not known to be .* it was formed in another way than in an earlier draw"


def draws(*, passes=3, **options):
    """A run of draws of the same units, whose values change from draw to draw."""
    run = Run(draws=(8,) * 16, **options)
    torch.manual_seed(3)
    random.seed(3)

    def turn(loss):
        step = 0
        for _ in range(passes):
            for x, y in run.loader:
                run.optimizer.zero_grad()
                loss(run, x, y, step).backward()
                run.optimizer.step()
                run.data.tensors[0].copy_(torch.randn(40, 6) + torch.randn(()))
                run.data.tensors[1].copy_(torch.randint(0, random.choice([2, 3]), (40,)))
                step += 1

    return run, turn


# Branches ----------------------------------------------------------------------------------------------------------------


def larger(run, x, y, step):
    return max(run.criterion(run.module(x), y), run.criterion(run.module(-x), y))


def larger_by_key(run, x, y, step):
    out = run.module(x)
    return max(run.criterion(out, y), run.criterion(-out, y), key=lambda loss: loss.item())


def least_of_three(run, x, y, step):
    out = run.module(x)
    return sorted([run.criterion(out, y), run.criterion(-out, y), run.criterion(out * out, y)])[0]


def with_a_class(run, x, y, step):
    out = run.module(x)
    loss = run.criterion(out, y)
    if (y == 2).any():
        loss = loss + run.criterion(-out, y)
    return loss


def none_if_large(run, x, y, step):
    loss = run.criterion(run.module(x), y)
    return loss - loss if loss.item() > 1.3 else loss


def scaled_if_large(run, x, y, step):
    loss = run.criterion(run.module(x), y)
    if 1.3 < loss:
        loss = loss * 0.0
    return loss


def made_before(run, x, y, step):
    weak, strong = x * 1.0, -x
    return run.criterion(run.module(strong if x.mean() > 0 else weak), y)


def outputs_before(run, x, y, step):
    out, other = run.module(x), run.module(-x)
    return run.criterion(out if x.mean() > 0 else other, y)


def targets(run, x, y, step):
    turned = (2 - y).clamp(min=0)
    return run.criterion(run.module(x), turned if x.mean() > 0 else y)


def by_the_draw_before(run, x, y, step):
    before = getattr(run, "before", 9.0)
    loss = run.criterion(run.module(x) if before > 1.3 else run.module(-x), y)
    run.before = loss.item()
    return loss


def without_a_trace(run, x, y, step):
    loss = run.criterion(run.module(x), y)
    return loss - loss if float(loss) > 1.3 else loss


BRANCHES = [larger, larger_by_key, least_of_three, with_a_class, none_if_large, scaled_if_large, made_before, outputs_before, targets, by_the_draw_before, without_a_trace]


@pytest.mark.parametrize("loss", BRANCHES, ids=lambda each: each.__name__)
def test_a_loss_is_not_chosen_by_values_of_its_draw(loss):
    run, turn = draws()
    with pytest.raises(ValueError, match=f"{REFUSED}|met a constant that"):
        turn(loss)
    assert run.charged < 24


# Neighbours --------------------------------------------------------------------------------------------------------------


def shown(run, x, y, step):
    loss = run.criterion(run.module(x), y)
    if step % 10 == 0:
        assert f"{loss:.3f}" and f"{loss.item():.3f}" and str(loss)
    return loss


def best_so_far(run, x, y, step):
    out = run.module(x)
    loss = run.criterion(out, y)
    run.best = min(getattr(run, "best", math.inf), loss.item())
    if loss < run.best:
        run.at = step
    run.seen = (out.argmax(1) == y).float().mean().item(), np.mean(out.detach().numpy()), float(loss)
    return loss


def metrics_if_better(run, x, y, step):
    """Only what goes backward counts."""
    out = run.module(x)
    loss = run.criterion(out, y)
    if loss.item() < 1.2:
        run.seen = (out.softmax(1).max(1).values > 0.5).float().mean().item()
    return loss


def looked_at_first(run, x, y, step):
    assert torch.isfinite(x).all()
    loss = run.criterion(run.module(x), y)
    if not torch.isfinite(loss) or loss.item() > 1e6:
        raise RuntimeError("diverged")
    return loss


def phases(run, x, y, step):
    """Of another loss, also if values were looked at before."""
    assert torch.isfinite(x).all()
    out = run.module(x)
    run.best = min(getattr(run, "best", math.inf), out.detach().abs().max().item())
    loss = run.criterion(out, y)
    return loss + loss if step >= 20 else loss


def in_turn(run, x, y, step):
    out = run.module(x)
    run.seen = float(out.detach().mean())
    loss = run.criterion(out, y)
    if step % 4 == 0:
        loss = loss + run.criterion(-out, y)
    return loss


def by_coins(run, x, y, step):
    x = x.flip(1) if random.random() < 0.5 else x
    out = run.module(x)
    loss = run.criterion(out, y)
    if random.random() < 0.3:
        loss = loss + run.criterion(-out, y)
    if loss.item() < getattr(run, "best", math.inf):
        run.best = loss.item()
    return loss


def by_coins_after_a_look(run, x, y, step):
    out = run.module(x)
    run.seen = (out.argmax(1) == y).float().mean().item()
    loss = run.criterion(out, y)
    return loss + run.criterion(-out, y) if random.random() < 0.3 else loss


def row_by_row(run, x, y, step):
    rows = torch.stack([row * 0.5 if row.sum() > 0 else row for row in x])
    out = run.module(rows)
    loss = run.criterion(out, y)
    return loss + loss if step >= 20 else loss


def evaluated(run, x, y, step):
    if step % 8 == 0:
        with torch.no_grad():
            run.seen = F.cross_entropy(run.model(torch.ones(4, 6)), torch.zeros(4, dtype=torch.long)).item()
            if (run.module(x).argmax(1) == y).float().mean() > 0.5:
                run.at = step
    return run.criterion(run.module(x), y)


NEIGHBOURS = [shown, best_so_far, metrics_if_better, looked_at_first, phases, in_turn, by_coins, by_coins_after_a_look, row_by_row, evaluated]


@pytest.mark.parametrize("loss", NEIGHBOURS, ids=lambda each: each.__name__)
def test_counters_coins_and_numbers_for_people_are_taken(loss):
    run, turn = draws()
    turn(loss)
    assert run.charged == 48


@pytest.mark.parametrize("draw", [(8, 0, 1, 7, 8, 6) * 3])
def test_draws_of_none_and_of_one_have_ways_of_their_own(draw):
    run = Run(draws=draw)
    best = math.inf
    for _ in range(3):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            loss = run.criterion(run.module(x * 2.0), y)
            if len(x) and loss < best:
                best = loss.item()
            loss.backward()
            run.optimizer.step()
    assert run.charged == 54


def test_batches_of_one_draw_are_taken_each_by_itself():
    run = Run(accumulation_steps=2)
    for step, (x, y) in enumerate(run.loader):
        loss = run.criterion(run.module(x), y)
        if step % 4 >= 2:
            loss = loss + run.criterion(run.module(x), y)
        loss.backward()
        assert len(x) == 0 or loss < 1e6
        if step % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert run.charged == 5
