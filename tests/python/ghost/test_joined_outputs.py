"""Outputs of several forwards that a loop joins before the criterion, in any order: each loss is of the example whose row it is of."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import BATCH, Run
from torch import nn
from torch.nn import functional as F

CLIP, DRAWS = 0.1, (4, 3, 0, 5, 1)
MIXED, DRAWN = "must not depend on other examples", "not known to be of the batch"


def model_of():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def one_after_another(a, b):
    return torch.cat([a, b])


def the_second_first(a, b):
    return torch.cat([b, a])


def in_turn(a, b):
    return torch.stack([b, a], 1).flatten(0, 1)


def turned(a, b):
    return torch.cat([b.flip(0), a])


ORDERS = (one_after_another, the_second_first, in_turn, turned)


def forwards(run, x):
    return run.module(x), run.module(2 * x)


def of_rows(run, x, y, order):
    """One loss for each row."""
    return run.criterion(order(*forwards(run, x)), order(y, y))


def own_losses(run, x, y, order):
    return run.criterion(F.cross_entropy(order(*forwards(run, x)), order(y, y), reduction="none"))


def alone(m, batch):
    return (F.cross_entropy(m(batch[0]), batch[1]) + F.cross_entropy(m(2 * batch[0]), batch[1])) / 2


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form, criterion", [(of_rows, nn.CrossEntropyLoss()), (own_losses, lambda losses: losses)], ids=["rows", "own losses"])
def test_each_loss_is_of_the_example_whose_row_it_is(form, criterion, order):
    run = Run(model=model_of(), draws=DRAWS, noise=0.0, criterion=criterion)
    for drawn, (x, y) in zip(DRAWS, run.loader, strict=True):
        before = copy.deepcopy(run.model)
        run.optimizer.zero_grad()
        form(run, x, y, order).backward()
        run.optimizer.step()
        found = {name: p.grad * BATCH for name, p in run.model.named_parameters()}
        if drawn:
            expected = oracle.clipped_sum(before, alone, [tuple(each[:drawn] for each in run.data.tensors)], CLIP)
            assert oracle.worst_difference(found, expected) < SUM_TOLERANCE


def halves(outputs, y):
    second, first = outputs.chunk(2)
    return F.cross_entropy(first, y, reduction="none") + F.cross_entropy(second, y, reduction="none")


def mean_of_all(outputs, y):
    return halves(outputs - outputs.detach().mean(0), y)


def mean_of_half(outputs, y):
    return halves(outputs, y) * (1 + outputs.detach()[: len(y)].square().mean())


def of_the_next(outputs, y):
    second, first = outputs.chunk(2)
    return F.cross_entropy(first - second.detach().roll(1, 0), y, reduction="none")


def counts(outputs, y):
    return halves(outputs, y) / len(outputs)


@pytest.mark.parametrize("criterion", [mean_of_all, mean_of_half, of_the_next, counts])
def test_a_criterion_that_mixes_joined_rows_is_refused(criterion):
    run = Run(model=model_of(), draws=DRAWS, criterion=criterion)
    x, y = next(iter(run.loader))
    with pytest.raises(RuntimeError, match=MIXED):
        run.criterion(the_second_first(*forwards(run, x)), y).backward()


def test_a_criterion_of_both_halves_is_taken():
    run = Run(model=model_of(), draws=DRAWS, criterion=halves)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.criterion(the_second_first(*forwards(run, x)), y).backward()
        run.optimizer.step()


@pytest.mark.parametrize("labels", [lambda y: torch.cat([y.flip(0), y]), lambda y: torch.cat([y, y.roll(1)])], ids=["turned", "of others"])
def test_labels_in_another_order_than_the_outputs_are_refused(labels):
    run = Run(model=model_of(), draws=DRAWS, criterion=nn.CrossEntropyLoss())
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match=f"{DRAWN}|one loss for each of the 4 units"):
        run.criterion(the_second_first(*forwards(run, x)), labels(y)).backward()


def test_so_are_those_that_a_criterion_averages():
    run = Run(model=model_of(), draws=DRAWS, criterion=lambda out, y: F.cross_entropy(out, y, reduction="none").view(2, -1).mean(0))
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match=DRAWN):
        run.criterion(the_second_first(*forwards(run, x)), torch.cat([y, y.roll(1)])).backward()


def test_outputs_of_which_some_examples_have_more_rows_are_refused():
    run = Run(model=model_of(), draws=DRAWS, criterion=nn.CrossEntropyLoss())
    x, y = next(iter(run.loader))
    a, b = forwards(run, x)
    with pytest.raises(ValueError, match="one loss for each of the 4 units"):
        run.criterion(torch.cat([b, a[:1]]), torch.cat([y, y[:1]])).backward()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 4)

    def forward(self, x):
        return self.inner(x.unflatten(1, (3, 2)))


def test_flattened_places_are_averaged_over_each_examples_own():
    """Without shape=, since the outputs are followed."""
    torch.manual_seed(2)
    run = Run(model=Tagger(), draws=DRAWS, noise=0.0, criterion=nn.CrossEntropyLoss(ignore_index=0))
    labels = lambda y: (y[:, None] + torch.arange(3)) % 4  # two places count, or three
    for drawn, (x, y) in zip(DRAWS, run.loader, strict=True):
        before = copy.deepcopy(run.model)
        run.optimizer.zero_grad()
        given = run.module(x).flatten(0, 1), labels(y).flatten()
        run.criterion(*given).backward()
        run.optimizer.step()
        if not drawn:
            continue
        of_one = lambda m, batch: F.cross_entropy(m(batch[0])[0], labels(batch[1])[0], ignore_index=0)
        expected = oracle.clipped_sum(before, of_one, [tuple(each[:drawn] for each in run.data.tensors)], CLIP)
        assert oracle.worst_difference({name: p.grad * BATCH for name, p in run.model.named_parameters()}, expected) < SUM_TOLERANCE
