"""Truncated Poisson sampling: the C++ program's draw, cut to a largest batch, uniformly and alike on any number of ranks."""

import collections
import itertools
import math
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from coin_twin import kept
from drawing import Flags, assert_binomial, seeded
from test_agreement import ranks as ranks
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from ghostshard.loaders import BatchMemoryManager, GhostDataLoader, TruncatedBatchSampler, plan_of
from ghostshard.loaders.plan import coin_rate
from ghostshard.loaders.truncated import TruncatedEpoch


def loader_of(cap, *, units=24, batch=4, **options):
    original = DataLoader(TensorDataset(torch.arange(units)), batch_size=batch)
    return GhostDataLoader.from_data_loader(original, max_batch_size=cap, **options)


@pytest.mark.parametrize(("q", "cap"), [(1 / 3, 12), (1 / 3, 15), (0.5, 1), (1.0, 7), (5 / 40, 5)])
def test_the_draw_is_that_of_the_cpp_program(q, cap):
    key, units, steps = bytes(range(32)), 40, 6
    epoch = TruncatedEpoch(key, range(units), q, steps, cap=cap, share=slice(None))
    expected = [kept(key, step, units, q, cap) for step in range(steps)]
    assert [batch.tolist() for batch in epoch.batches()] == expected
    assert any(len(batch) == cap for batch in expected), "nothing was cut"


def test_every_batch_has_its_probability():
    q, units, cap, steps = 0.5, 4, 2, 16000
    sampler = TruncatedBatchSampler(num_samples=units, sample_rate=q, steps=steps, max_batch_size=cap)
    seen = collections.Counter(tuple(batch) for batch in sampler)
    drawn = [math.comb(units, size) * q**size * (1 - q) ** (units - size) for size in range(units + 1)]
    assert set(seen) <= {batch for size in range(cap + 1) for batch in itertools.combinations(range(units), size)}
    for size in range(cap + 1):
        probability = drawn[size] if size < cap else sum(drawn[cap:])
        for batch in itertools.combinations(range(units), size):
            assert_binomial(seen[batch], steps, probability / math.comb(units, size))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_batch_is_the_same_on_any_number_of_ranks(world_size, monkeypatch):
    """One seed on all ranks, as if rank 0's key had come to the others."""
    monkeypatch.setattr(TruncatedBatchSampler, "own_group", lambda self: None)
    whole = list(TruncatedBatchSampler(num_samples=50, sample_rate=0.5, steps=9, max_batch_size=25, generator=seeded()))
    shares = [
        list(TruncatedBatchSampler(
            num_samples=50, sample_rate=0.5, steps=9, max_batch_size=25, generator=seeded(), rank=rank, world_size=world_size
        ))
        for rank in range(world_size)
    ]  # fmt: skip
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        assert sorted(itertools.chain(*parts)) == batch
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def shares_of_two(rank):
    sampler = TruncatedBatchSampler(num_samples=30, sample_rate=0.5, steps=40, max_batch_size=15, rank=rank, world_size=2)
    dist.barrier()
    return list(sampler)


def test_ranks_take_rank_0s_key(ranks):
    first, second = ranks(shares_of_two)
    sizes = [len(one) + len(two) for one, two in zip(first, second, strict=True)]
    assert max(sizes) == 15 and min(sizes) < 15
    assert not any(set(one) & set(two) for one, two in zip(first, second, strict=True))


def test_every_step_comes_in_as_many_physical_batches():
    loader, optimizer = loader_of(10), Flags()
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as physical:
        pieces, units = [0], 0
        for (batch,) in physical:
            pieces[-1] += 1
            units += len(batch)
            assert len(batch) <= 4
            if optimizer.step():
                pieces.append(0)
    assert pieces == [3] * 6 + [0] and units > 0
    assert len(physical) == 18


@pytest.mark.parametrize("q", [1.0, 0.5, 1 / 3, 1 / 391, 1e-5 / 3, 1e-9 / 7])
def test_a_rate_that_coins_have(q):
    exact = coin_rate(q)
    assert 0 <= q - exact < 2**-64
    assert Fraction(exact) * 2**64 == int(Fraction(q) * 2**64)


def test_a_truncated_loader_keeps_its_largest_batch():
    loader = loader_of(9)
    plan = plan_of(loader, poisson=True)
    assert (plan.cap, plan.truncation, plan.rate, plan.steps) == (9, (24, 9), coin_rate(1 / 6), 6)
    again = GhostDataLoader.from_data_loader(loader)
    assert isinstance(again.batch_sampler, TruncatedBatchSampler) and again.batch_sampler.max_batch_size == 9
    assert plan_of(loader_of(None), poisson=True).cap is None


@pytest.mark.parametrize("cap", [3, 25, 4.0, "9"])
def test_a_largest_batch_that_cannot_be_is_refused(cap):
    with pytest.raises(ValueError, match=r"max_batch_size must be a whole number from the expected batch \(4\) to the number of examples \(24\)"):
        loader_of(cap)


def test_batches_of_ones_own_are_not_cut():
    with pytest.raises(ValueError, match="batches of your own"):
        plan_of(DataLoader(TensorDataset(torch.arange(24)), batch_size=4), poisson=False, max_batch_size=9)


def test_a_field_of_a_sampler_of_ones_own_is_no_largest_batch():
    class Own(BatchSampler):
        max_batch_size = 3

    data = TensorDataset(torch.arange(24))
    loader = DataLoader(data, batch_sampler=Own(SequentialSampler(data), 4, False))
    assert plan_of(loader, poisson=False).cap is None
