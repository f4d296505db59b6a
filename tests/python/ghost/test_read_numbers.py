"""Numbers that a loop reads from a batch, and what it may do with them."""

import copy
import pickle

import numpy as np
import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

from ghostshard.ghost.provenance import Read, ReadInt


def item(run, x, y):
    return y.float().mean().item() * run.criterion(run.module(x), y)


def a_share(run, x, y):
    return run.criterion(run.module(x), y) / (1 + (y == 0).sum().item() / 2)


def by_float(run, x, y):
    return float(x.mean()) * run.criterion(run.module(x), y)


def by_numpy(run, x, y):
    return run.criterion(run.module(x), y) * (1 + x.numpy().mean() ** 2)


def by_a_list(run, x, y):
    return run.criterion(run.module(x) * (1 + sum(map(int, map(str, y.tolist())))), y)


def a_tensor_of_it(run, x, y):
    return run.criterion(run.module(x) * torch.tensor(float(x.mean())), y)


def a_row_of_it(run, x, y):
    mean = torch.from_numpy(x.numpy().mean(0)[:3])
    return run.criterion(run.module(x) - mean, y)


def a_threshold(run, x, y):
    out = run.module(x)
    return run.criterion(out * (x[:, :1] > float(x[:, 0].mean())), y)


def a_branch(run, x, y):
    loss = run.criterion(run.module(x), y) if x.mean() > -9 else None
    run.draw = getattr(run, "draw", 0) + 1
    return loss * 2 if run.draw > 1 else loss


def its_own_value(run, x, y):
    loss = run.criterion(run.module(x), y)
    return loss / loss.item()


def its_own_value_as_a_float(run, x, y):
    loss = run.criterion(run.module(x), y)
    return loss / float(loss)


def its_own_value_detached(run, x, y):
    loss = run.criterion(run.module(x), y)
    return loss / loss.detach()


def its_losses_detached(run, x, y):
    loss = run.criterion(run.module(x), y)
    return type(loss)(run.module.engine, loss.loss_per_sample / loss.loss_per_sample.detach().mean())


def an_average_of_earlier_losses(run, x, y):
    loss = run.criterion(run.module(x), y)
    run.average = 0.9 * getattr(run, "average", 1.0) + 0.1 * loss.item()
    return loss * run.last if hasattr(run, "last") else loss


def weights_of_classes(run, x, y):
    run.criterion.criterion.weight = torch.tensor([1.0 + float(n) for n in np.bincount(y.numpy(), minlength=3)])
    return run.criterion(run.module(x), y)


def an_argument(run, x, y):
    return run.criterion(run.module(x, temperature=float(x.std())), y)


def columns_by_the_data(run, x, y):
    n = 3 + int(x.mean() * 1e6) % 3
    return run.criterion(run.module(F.pad(x[:, :n], (0, 6 - n))), y)


def how_many(run, x, y):
    return run.criterion(run.module(x), y) / len(x)


def how_many_of_the_expected(run, x, y):
    return run.criterion(run.module(x), y) * (8 / len(x))


def how_many_in_the_outputs(run, x, y):
    return run.criterion(run.module(x) * x.shape[0], y)


def how_many_of_a_class(run, x, y):
    return run.criterion(run.module(x), y) / (1 + len(y[y == 0]))


def how_many_kinds(run, x, y):
    return run.criterion(run.module(x), y) * x.round().unique().numel()


def how_many_places(run, x, y):
    return run.criterion(run.module(x) / (1 + (x > 0).nonzero().shape[0]), y)


def how_many_were_chosen(run, x, y):
    return run.criterion(run.module(x) / (1 + torch.where(x > 0)[0].size(0)), y)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, temperature=1.0):
        return self.layer(x) / temperature


REFUSED = (
    item, a_share, by_float, by_numpy, by_a_list, a_tensor_of_it, a_row_of_it, a_threshold, a_branch, its_own_value, its_own_value_as_a_float,
    its_own_value_detached, its_losses_detached, weights_of_classes, an_argument, columns_by_the_data, how_many, how_many_of_the_expected,
    how_many_in_the_outputs, how_many_of_a_class, how_many_kinds, how_many_places, how_many_were_chosen,
)  # fmt: skip


@pytest.mark.parametrize("form", REFUSED, ids=lambda form: form.__name__)
def test_a_number_of_the_batch_does_not_come_back(form):
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3)) if form is weights_of_classes else nn.CrossEntropyLoss()
    run = Run(model=Scaled(), criterion=criterion, attribution_check=False)
    order, done = torch.randperm(40), 0
    run.data.tensors = tuple(each[order] for each in run.data.tensors)
    with pytest.raises(ValueError, match="is not known to be of the batch"):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            form(run, x, y).backward()
            run.optimizer.step()
            done += 1
            run.data.tensors = tuple(each.roll(5, 0) for each in run.data.tensors)
    assert run.charged == done <= 2


def test_numbers_are_known_after_arithmetic_in_later_draws():
    run, average = Run(), 1.0
    with pytest.raises(ValueError, match="met a number that was read"):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            loss = run.criterion(run.module(x), y) / average
            loss.backward()
            run.optimizer.step()
            average = 0.9 * average + 0.1 * loss.item()
    assert run.charged == 1


@pytest.mark.parametrize("name", ["lr", "max_grad_norm", "noise_multiplier"])
def test_the_optimizer_does_not_follow_the_loss(name):
    run = Run()
    x, y = next(iter(run.loader))
    loss = run.criterion(run.module(x), y)
    if name == "lr":
        run.optimizer.param_groups[0]["lr"] = 0.1 * loss.item()
    else:
        setattr(run.optimizer, name, 1 + loss.item())
    with pytest.raises(ValueError, match=f"optimizer's {name} was read from a private batch"):
        loss.backward()
        run.optimizer.step()
    assert run.charged <= 1 and not [p for p in run.model.parameters() if p.grad is not None]


# What loops read -------------------------------------------------------------------------------------------------------


def metrics_before_the_backward(run, x, y):
    """As Opacus' tutorials have it."""
    output = run.module(x)
    loss = run.criterion(output, y)
    predicted = np.argmax(output.detach().cpu().numpy(), axis=1)
    run.seen = (predicted == y.detach().cpu().numpy()).mean(), loss.item(), f"{loss:.3f}", f"{y.float().mean():.2f}"
    return loss


def metrics_before_the_criterion(run, x, y):
    output = run.module(x)
    run.seen = (output.argmax(1) == y).float().mean().item(), output.detach().norm().item()
    return 0.5 * run.criterion(output, y)


def asserted(run, x, y):
    assert torch.isfinite(x).all() and bool((y >= 0).all()) and x.abs().max() < 1e3
    return run.criterion(run.module((x - 0.5) / 2.0), y)


def annealed(run, x, y):
    run.weight = getattr(run, "weight", 1.0) * 0.9
    loss = run.weight * run.criterion(run.module(x), y)
    run.seen = loss.item()
    return loss


def averaged(run, x, y):
    loss = run.criterion(run.module(x), y)
    run.average = 0.9 * getattr(run, "average", 0.0) + 0.1 * loss.item()
    run.total = getattr(run, "total", 0.0) + loss.detach()
    return loss


def without_padding(run, x, y):
    padded = F.pad(x, (0, 3 + len(x) % 3))
    longest = int((padded != 0).sum(1).max())
    return run.criterion(run.module(padded[:, :longest]), y)


def one_after_another(run, x, y):
    assert y.max().item() < 3
    return run.criterion(run.module(torch.stack([x[i] * 2.0 for i in range(len(x))])), y)


def through_numpy(run, x, y):
    assert x.numpy().shape[1] == 6
    return run.criterion(run.module(torch.from_numpy(x.numpy().copy())), torch.tensor(y.tolist()))


def kept(run, x, y):
    run.seen = copy.deepcopy(x), pickle.loads(pickle.dumps(x)), str(y), x.tolist()
    return run.criterion(run.module(x), y)


TAKEN = (metrics_before_the_backward, metrics_before_the_criterion, asserted, annealed, averaged, without_padding, one_after_another, through_numpy, kept)


@pytest.mark.parametrize("form", TAKEN, ids=lambda form: form.__name__)
def test_numbers_are_read_for_people(form):
    run = Run(draws=(5, 7, 9, 8, 6))
    for x, y in run.loader:
        run.optimizer.zero_grad()
        form(run, x, y).backward()
        run.optimizer.step()
        run.data.tensors = tuple(each.roll(3, 0) for each in run.data.tensors)
    assert run.charged == 5


def test_what_was_read_is_a_number():
    run = Run()
    x, y = next(iter(run.loader))
    mean, most = x.mean().item(), y.max().item()
    assert isinstance(mean, float) and isinstance(most, int)
    for value in (mean + 1, 1 - mean, mean * 2.0, most / 2, most + 0.5, -mean, abs(mean), 2**most, round(mean, 2), mean % 3, most // 2, divmod(most, 2)[0]):
        assert isinstance(value, (int, float))
    assert type(mean + 1) is Read and type(2 * mean) is Read and type(most + 1) is ReadInt and type(most / 2) is Read
    assert type(pickle.loads(pickle.dumps(mean))) is float and type(pickle.loads(pickle.dumps(most))) is int
    assert [1, 2, 3][most - most] == 1 and {most: 1}[int(most)] == 1 and f"{mean:.1f}" == f"{float(mean):.1f}"
    assert [type(each) for each in y.tolist()] == [ReadInt] * len(y)


# Where nothing tells a constant from a row of another example -------------------------------------------------------------


def others(run):
    run.data.tensors = tuple(each.roll(7, 0) for each in run.data.tensors)
    return run.data[20:21]


ALONE = {
    "inputs": lambda run, x, y: run.criterion(run.module(x + others(run)[0]), y),
    "outputs": lambda run, x, y: run.criterion(run.module(x) + others(run)[0][:, :3], y),
    "labels": lambda run, x, y: run.criterion(run.module(x), others(run)[1] * 0 + others(run)[0][:, 0].argsort()),
    "targets": lambda run, x, y: run.criterion(run.module(x), others(run)[0][:, :3].softmax(1)),
    "weights": lambda run, x, y: run.criterion(run.module(x), y) * others(run)[0][:, 0],
    "beside": lambda run, x, y: run.criterion(run.module(x, others(run)[0][:, :3].abs() + 1), y),
}


@pytest.mark.parametrize("form", [each for name, each in ALONE.items() if name != "labels"], ids=[name for name in ALONE if name != "labels"])
def test_values_of_others_in_a_batch_of_one(form):
    run, done = Run(model=Scaled(), draws=(1,) * 5, attribution_check=False), 0
    with pytest.raises(ValueError, match="is not known to be of the batch"):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            form(run, x, y).backward()
            run.optimizer.step()
            done += 1
    assert done <= 1


def test_a_batch_of_one_takes_constants():
    run = Run(model=Scaled(), draws=(1, 3, 1, 0, 1))
    mean = torch.arange(6.0)[None]
    for x, y in run.loader:
        run.optimizer.zero_grad()
        out = run.module((x - mean) / 2.0, torch.full((1, 3), 2.0))
        run.criterion(out + torch.tensor([0.1, 0.2, 0.3]), torch.ones_like(y)).backward()
        run.optimizer.step()
    assert run.charged == 5


def test_others_after_a_function_that_is_not_followed():
    unknown = lambda rows, other: nn.functional.bilinear(rows, other.expand(len(rows), 3), torch.ones(3, 3, 3))
    run, done = Run(attribution_check=False), 0
    with pytest.raises(ValueError, match="is not known to be of the batch"):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            out = unknown(run.module(x), torch.eye(3)[:1])
            run.criterion(unknown(out, others(run)[0][:, :3]), y).backward()
            run.optimizer.step()
            done += 1
    assert done <= 1


class Summed(nn.Module):
    """Gives a statistic of the batch beside its rows, and a table."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        out = self.layer(x)
        return out, out.mean(), out.mean(0), torch.eye(3)


@pytest.mark.parametrize("which", [1, 2])
def test_what_the_model_gives_for_all_examples_is_no_constant(which):
    run = Run(model=Summed(), attribution_check=False)
    x, y = next(iter(run.loader))
    out = run.module(x)
    with pytest.raises(ValueError, match="the model gave it for all examples together"):
        run.criterion(out[0] - out[which].detach(), y).backward()


def test_tables_of_the_model_are_constants():
    run = Run(model=Summed())
    for x, y in run.loader:
        run.optimizer.zero_grad()
        out, _, _, table = run.module(x)
        run.criterion(out @ table, y).backward()
        run.optimizer.step()
    assert run.charged == 5


@pytest.mark.parametrize("form", [how_many, lambda run, x, y: run.criterion(run.module(x), y) / torch.tensor(float(len(x)))], ids=["a number", "a tensor"])
def test_a_division_by_how_many_there_are_is_named(form):
    run = Run(draws=(5, 3, 6, 4))  # of which one is as many as the columns
    with pytest.raises(ValueError, match="goes with how many examples were drawn. Leave a division by it out"):
        for x, y in run.loader:
            form(run, x, y).backward()
            run.optimizer.step()
