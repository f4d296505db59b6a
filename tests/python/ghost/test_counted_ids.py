"""Ids that are 0, 1, 2, … in a draw, because examples are numbered so, are each example's own: they are no places that all share."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import BATCH, prescribe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

CLIP, N = 0.05, 40
MIXED = "must not depend on other examples"


class Beside(nn.Module):
    """A user's row of a table, beside inputs."""

    def __init__(self, of=lambda table, ids: table(ids)):
        super().__init__()
        self.table, self.inner, self.head, self.of = nn.Embedding(N, 8), nn.Linear(6, 8), nn.Linear(8, 3), of

    def forward(self, x, ids):
        return self.head((self.of(self.table, ids) + self.inner(x)).tanh())


class Alone(Beside):
    def forward(self, x, ids):
        return self.head(self.of(self.table, ids).tanh())


class Columns(Beside):
    """The first of two columns."""

    def forward(self, x, ids):
        return super().forward(x, torch.stack([ids, ids + 1], 1)[:, 0] if ids.dim() == 1 else ids[:, 0])


class Scale(nn.Module):
    """A layer without a rule, of as many numbers as the batch has rows."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, h, number):
        return h * self.scale + number[:, None].to(h.dtype)


class Unruled(Beside):
    def __init__(self):
        super().__init__()
        self.scale = Scale()

    def forward(self, x, ids):
        return self.head(self.scale(self.inner(x), ids).tanh())


def run_of(model, draws, ids):
    data = TensorDataset(torch.randn(N, 6, generator=torch.Generator().manual_seed(3)), ids, torch.arange(N) % 3)
    run = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=0.0, max_grad_norm=CLIP, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    prescribe(run[-1], draws)
    return data, *run


@pytest.mark.parametrize("draws", [(6, 3, 0, 5), (3, 6, 4), (6, 6), (1, 7)], ids=str)
@pytest.mark.parametrize("build", [Beside, Alone, Unruled, lambda: Columns()], ids=["beside", "alone", "no rule", "a column"])
def test_a_step_is_the_clipped_sum(build, draws):
    torch.manual_seed(1)
    model, ids = build(), torch.arange(N)
    if type(model) is Columns:
        ids = torch.stack([ids, torch.zeros_like(ids)], 1)
    data, module, optimizer, criterion, loader = run_of(model, draws, ids)
    for drawn, (x, number, y) in zip(draws, loader, strict=True):
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        criterion(module(x, number), y).backward()
        optimizer.step()
        if drawn:
            expected = oracle.clipped_sum(before, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), [tuple(each[:drawn] for each in data.tensors)], CLIP)
            found = {name: p.grad * BATCH for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}
            assert oracle.worst_difference(found, {name: expected[name] for name in found}) < SUM_TOLERANCE


LEAKS = {
    "rows of all": lambda table, ids: table(ids).detach().mean(0) + table(ids),
    "the row of the next": lambda table, ids: table(ids.roll(1)).detach() + table(ids),
    "a sum of the ids": lambda table, ids: table(ids) * (1 + ids.sum()),
}


@pytest.mark.parametrize("of", LEAKS.values(), ids=LEAKS)
def test_ids_of_others_are_seen(of):
    """0, 1, 2, … are exchanged as any other ids are."""
    torch.manual_seed(1)
    _, module, _, criterion, loader = run_of(Beside(of), (6,), torch.arange(N))
    x, number, y = next(iter(loader))
    with pytest.raises(RuntimeError, match=MIXED):
        criterion(module(x, number), y).backward()


def test_a_row_of_places_of_an_argument_is_no_column():
    """As many places as examples: the first example's are not each example's own."""

    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places, self.head = nn.Embedding(11, 8), nn.Embedding(9, 8), nn.Linear(8, 3)

        def forward(self, x, places):
            return self.head((self.tokens(x) + self.places(places[0])).tanh().mean(1))

    torch.manual_seed(1)
    model = Placed()
    data = TensorDataset(torch.randint(11, (N, 9)), torch.arange(9).repeat(N, 1), torch.arange(N) % 3)
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=BATCH), noise_multiplier=0.0,
        max_grad_norm=CLIP, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    prescribe(loader, (9, 7))
    for drawn, (x, places, y) in zip((9, 7), loader, strict=True):
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        criterion(module(x, places), y).backward()
        optimizer.step()
        expected = oracle.clipped_sum(before, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), [tuple(each[:drawn] for each in data.tensors)], CLIP)
        assert oracle.worst_difference({name: p.grad * BATCH for name, p in model.named_parameters()}, expected) < SUM_TOLERANCE
