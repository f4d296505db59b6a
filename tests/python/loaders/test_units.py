"""Each index of a data set is a unit, so no example may have two."""

import pytest
from drawing import DATA
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

from ghostshard.loaders import GhostDataLoader
from ghostshard.loaders.units import refuse_repeated

OTHER = TensorDataset(*(each + 100 for each in DATA.tensors))

REPEATED = {
    "indices": Subset(DATA, [0, 1, 2, 3, 1]), "negative": Subset(DATA, [0, 11, -1]), "twice": ConcatDataset([DATA, DATA]),
    "overlapping": ConcatDataset([Subset(DATA, [0, 1, 2]), Subset(DATA, range(2, 6))]), "a part beside all": ConcatDataset([DATA, OTHER, Subset(DATA, [7])]),
    "a subset of a concatenation": Subset(ConcatDataset([DATA, Subset(DATA, [5, 6])]), [5, 12]), "nested": Subset(Subset(DATA, [3, 3, 4]), [0, 1]),
}  # fmt: skip
ONCE = {
    "some": Subset(DATA, [5, 0, 3]), "split": random_split(DATA, [5, 7])[0], "two sets": ConcatDataset([DATA, OTHER]),
    "parts": ConcatDataset(random_split(DATA, [4, 8])), "nested": Subset(Subset(DATA, [3, 3, 4]), [0, 2]), "a part": Subset(ConcatDataset([DATA, DATA]), range(12)),
    "of a concatenation": Subset(ConcatDataset([DATA, Subset(DATA, [5, 6])]), [4, 12, 13]),
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
