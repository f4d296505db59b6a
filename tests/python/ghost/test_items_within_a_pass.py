"""A data set that is set otherwise while a pass goes on is looked at again: mixing that is switched on, examples that are taken several times."""

from collections import UserDict
from contextlib import nullcontext

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private_run import Run as Private
from test_deals_of_bins import N, Numbered, Run
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from ghostshard.loaders import items_again

MIXES, TWICE = "the data set mixes its items", "the data set holds"


class Ordered(Numbered):
    """A loop may set in which order its items stand, and whether they are mixed."""

    def __init__(self):
        super().__init__()
        self.order, self.mixup, self.settings = list(range(N)), False, {"mixup": False}

    def __getitem__(self, i):
        x, y = super().__getitem__(self.order[i])
        return (x + self.x[(i + 1) % N] if self.mixup or self.settings["mixup"] else x), y


def chosen() -> Subset:
    return Subset(Numbered(), list(range(N)))


def copied() -> TensorDataset:
    torch.manual_seed(5)
    return TensorDataset(torch.randn(N, 6), torch.randint(0, 3, (N,)))


def joined() -> ConcatDataset:
    data = Numbered()
    return ConcatDataset([Subset(data, range(N // 2)), Subset(data, range(N // 2, N))])


def halves_alike(data) -> None:
    for values in data.tensors:
        values[N // 2 :] = values[: N // 2]


CHANGES = {
    "hard_examples": (chosen, lambda data: setattr(data, "indices", [0, 1] * (N // 2)), TWICE),
    "in_its_list": (chosen, lambda data: data.indices.__setitem__(7, 3), TWICE),
    "one_part_twice": (joined, lambda data: data.datasets.__setitem__(1, data.datasets[0]), TWICE),
    "of_its_own": (Ordered, lambda data: setattr(data, "order", [3] * N), MIXES),
    "a_flag": (Ordered, lambda data: setattr(data, "mixup", True), MIXES),
    "a_dict": (Ordered, lambda data: data.settings.update(mixup=True), MIXES),
    "its_tensors": (copied, halves_alike, TWICE),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_that_joins_items_is_refused_at_the_next_batch(case):
    make, change, said = CHANGES[case]
    data = make()
    run = Private(data=data)
    batches = iter(run.loader)
    for _ in range(2):
        run.step(*next(batches))
    change(data)
    with pytest.raises(ValueError, match=said):
        next(batches)
    assert run.charged == 2


def test_examples_that_are_chosen_anew_all_the_time_are_looked_at_each_time():
    data = chosen()
    run = Private(data=data, draws=(8,) * 9)
    with pytest.raises(ValueError, match=TWICE):
        for step, (x, y) in enumerate(run.loader):
            run.step(x, y)
            data.indices = [*range(step, N), *range(step)] if step < 6 else [0, 1] * (N // 2)
    assert run.charged == 7


class MixesLater(Numbered):
    """By itself, in the process that makes the items."""

    made = 0

    def __getitem__(self, i):
        self.made += 1
        self.mixup = self.made > 20
        x, y = super().__getitem__(i)
        return (x + self.x[(i + 1) % N] if self.mixup else x), y


def test_items_of_a_worker_are_looked_at_there():
    run = Private(data=MixesLater(), workers=1)
    with pytest.raises(ValueError, match=MIXES):
        for x, y in run.loader:
            run.step(x, y)


@pytest.mark.parametrize("options", [{}, {"sampling": None, "noise_bands": 5}, {"sampling": None, "noise_chain": 5}], ids=["bins", "bands", "chain"])
def test_an_example_stays_at_its_index_where_draws_depend_on_each_other(options):
    """Or it would be in two steps of a pass that was charged for one."""
    data = Ordered()
    run = Run(data_loader=DataLoader(data, batch_size=8), **options).begin()
    with pytest.raises(ValueError, match="are not what they were when this pass began"):
        for x, y in run.loader:
            run.step(x, y)
            data.order = data.order[1:] + data.order[:1]


ORDERS = [[*range(first, N), *range(first)] for first in range(5)]


@pytest.mark.parametrize("managed", [False, True], ids=["loader", "manager"])
@pytest.mark.parametrize("passes", [[(0, 1)], [(0, 0), (1, 0)], [(0, 0), (1, 1), (2, 2), (3, 4)]], ids=["first_pass", "back_to_the_first", "after_several"])
def test_an_order_that_stood_in_a_pass_before_is_another_one_now(passes, managed):
    """Between passes of balls-in-bins it may change, so neither an order that is known, nor the fourth one, may come in the midst of one."""
    data = Ordered()
    run = Run(data_loader=DataLoader(data, batch_size=8)).begin()
    for at_first, later in passes:
        data.order = ORDERS[at_first]
        refused = pytest.raises(ValueError, match="are not what they were when this pass began") if later != at_first else nullcontext()
        manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) if managed else nullcontext(run.loader)
        with refused, manager as loader:
            for number, (x, y) in enumerate(loader):
                run.step(x, y)
                if number == 1:
                    data.order = ORDERS[later]


def test_by_poisson_sampling_it_may_go_over_to_another():
    data = Ordered()
    run = Run(sampling=None, data_loader=DataLoader(data, batch_size=8)).begin()
    for x, y in run.loader:
        run.step(x, y)
        data.order = data.order[1:] + data.order[:1]


class Counts(Dataset):
    """Counters, names, caches and a curriculum: what data sets keep of their items."""

    def __init__(self):
        self.data, self.made, self.name, self.cache, self.all, self.strength = Numbered(), 0, "", {}, [None] * N, 0.0

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.made, self.name = self.made + 1, f"item {i}"
        if i not in self.cache:
            self.cache[i] = self.all[i] = self.data[i]
        x, y = self.cache[i]
        return x + self.strength * torch.randn(6), y


def test_what_a_data_set_keeps_of_its_items_is_no_reason_to_look_for_ever(monkeypatch):
    data, looks = Counts(), []
    run = Private(data=data)
    look = items_again.refuse_mixed_or_repeated
    monkeypatch.setattr(items_again, "refuse_mixed_or_repeated", lambda each: (looks.append(1), look(each)))
    for _ in range(4):
        for x, y in run.loader:
            run.step(x, y)
            data.strength += 0.01
    assert run.charged == 20
    assert len(looks) <= 3


class Opened(UserDict):
    """An archive whose entries are read from its file."""

    def __getitem__(self, key):
        raise AssertionError(f"{key} was read, and no item needs it")


def test_archives_are_not_read_for_it_and_tensors_without_versions_are_taken():
    data = Numbered()
    data.archive = Opened()
    data.archive.data = {"notes": 1}
    with torch.inference_mode():
        data.means = torch.ones(6)
    run = Private(data=data)
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 5
