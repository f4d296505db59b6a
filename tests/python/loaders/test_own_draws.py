"""Batches of the caller's own: torch's samplers and data sets that draw an example twice into one are known to."""

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, SequentialSampler, Subset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler  # fmt: skip

from ghostshard import PrivacyEngine

N = 12
DATA = TensorDataset(torch.randn(N, 6), torch.randint(0, 3, (N,)))
WEIGHTS = torch.arange(1.0, N + 1)


def private(loader, **options):
    model = nn.Linear(6, 3)
    return PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        grad_sample_mode="ghost", **options,
    )  # fmt: skip


TWICE = {
    "weighted": DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler(WEIGHTS, N)),
    "replacement": DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, replacement=True)),
    "in batches": DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA, replacement=True), 4, True)),
    "more than all": DataLoader(DATA, batch_size=5, sampler=RandomSampler(DATA, num_samples=N + 1)),
    "subset": DataLoader(DATA, batch_size=4, sampler=SubsetRandomSampler([0, 1, 2, 0])),
}


@pytest.mark.parametrize("options", [{"own_batches": True}, {"poisson_sampling": False}], ids=["own_batches", "poisson_sampling"])
@pytest.mark.parametrize("name", TWICE)
def test_a_sampler_that_draws_an_example_twice_is_refused(name, options):
    with pytest.raises(ValueError, match="may draw an example several times into one batch"):
        private(TWICE[name], **options)


@pytest.mark.parametrize("data", [ConcatDataset([DATA, DATA]), Subset(DATA, [0, 1, 1])], ids=["two copies", "subset"])
def test_a_data_set_that_holds_an_example_twice_is_refused(data):
    with pytest.raises(ValueError, match="the data set holds example"):
        private(DataLoader(data, batch_size=2), own_batches=True)


@pytest.mark.parametrize("sampler", [
    WeightedRandomSampler(WEIGHTS, 8, replacement=False), RandomSampler(DATA), RandomSampler(DATA, num_samples=6), SubsetRandomSampler([0, 2, 4]), SequentialSampler(DATA),
], ids=["weighted", "random", "a part", "subset", "in order"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:batches of your own|no ledger")
def test_samplers_that_draw_each_once_are_taken(sampler):
    module, optimizer, criterion, loader = private(DataLoader(DATA, batch_size=3, sampler=sampler), own_batches=True)
    x, y = next(iter(loader))
    criterion(module(x), y).backward()
    optimizer.step()
