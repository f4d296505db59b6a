"""The coins: every unit with probability q, independently, in the same number of steps on every rank."""

import collections
import itertools
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from coin_twin import coin
from drawing import assert_binomial, drawn, seeded
from scipy.stats import binom
from torch.utils.data import DataLoader, TensorDataset

from ghostshard.loaders import GhostDataLoader, PoissonBatchSampler
from ghostshard.loaders.poisson import Epoch

MARGINALS = {"cifar": (1 / 391, 400, 3910, 1), "usual": (0.04, 301, 2000, 2), "half": (0.5, 50, 1000, 3),
             "most": (0.9, 50, 1000, 2), "all": (1.0, 20, 20, 2), "rare": (1e-4, 10**4, 3000, 1)}  # fmt: skip


@pytest.mark.parametrize("generator", [lambda: None, seeded], ids=["system", "seeded"])
@pytest.mark.parametrize("q, units, steps, ranks", MARGINALS.values(), ids=MARGINALS.keys())
def test_every_unit_is_drawn_with_probability_q(q, units, steps, ranks, generator):
    counts = np.zeros(units, dtype=np.int64)
    for rank in range(ranks):
        sampler = PoissonBatchSampler(
            num_samples=units, sample_rate=q, steps=steps, rank=rank, world_size=ranks, generator=generator()
        )
        for batch in sampler:
            assert all(unit % ranks == rank for unit in batch)
            counts[batch] += 1
    assert_binomial(counts, steps, q)
    assert_binomial(counts.sum(), steps * units, q)


def test_sizes_have_the_mean_and_spread_of_a_binomial():
    q, units, steps = 0.01, 5000, 20000
    sampler = PoissonBatchSampler(num_samples=2 * units, sample_rate=q, steps=steps, rank=1, world_size=2)
    sizes = sampler.draw_epoch().sizes()
    assert_binomial(sizes.sum(), units * steps, q)
    assert_binomial(sizes, units, q)
    median = binom.median(units, q)
    assert_binomial((sizes <= median).sum(), steps, binom.cdf(median, units, q))
    assert_binomial((sizes <= 40).sum(), steps, binom.cdf(40, units, q))
    assert_binomial((sizes > 60).sum(), steps, binom.sf(60, units, q))


def test_every_subset_has_its_probability():
    q, steps = 0.3, 20000
    seen = collections.Counter(tuple(batch) for batch in PoissonBatchSampler(num_samples=3, sample_rate=q, steps=steps))
    for size in range(4):
        for subset in itertools.combinations(range(3), size):
            assert_binomial(seen[subset], steps, q**size * (1 - q) ** (3 - size))


@pytest.mark.parametrize("q", [1 / 3, 1e-3, 1.0, 5 / 40])
def test_the_coins_are_those_of_the_cpp_program(q):
    key, units, steps = bytes(range(32)), 40, 3
    expected = [[u for u in range(units) if q == 1 or coin(key, s, u) < int(Fraction(q) * 2**64)] for s in range(steps)]
    assert [batch.tolist() for batch in Epoch(key, range(units), q, steps).batches()] == expected


def coins_of(rank=0, *, seed=None, **changes):
    torch.manual_seed(0)  # as scripts do on every rank
    options = dict(num_samples=2000, sample_rate=0.1, steps=300, world_size=2, rank=rank)
    return PoissonBatchSampler(**{**options, "generator": None if seed is None else seeded(seed), **changes})


def two_epochs(seed):
    sampler = coins_of(seed=seed)
    return drawn(sampler), drawn(sampler)


PAIRS = {
    "neighbours": lambda seed: (lambda table: (table[:, ::2], table[:, 1::2]))(drawn(coins_of(seed=seed))),
    "steps": lambda seed: (lambda table: (table[::2], table[1::2]))(drawn(coins_of(seed=seed))),
    "ranks": lambda seed: (drawn(coins_of(0, seed=seed)), drawn(coins_of(1, seed=seed))),
    "epochs": two_epochs,
    "set_epoch": lambda seed: (drawn(coins_of(seed=seed)), drawn(after(coins_of(seed=seed), 1))),
}


def after(sampler, epoch):
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.parametrize("seed", [None, 3], ids=["system", "equal_seeds"])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_coins_are_independent(pair, seed):
    first, second = pair(seed)
    assert_binomial((first & second).sum(), first.size, 0.1 * 0.1)
    assert_binomial((first & ~second).sum(), first.size, 0.1 * 0.9)


def test_a_generator_decides_the_batches():
    epochs = [[list(sampler), list(sampler)] for sampler in (coins_of(seed=5), coins_of(seed=5), coins_of(seed=6))]
    assert epochs[0] == epochs[1]
    assert epochs[0] != epochs[2]
    assert epochs[0][0] != epochs[0][1]


def test_without_a_generator_seeds_decide_nothing_and_torch_draws_nothing():
    sampler = coins_of()
    state = torch.get_rng_state()
    first = list(sampler)
    assert torch.equal(state, torch.get_rng_state())
    assert first != list(coins_of())  # the same torch.manual_seed


def test_one_step_of_all_ranks_has_each_unit_at_most_once():
    steps = 400
    of_ranks = [list(coins_of(rank, num_samples=11, world_size=3, sample_rate=0.7, steps=steps)) for rank in range(3)]
    for parts in zip(*of_ranks, strict=True):
        units = [unit for part in parts for unit in part]
        assert len(set(units)) == len(units) and set(units) <= set(range(11))
    assert set().union(*(batch for batches in of_ranks for batch in batches)) == set(range(11))


def test_a_rank_without_units_takes_every_step():
    assert list(PoissonBatchSampler(num_samples=2, sample_rate=0.5, steps=3, rank=2, world_size=3)) == [[], [], []]


def test_ten_million_units_cost_little():
    begin = time.monotonic()
    batches = itertools.islice(PoissonBatchSampler(num_samples=10**7, sample_rate=1e-5, steps=10**6), 10)
    assert_binomial(sum(map(len, batches)), 10**8, 1e-5)
    assert time.monotonic() - begin < 20  # a second


@pytest.mark.parametrize("length", [1, 3, 93, 99, 391])
def test_as_many_steps_as_the_loader_had(length):
    original = DataLoader(TensorDataset(torch.arange(2 * length)), batch_size=2)
    loader = GhostDataLoader.from_data_loader(original, rank=1, world_size=2)
    assert len(original) == len(loader) == loader.batch_sampler.steps == sum(1 for _ in loader) == length
    assert loader.sample_rate == loader.batch_sampler.sample_rate == 1 / length
    assert len(PoissonBatchSampler(num_samples=9, sample_rate=1 / length)) == length


@pytest.mark.parametrize("change", [
    {"sample_rate": 0}, {"sample_rate": 1.1}, {"sample_rate": float("nan")}, {"rank": 2}, {"rank": -1}, {"steps": -1},
    {"num_samples": 0},
])  # fmt: skip
def test_sampler_refuses(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        PoissonBatchSampler(**{**dict(num_samples=9, sample_rate=0.5, rank=0, world_size=2), **change})


@pytest.mark.parametrize("generator, kept", [(None, 0), (torch.Generator(), 4)], ids=["system", "generator"])
def test_keys_are_kept_where_they_may_repeat_alone(generator, kept):
    """A generator may be seeded again; 32 bytes of the operating system do not come twice, and a run has passes without end."""
    sampler = PoissonBatchSampler(num_samples=10, sample_rate=0.5, generator=generator)
    passes = [list(sampler) for _ in range(4)]
    assert len(sampler.given._times) == kept and len(passes) == 4
