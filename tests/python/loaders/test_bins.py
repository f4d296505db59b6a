"""Balls-in-bins sampling: the C++ program's deal, each unit in one random batch of every pass, alike on any number of ranks."""

import collections
import itertools

import pytest
import torch
import torch.distributed as dist
from coin_twin import dealt
from drawing import Flags, assert_binomial, seeded
from test_agreement import ranks as ranks
from torch.utils.data import DataLoader, TensorDataset

from ghostshard.loaders import BatchMemoryManager, BinsBatchSampler, GhostDataLoader, PoissonBatchSampler, plan_of
from ghostshard.loaders.bins import BinsEpoch


def loader_of(units=24, batch=4, sampling="balls_in_bins", **options):
    original = DataLoader(TensorDataset(torch.arange(units)), batch_size=batch)
    return GhostDataLoader.from_data_loader(original, sampling=sampling, **options)


@pytest.mark.parametrize("bins", [2, 5, 7])
def test_the_deal_is_that_of_the_cpp_program(bins):
    key, units = bytes(range(32)), 40
    found = BinsEpoch(key, range(units), 1 / bins, bins, share=slice(None))
    expected = [[unit for unit in range(units) if dealt(key, unit, bins) == step] for step in range(bins)]
    assert [batch.tolist() for batch in found.batches()] == expected


def test_each_unit_is_in_one_uniformly_random_batch_of_each_pass():
    units, bins, passes = 6, 4, 6000
    sampler = BinsBatchSampler(num_samples=units, sample_rate=1 / bins, steps=bins)
    places, pairs = collections.Counter(), collections.Counter()
    last = [0] * units
    for _ in range(passes):
        batches = list(sampler)
        assert len(batches) == bins
        assert sorted(itertools.chain(*batches)) == list(range(units))
        place = [next(step for step, batch in enumerate(batches) if unit in batch) for unit in range(units)]
        places.update(enumerate(place))
        pairs["of units"] += place[0] == place[1]
        pairs["of passes"] += place[2] == last[2]
        last = place
    for unit in range(units):
        for step in range(bins):
            assert_binomial(places[unit, step], passes, 1 / bins)
    for count in pairs.values():
        assert_binomial(count, passes, 1 / bins)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_deal_is_the_same_on_any_number_of_ranks(world_size, monkeypatch):
    """One seed on all ranks, as if rank 0's key had come to the others."""
    monkeypatch.setattr(BinsBatchSampler, "own_group", lambda self: None)
    terms = {"num_samples": 50, "sample_rate": 1 / 9, "steps": 9}
    whole = list(BinsBatchSampler(**terms, generator=seeded()))
    shares = [list(BinsBatchSampler(**terms, generator=seeded(), rank=rank, world_size=world_size)) for rank in range(world_size)]
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        assert sorted(itertools.chain(*parts)) == batch
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def shares_of_two(rank):
    sampler = BinsBatchSampler(num_samples=30, sample_rate=1 / 5, steps=5, rank=rank, world_size=2)
    dist.barrier()
    return [list(sampler), list(sampler)]


def test_ranks_take_rank_0s_key(ranks):
    for first, second in zip(*ranks(shares_of_two), strict=True):
        assert sorted(itertools.chain(*first, *second)) == list(range(30))


def test_physical_batches_hold_each_unit_once():
    optimizer, seen, steps = Flags(), [], 0
    with BatchMemoryManager(data_loader=loader_of(), max_physical_batch_size=3, optimizer=optimizer) as physical:
        for (batch,) in physical:
            assert len(batch) <= 3
            seen += batch.tolist()
            steps += bool(optimizer.step())
    assert sorted(seen) == list(range(24)) and steps == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_deals_anew_whenever_it_is_iterated_over(workers):
    original = DataLoader(TensorDataset(torch.arange(24)), batch_size=4, num_workers=workers)
    loader = GhostDataLoader.from_data_loader(original, sampling="balls_in_bins")
    passes = [[batch.tolist() for (batch,) in loader] for _ in range(2)]
    assert all(sorted(itertools.chain(*each)) == list(range(24)) for each in passes)
    assert passes[0] != passes[1]


def test_a_loader_keeps_its_sampling():
    loader = loader_of()
    plan = plan_of(loader, poisson=True)
    assert (plan.bins, plan.charges, plan.rate, plan.steps, plan.expected_batch) == (6, 1, 1 / 6, 6, 4)
    again = GhostDataLoader.from_data_loader(loader)
    assert type(again.batch_sampler) is BinsBatchSampler
    other = GhostDataLoader.from_data_loader(loader, sampling="poisson")
    assert type(other.batch_sampler) is PoissonBatchSampler
    poisson = plan_of(loader_of(sampling=None), poisson=True)
    assert (poisson.bins, poisson.charges) == (None, 6)


REFUSED = {
    "one_bin": (lambda: loader_of(batch=24), "from 2 to 100000 batches"),
    "a_largest_batch": (lambda: loader_of(max_batch_size=9), "cannot be combined with max_batch_size"),
    "unknown": (lambda: loader_of(sampling="shuffled"), "sampling must be one of 'poisson', 'balls_in_bins'"),
    "poisson_already": (
        lambda: GhostDataLoader.from_data_loader(loader_of(sampling="poisson"), sampling="balls_in_bins"), "draws Poisson batches already",
    ),
    "truncated_already": (
        lambda: GhostDataLoader.from_data_loader(loader_of(sampling=None, max_batch_size=9), sampling="balls_in_bins"),
        "draws Poisson batches already",
    ),
    "own": (
        lambda: plan_of(DataLoader(TensorDataset(torch.arange(24)), batch_size=4), poisson=False, sampling="balls_in_bins"),
        "batches of your own",
    ),
    "another_rate": (lambda: BinsBatchSampler(num_samples=24, sample_rate=0.2, steps=6), "sample_rate must be 1/6"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_dealt_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
