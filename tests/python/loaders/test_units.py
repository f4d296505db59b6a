"""Each index of a data set is a unit, so no example may have two."""

import pytest
from drawing import DATA
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

from ghostshard.loaders import GhostDataLoader
from ghostshard.loaders.units import refuse_repeated

OTHER = TensorDataset(*(each + 100 for each in DATA.tensors))


class Turned(Dataset):
    """Makes each of its items of one of `data`, or takes `count` of them."""

    def __init__(self, data, count=None):
        self.data, self.count = data, len(data) if count is None else count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        return [-each for each in self.data[at]]



REPEATED = {
    "indices": Subset(DATA, [0, 1, 2, 3, 1]), "negative": Subset(DATA, [0, 11, -1]), "twice": ConcatDataset([DATA, DATA]),
    "overlapping": ConcatDataset([Subset(DATA, [0, 1, 2]), Subset(DATA, range(2, 6))]), "a part beside all": ConcatDataset([DATA, OTHER, Subset(DATA, [7])]),
    "a subset of a concatenation": Subset(ConcatDataset([DATA, Subset(DATA, [5, 6])]), [5, 12]), "nested": Subset(Subset(DATA, [3, 3, 4]), [0, 1]),
    "augmented": ConcatDataset([DATA, Turned(DATA)]), "augmented twice": ConcatDataset([Turned(Turned(DATA)), Subset(Turned(DATA), [3])]),
}  # fmt: skip
ONCE = {
    "some": Subset(DATA, [5, 0, 3]), "split": random_split(DATA, [5, 7])[0], "two sets": ConcatDataset([DATA, OTHER]),
    "parts": ConcatDataset(random_split(DATA, [4, 8])), "nested": Subset(Subset(DATA, [3, 3, 4]), [0, 2]), "a part": Subset(ConcatDataset([DATA, DATA]), range(12)),
    "of a concatenation": Subset(ConcatDataset([DATA, Subset(DATA, [5, 6])]), [4, 12, 13]),
    "augmented": Turned(DATA), "augmented parts": ConcatDataset([Subset(Turned(DATA), [0, 1]), Turned(Subset(DATA, [2, 3, 4]))]),
    "of its own choice": ConcatDataset([Turned(DATA, 5), OTHER]),
}  # fmt: skip


@pytest.mark.parametrize("dataset", REPEATED.values(), ids=REPEATED)
def test_an_example_at_two_indices_is_refused(dataset):
    with pytest.raises(ValueError, match="holds example [0-9]+ at 2 indices"):
        GhostDataLoader.from_data_loader(DataLoader(dataset, batch_size=2))


class Endless:
    def __len__(self):
        return 10**12

    def __getitem__(self, i):
        return i


def test_the_indices_of_a_whole_data_set_are_not_counted():
    """They would take terabytes."""
    refuse_repeated(Endless())
    refuse_repeated(ConcatDataset([Endless(), DATA]))


@pytest.mark.parametrize("dataset", ONCE.values(), ids=ONCE)
def test_each_example_at_one_index_is_taken(dataset):
    assert len(GhostDataLoader.from_data_loader(DataLoader(dataset, batch_size=2)).dataset) == len(dataset)


@pytest.mark.parametrize("in_place", [False, True])
def test_indices_that_become_another_examples_twice_are_refused_at_the_next_pass(in_place):
    chosen = Subset(DATA, list(range(12)))
    loader = GhostDataLoader.from_data_loader(DataLoader(chosen, batch_size=2))
    list(loader)
    if in_place:
        chosen.indices[:] = [0] * 12
    else:
        chosen.indices = [0] * 12
    with pytest.raises(ValueError, match="holds example 0 at 12 indices"):
        iter(loader)


def test_indices_may_be_in_another_order_at_the_next_pass():
    chosen = Subset(DATA, list(range(12)))
    loader = GhostDataLoader.from_data_loader(DataLoader(chosen, batch_size=2))
    list(loader)
    chosen.indices.reverse()
    assert len(list(loader)) == len(loader)
