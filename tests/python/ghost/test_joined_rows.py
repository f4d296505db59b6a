"""Rows of one example that stand apart in the batch (crops, turns, windows) are joined by units=, exactly, in every kind of layer."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import BATCH, Run, prescribe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from ghostshard import PrivacyEngine

CLIP = 0.05  # below the norms


class Scaled(nn.Module):
    """A layer without a rule."""

    def __init__(self):
        super().__init__()
        self.scales, self.inner = nn.Parameter(torch.rand(5)), nn.Linear(5, 5)

    def forward(self, x):
        return self.inner(x * self.scales).tanh()


class Looked(nn.Module):
    """Ids, and places that all rows share."""

    def __init__(self):
        super().__init__()
        self.table, self.places, self.head = nn.Embedding(7, 5), nn.Embedding(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head((self.table(x) + self.places(torch.arange(4))).tanh().mean(1))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Flat(nn.Module):
    """Its layers get rows of rows."""

    def __init__(self):
        super().__init__()
        self.one, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = torch.tanh(self.one(x)).reshape(-1, 6)
        return self.head(h).view(*x.shape[:2], 3).mean(1)


def head(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 3))


# name: (a row's extents, the model)
MODELS = {
    "vectors": ((6,), lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))),
    "pictures, few places": ((2, 5, 5), lambda: nn.Sequential(nn.Conv2d(2, 24, 4), nn.ReLU(), head(96))),
    "pictures, many places": ((2, 9, 9), lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(3), head(36))),
    "groups": ((4, 7, 7), lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.ReLU(), head(100))),
    "sound": ((2, 20), lambda: nn.Sequential(nn.Conv1d(2, 4, 5, stride=2), nn.ReLU(), head(32))),
    "films": ((1, 3, 4, 4), lambda: nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), head(54))),
    "ids": ((4,), Looked),
    "sequences": ((4, 5), Last),
    "sequences, flattened within": ((4, 5), Flat),
    "a layer without a rule": ((5,), lambda: nn.Sequential(Scaled(), nn.Linear(5, 3))),
    "places of a sequence": ((4, 5), lambda: nn.Sequential(Scaled(), nn.Flatten(), nn.Linear(20, 3))),
}  # fmt: skip


class Items(Dataset):
    """An item is a few rows, not as many for each, and a class."""

    def __init__(self, extents, ids):
        torch.manual_seed(4)
        rows = lambda k: torch.randint(7, (k, *extents)) if ids else torch.randn(k, *extents)
        self.items = [(rows(1 + i % 4), i % 3) for i in range(40)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def flattened(items):
    counts = torch.tensor([len(x) for x, _ in items])
    of_row = torch.arange(len(items)).repeat_interleave(counts)
    return torch.cat([x for x, _ in items]), torch.tensor([y for _, y in items])[of_row], of_row


def private(name, **options):
    extents, build = MODELS[name]
    data = Items(extents, name == "ids")
    torch.manual_seed(7)
    model = build()
    engine = PrivacyEngine(accountant="rdp")
    loader = DataLoader(data, batch_size=BATCH, collate_fn=flattened)
    run = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=0.0, max_grad_norm=CLIP,
        grad_sample_mode="ghost", **options,
    )  # fmt: skip
    prescribe(run[-1], (9, 7))
    return engine, model, data, *run


def of_examples(model, items):
    loss = lambda m, batch: F.cross_entropy(m(batch[0][0]), batch[1].expand(len(batch[0][0])))
    total = {}
    for x, y in items:
        for key, value in oracle.clipped_sum(model, loss, [(x[None], torch.tensor([y]))], CLIP).items():
            total[key] = total.get(key, 0) + value
    return total


@pytest.mark.parametrize("order", ["together", "shuffled"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_the_clipped_sum_over_examples(name, order):
    """Each example's loss is the mean over its rows, in float64, one example at a time."""
    engine, model, data, module, optimizer, criterion, loader = private(name)
    for x, y, units in loader:
        drawn = int(units.max()) + 1
        expected = of_examples(model, data.items[:drawn])
        places = torch.arange(len(x)) if order == "together" else torch.randperm(len(x))
        optimizer.zero_grad()
        criterion(module(x[places], units=units[places]), y[places]).backward()
        optimizer.pre_step()
        found = {name: p.grad * BATCH for name, p in model.named_parameters()}
        assert oracle.worst_difference(found, expected) < SUM_TOLERANCE
        optimizer.original_optimizer.step()
    assert engine.accountant.history[0][2] == 2


@pytest.mark.parametrize("loss", ["of tokens", "of flattened tokens"])
def test_losses_of_tokens_are_averaged_over_an_examples_rows(loss):
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    run = Run(model=model, own_batches=True, noise=0.0)
    x, y, units = torch.randn(6, 4, 5), torch.randint(0, 3, (6, 4)), torch.tensor([0, 1, 0, 2, 2, 2])
    twin = copy.deepcopy(model)
    expected = {}
    for u in range(3):
        one = oracle.clipped_sum(
            twin, lambda m, b: F.cross_entropy(m(b[0][0]).flatten(0, 1), b[1][0].flatten()), [(x[units == u][None], y[units == u][None])], 0.1
        )
        expected = {name: expected.get(name, 0) + value for name, value in one.items()}
    out = run.module(x, units=units)
    given = (out.flatten(0, 1), y.flatten()) if loss == "of flattened tokens" else (out.transpose(1, 2), y)
    run.criterion(*given).backward()
    run.optimizer.step()
    assert oracle.worst_difference({name: p.grad * BATCH for name, p in model.named_parameters()}, expected) < SUM_TOLERANCE


class Averaging(nn.Module):
    """Rows meet: of all examples, or as many as there are."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(6, 3), how

    def forward(self, x):
        return self.layer(self.how(x))


@pytest.mark.parametrize("how", [lambda x: x - x.detach().mean(0), lambda x: x / len(x)], ids=["mean", "count"])
def test_rows_of_other_examples_are_seen(how):
    run = Run(model=Averaging(how), own_batches=True)
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        run.criterion(run.module(torch.randn(6, 6), units=torch.tensor([0, 0, 1, 1, 2, 2])), torch.zeros(6, dtype=torch.long)).backward()


def test_a_draw_with_as_many_examples_as_a_row_has_values_is_taken():
    """Extents that are alike by chance do not make columns of rows."""
    engine, model, data, module, optimizer, criterion, loader = private("vectors")
    prescribe(loader, (9, 6, 0, 1))
    for x, y, units in loader:
        optimizer.zero_grad()
        criterion(module(x, units=units), y).backward()
        optimizer.step()
    assert engine.accountant.history[0][2] == 4


def test_rows_that_are_joined_with_another_examples_are_refused():
    engine, model, data, module, optimizer, criterion, loader = private("vectors")
    x, y, units = next(iter(loader))
    with pytest.raises(ValueError, match="over 5 units, but the private loader's batch has 9|units= is not known"):
        criterion(module(x, units=units // 2), y).backward()
