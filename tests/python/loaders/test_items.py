"""Items that follow from other items, or are other items' copies, are refused before anything is drawn, and before every later pass."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

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


def less_the_first(x):
    return x - x[0]


def summed_up(x):
    return x.cumsum(0)


@pytest.mark.parametrize("of", [centred, mixed, less_the_first, summed_up])
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


class Remembers(Dataset):
    """items: what it makes of an item and of what it keeps; what it keeps then."""

    def __init__(self, item, kept=0.0):
        self.x, self.item, self.kept, self.calls = torch.randn(N, 6), item, kept, 0

    def __len__(self):
        return N

    def __getitem__(self, at):
        self.calls += 1
        made, self.kept = self.item(self, self.x[at], at)
        return made


def less_the_running_mean(data, x, _):
    mean = 0.9 * data.kept + 0.1 * x
    return x - mean, mean


def beside_the_last(data, x, _):
    return 0.5 * (x + data.kept), x


def cached(data, x, at):
    data.kept = data.kept or {}
    return data.kept.setdefault(at, x * 2), data.kept


def opened_at_first(data, x, _):
    return x, data.kept or object()


def with_its_calls(data, x, _):
    return x[: 3 + data.calls % 2], None


@pytest.mark.parametrize("item", [less_the_running_mean, beside_the_last])
@pytest.mark.parametrize("within", [lambda data: data, lambda data: Subset(data, range(N))], ids=["itself", "a subset"])
def test_items_that_follow_from_those_before_are_refused(item, within):
    with pytest.raises(ValueError, match=r"__getitem__\(\) gave another item [0-9]+ after other ones"):
        loader_of(within(Remembers(item)))


@pytest.mark.parametrize("item", [cached, opened_at_first, with_its_calls])
def test_what_a_data_set_keeps_for_itself_stays(item):
    data = Remembers(item)
    kept = data.kept
    loader_of(data)
    assert data.calls == 0 and data.kept is kept


def test_random_items_are_taken():
    own = np.random.default_rng(3)
    loader_of(Remembers(lambda data, x, _: (x + own.normal(), None)))
    for within in (lambda data: data, lambda data: Subset(data, range(N))):
        loader_of(within(Remembers(lambda data, x, at: (x[: 1 + at % 5] + torch.rand(1 + at % 5), None))))


class Mines(Dataset):
    """A loop says which examples its items are of."""

    def __init__(self):
        self.x, self.order = torch.randn(N, 6), list(range(N))

    def __len__(self):
        return N

    def __getitem__(self, at):
        return self.x[self.order[at]]


@pytest.mark.parametrize(("order", "is_refused"), [([at // 4 for at in range(N)], True), (list(range(N))[::-1], False)], ids=["repeated", "reversed"])
def test_items_are_looked_at_before_every_pass(order, is_refused):
    data = Mines()
    loader = loader_of(data)
    list(loader)
    data.order = order
    with pytest.raises(ValueError, match="holds its examples several times|mixes its items") if is_refused else contextlib.nullcontext():
        list(loader)


class Partners(Dataset):
    """of: rows that an item is made of."""

    def __init__(self, of, kind=lambda x: x, n=N):
        self.x, self.of, self.n = kind(torch.randn(N, 6)), of, n

    def __len__(self):
        return self.n

    def __getitem__(self, at):
        return sum(torch.as_tensor(np.asarray(self.x[row])) for row in self.of(at))


KINDS = {
    "tensor": lambda x: x, "array": lambda x: x.numpy(), "list": lambda x: list(x.numpy()), "data set": lambda x: Mapped(x.numpy()),
}  # fmt: skip


class Mapped(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return self.x[at]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("within", [lambda data: data, lambda data: Subset(data, range(8))], ids=["itself", "a subset"])
def test_items_with_a_random_partner_are_refused(kind, within):
    data = Partners(lambda at: (at, random.randrange(N)), KINDS[kind])
    held = data.x
    with pytest.raises(ValueError, match="the data set mixes its items: of its 'x' item [0-9]+ takes row"):
        loader_of(within(data))
    assert data.x is held


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", [lambda at: (at,), lambda at: (N - 1 - at,), lambda at: (at, at)], ids=["its own", "another", "twice"])
def test_items_of_one_row_are_taken(of, kind):
    data = Partners(of, KINDS[kind])
    held = data.x
    loader_of(data)
    assert data.x is held


def test_items_of_several_rows_of_their_own_are_taken():
    loader_of(Partners(lambda at: range(4 * at, 4 * at + 4), n=N // 4))


class Picky(Dataset):
    """Does not work on anything else than a list."""

    def __init__(self):
        self.rows = [torch.randn(3) for _ in range(N)]

    def __len__(self):
        return N

    def __getitem__(self, at):
        assert type(self.rows) is list
        return self.rows[at]


def test_what_works_on_its_own_rows_alone_is_taken():
    loader_of(Picky())


class Gathers(Dataset):
    """way: of taking rows with these numbers."""

    def __init__(self, way):
        self.x, self.way = torch.randn(N, 6), way
        self.n = self.x.numpy().copy()

    def __len__(self):
        return N

    def __getitem__(self, at):
        return self.way(self, at, random.randrange(N))


MIXED_BY = {
    "a list": lambda d, i, j: d.x[[i, j]].mean(0), "a tensor": lambda d, i, j: d.x[torch.tensor([i, j])].mean(0),
    "a list, of an array": lambda d, i, j: torch.from_numpy(d.n[[i, j]].mean(0)), "an array": lambda d, i, j: torch.from_numpy(d.n[np.array([i, j])].mean(0)),
    "index_select": lambda d, i, j: d.x.index_select(0, torch.tensor([i, j])).mean(0),
    "index_select by names": lambda d, i, j: torch.index_select(d.x, dim=0, index=torch.tensor([i, j])).mean(0),
    "slices of one": lambda d, i, j: (d.x[i : i + 1] + d.x[j : j + 1])[0], "numbers and columns": lambda d, i, j: d.x[[i, j], :3].mean(0),
}  # fmt: skip
APART_BY = {
    "a list of one": lambda d, i, j: d.x[[i]][0], "columns first": lambda d, i, j: d.x[:, [0, 2]][i], "an order of all": lambda d, i, j: d.x[list(range(N))][i],
    "a mask": lambda d, i, j: d.x[torch.arange(N) == i][0], "columns of index_select": lambda d, i, j: d.x.index_select(1, torch.tensor([0, 2]))[i],
    "noise of its own": lambda d, i, j: d.x[i] + j,
}  # fmt: skip


@pytest.mark.parametrize("way", MIXED_BY.values(), ids=MIXED_BY)
def test_partners_are_seen_however_their_rows_are_taken(way):
    with pytest.raises(ValueError, match="mixes its items"):
        loader_of(Gathers(way))


def test_partners_are_seen_if_a_library_wraps_torchs_functions(monkeypatch):
    """As PyTorch Geometric does when it is imported."""
    of_torch = torch.index_select
    monkeypatch.setattr(torch, "index_select", lambda input, dim, index: of_torch(input, dim, index))
    with pytest.raises(ValueError, match="mixes its items"):
        loader_of(Gathers(MIXED_BY["index_select by names"]))


@pytest.mark.parametrize("way", APART_BY.values(), ids=APART_BY)
def test_a_row_alone_is_an_item_however_it_is_taken(way):
    assert list(loader_of(Gathers(way)))
