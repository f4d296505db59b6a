"""Keywords that a model's own forward names as packing does: they are its arguments, and are read like any other."""

import pytest
import torch
from private_run import prescribe
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ghostshard import PrivacyEngine


class Ratings(Dataset):
    """Of users: features, whose, and how much."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(4, generator=g), 3 * i % 5, torch.randn((), generator=g)


class OfUsers(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 4), nn.Linear(4, 1)

    def forward(self, x, user_ids):
        return self.layer(x + self.table(user_ids))[:, 0]


class OfUnits(nn.Module):
    """units: a shift, in the units of the features."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, units, max_length_q=1.0):
        return self.layer(torch.tanh(x + units) * max_length_q)[:, 0]


def train(model, arguments, draws=(5, 6, 0, 7), **options):
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(Ratings(), batch_size=6), grad_sample_mode="ghost", criterion=nn.MSELoss(), **options,
    )  # fmt: skip
    prescribe(loader, draws)
    steps = 0
    for _ in range(20):
        for x, user, y in loader:
            optimizer.zero_grad()
            criterion(module(x, **arguments(x, user)), y).backward()
            optimizer.step()
            steps += 1
    return steps


def test_a_batchs_own_are_taken():
    assert train(OfUsers(), lambda x, user: {"user_ids": user}) == 80
    assert train(OfUnits(), lambda x, user: {"units": x.flip(1)}) == 80
    assert train(OfUnits(), lambda x, user: {"units": torch.ones(4), "max_length_q": 0.5}) == 80


OTHERS = {
    "users of others": (OfUsers, lambda x, user: {"user_ids": user.roll(1)}),
    "a mean of the batch": (OfUnits, lambda x, user: {"units": x.mean(0)}),
    "rows of others": (OfUnits, lambda x, user: {"units": x.roll(1, 0)}),
    "a number of the batch": (OfUnits, lambda x, user: {"units": torch.ones(4), "max_length_q": float(x.sum())}),
}


@pytest.mark.parametrize("model, arguments", OTHERS.values(), ids=OTHERS)
def test_what_is_of_other_examples_is_refused(model, arguments):
    """Told by what the loop did, where nothing is exchanged to try it, too."""
    for options in ({}, {"attribution_check": False}):
        with pytest.raises((RuntimeError, ValueError), match="not known to be|must not depend on other examples"):
            train(model(), arguments, **options)
