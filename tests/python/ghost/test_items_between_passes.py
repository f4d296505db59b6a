"""What epsilon counts are indices of the data set: from pass to pass each stays the example that it was, and the loader hands it out as the caller's did."""

import pytest
from opacus.utils.batch_memory_manager import BatchMemoryManager
from test_deals_of_bins import N, Numbered, Run
from torch.utils.data import DataLoader, Subset

ORDER = "items are not what they were in the last pass, or stand in another order"


class Turned(Numbered):
    """Each pass of the program begins one item later."""

    by = 0

    def __getitem__(self, i):
        return super().__getitem__((i + self.by) % N)


def passes(run: Run, managed: bool):
    """The batches of two passes; the data set may change when the first is done."""
    for _ in range(2):
        if managed:
            with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as pieces:
                yield pieces
        else:
            yield run.loader


def train(run: Run, change, managed: bool) -> None:
    for loader in passes(run, managed):
        for x, y in loader:
            run.step(x, y)
        change(run.loader.dataset)


def turn(data) -> None:
    data.by += 1


@pytest.mark.parametrize("managed", [False, True])
@pytest.mark.parametrize("kind", ["noise_bands", "noise_chain"])
def test_an_example_stays_in_its_group(kind, managed):
    """Or it would be drawn again before its steps are as far apart as correlated noise is derived for."""
    run = Run(sampling=None, data_loader=DataLoader(Turned(), batch_size=8), **{kind: 5}).begin()
    with pytest.raises(ValueError, match=ORDER):
        train(run, turn, managed)
    with pytest.raises(ValueError, match=ORDER):  # nor if it is tried again
        iter(run.loader)


@pytest.mark.parametrize("managed", [False, True])
def test_white_noise_knows_no_order(managed):
    train(Run(sampling=None, data_loader=DataLoader(Turned(), batch_size=8)).begin(), turn, managed)


class Growing(Numbered):
    count = N

    def __len__(self):
        return self.count


@pytest.mark.parametrize("managed", [False, True])
@pytest.mark.parametrize("count", [N - 8, N + 8])
def test_a_data_set_that_grows_or_shrinks_is_refused(managed, count):
    def become(data) -> None:
        data.count = count

    with pytest.raises(ValueError, match=f"the data set has {count} items now, and the private loader draws from {N}:"):
        train(Run(sampling=None, data_loader=DataLoader(Growing(), batch_size=8)).begin(), become, managed)


@pytest.mark.parametrize("managed", [False, True])
def test_an_example_that_comes_to_a_second_index_is_refused(managed):
    def repeat(data) -> None:
        data.indices[1] = 0

    run = Run(sampling=None, data_loader=DataLoader(Subset(Numbered(), list(range(N))), batch_size=8)).begin()
    with pytest.raises(ValueError, match="holds example 0 at 2 indices"):
        train(run, repeat, managed)


class Doubled(DataLoader):
    def __iter__(self):
        return ((2 * x, y) for x, y in super().__iter__())


class Halved(DataLoader):
    def _get_iterator(self):
        return ((x / 2, y) for x, y in super()._get_iterator())


class Shorter(DataLoader):
    """Has one batch less whenever it is asked."""

    asked = 40

    def __len__(self):
        self.asked -= 1
        return self.asked


@pytest.mark.filterwarnings("ignore:batches of your own")
@pytest.mark.parametrize("kind, method", [(Doubled, "__iter__"), (Halved, "_get_iterator")])
def test_what_a_loader_does_to_its_batches_is_not_left_out(kind, method):
    with pytest.raises(ValueError, match=f"{kind.__name__}.{method} cannot be kept"):
        Run(sampling=None, data_loader=kind(Numbered(), batch_size=8)).begin()
    Run(sampling=None, own_batches=True, data_loader=kind(Numbered(), batch_size=8)).begin()


def test_draws_are_charged_at_the_rate_that_coins_have():
    with pytest.raises(ValueError, match="the data loader's length changed while make_private"):
        Run(sampling=None, data_loader=Shorter(Numbered(), batch_size=8)).begin()
