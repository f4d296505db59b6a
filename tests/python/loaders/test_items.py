"""Items that follow from other items, or are other items' copies, are refused before anything is drawn."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from ghostshard.loaders import GhostDataLoader

N = 48


class Many(Dataset):
    """Asked for many items at once; `of` makes something of them."""

    def __init__(self, of, n=N):
        self.of, self.x = of, torch.randn(n, 6)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return self.__getitems__([at])[0]

    def __getitems__(self, places):
        return list(self.of(self.x[places]))


def own(x):
    return x * 2


def centred(x):
    return x - x.mean(0)


def mixed(x):
    return 0.5 * x + 0.5 * x.roll(1, 0)


def noisy(x):
    return x + torch.randn_like(x)


def loader_of(data):
    return GhostDataLoader(data, sample_rate=0.2)


@pytest.mark.parametrize("of", [centred, mixed])
def test_items_that_follow_from_others_are_refused(of):
    with pytest.raises(ValueError, match="the data set mixes its items"):
        loader_of(Many(of))


@pytest.mark.parametrize("of", [own, noisy])
def test_items_of_their_own_are_taken(of):
    data = Many(of)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    loader_of(data)
    assert torch.equal(torch.rand(3), expected)


class Repeats(Dataset):
    def __init__(self, place_of, times, kind=torch.randn):
        self.items, self.place_of, self.times = kind(N, 6), place_of, times

    def __len__(self):
        return self.times * N

    def __getitem__(self, at):
        return self.items[self.place_of(at)], 1


@pytest.mark.parametrize(
    "data",
    [
        Repeats(lambda at: at % N, 2), Repeats(lambda at: at % N, 3), Repeats(lambda at: at // 2, 2), TensorDataset(torch.randn(N, 3).repeat(2, 1)),
        [{"ids": [i, i + 1], "text": str(i)} for i in range(N)] * 2, [np.array([i, i * i]) for i in range(N)] * 4,
    ],
    ids=["modulo", "three times", "side by side", "a tensor twice", "a list twice", "arrays"],
)  # fmt: skip
def test_copies_are_refused(data):
    with pytest.raises(ValueError, match="holds its examples several times"):
        loader_of(data)


class Unknown:
    pass


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(torch.ones(N, 6)), TensorDataset(torch.arange(N) % 2), list(range(N)), [Unknown()] * N, TensorDataset(torch.randn(3, 2)),
        TensorDataset(torch.randn(N, 6), torch.randint(0, 3, (N,))),
    ],
    ids=["all alike", "few values", "numbers", "objects", "three", "usual"],
)  # fmt: skip
def test_other_data_are_taken(data):
    loader_of(data)
