"""What a loader fetches by `__getitems__` is what is looked at, whatever `__getitem__` says."""

import pytest
import torch
from torch.utils.data import Dataset, Subset

from ghostshard.loaders import GhostDataLoader
from ghostshard.loaders.items_digest import items_digest

N = 48


class Batched(Dataset):
    """of(rows, places) makes the items that are asked for together; `__getitem__` gives rows as they are, or nothing."""

    def __init__(self, of, single=True):
        self.of, self.single, self.x = of, single, torch.randn(N, 6)

    def __len__(self):
        return N

    def __getitem__(self, at):
        if not self.single:
            raise NotImplementedError("items come by __getitems__")
        return self.x[at]

    def __getitems__(self, places):
        return list(self.of(self.x, torch.as_tensor(places)))


FAULTS = {
    "repeated": (lambda x, places: x[places % (N // 2)], "holds its examples several times|data set mixes its items: of its 'x' item"),
    "with a partner": (lambda x, places: x[places] + x[(places * 7 + 3) % N], "data set mixes its items"),
    "of one example": (lambda x, places: x[places] + x[0], "data set mixes its items"),
    "too many": (lambda x, places: x[places].repeat(2, 1), "gave 2 items for 1 indices|gave 6 items for 3 indices"),
    "too few": (lambda x, places: x[places].mean(0, keepdim=True), "gave 1 items for 3 indices"),
}


@pytest.mark.parametrize("single", [True, False], ids=["with single items", "without"])
@pytest.mark.parametrize("within", [lambda data: data, lambda data: Subset(data, range(N))], ids=["itself", "a subset"])
@pytest.mark.parametrize(("of", "said"), FAULTS.values(), ids=FAULTS)
def test_items_that_come_together_are_looked_at(of, said, within, single):
    with pytest.raises(ValueError, match=said):
        GhostDataLoader(within(Batched(of, single)), sample_rate=0.2)


def test_a_data_set_without_single_items_is_read():
    data = Batched(lambda x, places: x[places], single=False)
    assert sum(len(batch) for batch in GhostDataLoader(data, sample_rate=0.2)) > 0
    assert items_digest(data) == items_digest(data) != items_digest(Batched(lambda x, places: x[places]))
