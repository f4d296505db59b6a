"""ghostshard.loaders: Poisson sampling as it is accounted, and ranks that never wait for one another."""

import collections
import copy
import itertools
import time
import traceback
import warnings

import numpy as np
import opacus
import pytest
import torch
import torch.distributed as dist
from opacus.data_loader import DPDataLoader, switch_generator
from opacus.optimizers import DPOptimizer
from opacus.utils import batch_memory_manager as opacus_manager
from opacus.utils.batch_memory_manager import BatchMemoryManager as OpacusManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from scipy.stats import binom
from torch.utils.data import (
    BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, SubsetRandomSampler, TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip
from transformers import BatchEncoding

from ghostshard.loaders import AgreedSplittingSampler, BatchMemoryManager, GhostDataLoader, PoissonBatchSampler
from ghostshard.loaders.poisson import _geometric

MANAGERS = {"ours": BatchMemoryManager, "opacus": OpacusManager}
TOO_RARE = 1e-9  # two-sided, of a whole test


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


def assert_binomial(counts, trials, p):
    """Each count within what Binomial(trials, p) leaves with probability TOO_RARE, shared by all counts."""
    counts = np.atleast_1d(counts)
    tail = TOO_RARE / (2 * len(counts))
    low, high = binom.ppf(tail, trials, p), binom.isf(tail, trials, p)
    assert low <= counts.min() and counts.max() <= high, (counts.min(), counts.max(), low, high)


def drawn(sampler):
    """One epoch as a table: step × the rank's units, True where drawn."""
    table = np.zeros((sampler.steps, len(range(sampler.rank, sampler.num_samples, sampler.world_size))), dtype=bool)
    for row, batch in zip(table, sampler, strict=True):
        assert len(set(batch)) == len(batch)
        row[[(unit - sampler.rank) // sampler.world_size for unit in batch]] = True
    return table


# --- the coins --------------------------------------------------------------------------------------------------------

MARGINALS = {"cifar": (1 / 391, 400, 3910, 1), "usual": (0.04, 301, 2000, 2), "half": (0.5, 50, 1000, 3),
             "most": (0.9, 50, 1000, 2), "all": (1.0, 20, 20, 2), "rare": (1e-7, 10**6, 30000, 1)}  # fmt: skip


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


@pytest.mark.parametrize("q", [1e-9, 1e-6, 1 / 391, 0.3, 0.9])
def test_gaps_change_at_the_right_words(q):
    """P(gap ≤ g) = 1 − (1 − q)^(g + 1), to 12 digits or 2 words, which sampling would never show."""
    for gap in (0, 1, 10, int(1 / q), int(20 / q)):
        mass, rest = -np.expm1((gap + 1) * np.log1p(-q)), np.exp((gap + 1) * np.log1p(-q))
        if rest * 2**64 < 1000:
            continue  # Hardly a word is left.
        word = int(mass * 2**64) if mass < 0.5 else 2**64 - int(rest * 2**64)
        slack = max(2, int(1e-12 * 2**64 * min(mass, rest)))
        below, above = _geometric(np.array([word - slack, word + slack], dtype=np.uint64), q, most=2**62)
        assert (below, above) == (gap, gap + 1)
    first, last = _geometric(np.array([0, 2**64 - 1], dtype=np.uint64), q, most=2**62)
    assert first == 0 and last == int(64 * np.log(2) / -np.log1p(-q))


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


def test_a_hundred_million_units_cost_no_more_than_their_draws():
    begin = time.monotonic()
    batches = itertools.islice(PoissonBatchSampler(num_samples=10**8, sample_rate=1e-6, steps=10**6), 100)
    assert_binomial(sum(map(len, batches)), 10**10, 1e-6)
    assert time.monotonic() - begin < 5  # coins by the unit: over a minute


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


# --- the loader -------------------------------------------------------------------------------------------------------

DATA = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))


class Evens(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(0, 12, 2))

    def __len__(self):
        return 6


REFUSED = {
    "weights": (dict(sampler=WeightedRandomSampler([1.0] * 12, 12)), {}, "WeightedRandomSampler.*same probability"),
    "own_sampler": (dict(sampler=Evens()), {}, "Evens.*same probability"),
    "subset": (dict(sampler=SubsetRandomSampler(range(6))), {}, "SubsetRandomSampler.*Subset"),
    "list": (dict(sampler=[0, 1, 2]), {}, "list.*same probability"),
    "replacement": (dict(sampler=RandomSampler(DATA, replacement=True)), {}, "replacement"),
    "half_an_epoch": (dict(sampler=RandomSampler(DATA, num_samples=6)), {}, "num_samples"),
    "batch_sampler": (dict(batch_sampler=[[0, 1], [2, 3]]), {}, "batch_sampler"),
    "no_batches": (dict(batch_size=None), {}, "batch_size=None"),
    "all_dropped": (dict(batch_size=13, drop_last=True), {}, "no batches"),
    "other_ranks": (dict(sampler=DistributedSampler(DATA, 4, 0)), dict(world_size=2), "4 ranks.*2"),
    "rand_on_empty": (dict(batch_size=4), dict(rand_on_empty=True), "2 · max_grad_norm"),
}


@pytest.mark.parametrize("loader, options, message", REFUSED.values(), ids=REFUSED.keys())
def test_from_data_loader_refuses(loader, options, message):
    with pytest.raises(ValueError, match=message):
        GhostDataLoader.from_data_loader(DataLoader(DATA, **loader), **options)


def test_a_stream_and_random_filling_are_refused_wherever_they_come_from():
    with pytest.raises(ValueError, match="IterableDataset"):
        GhostDataLoader.from_data_loader(DataLoader(Stream(), batch_size=4))
    with pytest.raises(ValueError, match="IterableDataset"):
        GhostDataLoader(Stream(), sample_rate=0.5)
    with pytest.raises(ValueError, match="rand_on_empty"):
        GhostDataLoader.from_data_loader(DPDataLoader(DATA, sample_rate=0.5, rand_on_empty=True))


ACCEPTED = {
    "sequential": (dict(batch_size=4), 1, 3), "shuffled": (dict(batch_size=4, shuffle=True), 1, 3),
    "last_dropped": (dict(batch_size=5, drop_last=True), 1, 2), "global_batch": (dict(batch_size=4), 2, 3),
    "distributed": (dict(batch_size=2, sampler=DistributedSampler(DATA, 2, 1)), 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("loader, ranks, length", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_q_is_the_global_batch_over_the_units(loader, ranks, length):
    made = GhostDataLoader.from_data_loader(DataLoader(DATA, **loader), rank=0, world_size=ranks)
    assert (made.sample_rate, len(made), made.distributed) == (1 / length, length, ranks > 1)
    assert made.batch_sampler.num_samples == 12


def first_field(examples):
    return torch.stack([example[0] for example in examples])


def no_op(worker):
    pass


def test_everything_else_is_kept_and_opacus_takes_it_for_its_own():
    generator = seeded()
    original = DataLoader(
        DATA, batch_size=4, collate_fn=first_field, num_workers=2, timeout=60, worker_init_fn=no_op,
        generator=generator, multiprocessing_context="spawn", prefetch_factor=3, persistent_workers=True,
        in_order=False,
    )  # fmt: skip
    made = GhostDataLoader.from_data_loader(original, rank=0, world_size=1)
    for name in ("dataset", "num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
                 "persistent_workers", "in_order", "pin_memory", "generator"):  # fmt: skip
        assert getattr(made, name) is getattr(original, name), name
    assert made.collate_fn.wrapped_collator_fn is first_field
    assert isinstance(made, DPDataLoader) and isinstance(made.batch_sampler, UniformWithReplacementSampler)

    other = seeded(8)
    assert GhostDataLoader.from_data_loader(original, generator=other).batch_sampler.generator is other
    switched = switch_generator(data_loader=GhostDataLoader(DATA, sample_rate=0.5), generator=other)
    assert switched.batch_sampler.generator is other


def test_a_poisson_loader_keeps_its_rate():
    theirs = DPDataLoader(DATA, sample_rate=1 / 93)
    made = GhostDataLoader.from_data_loader(theirs)
    assert (made.sample_rate, len(theirs), len(made)) == (1 / 93, 92, 93)
    made = GhostDataLoader.from_data_loader(GhostDataLoader(DATA, sample_rate=0.3, steps=50), rank=1, world_size=2)
    assert (made.sample_rate, len(made), made.batch_sampler.rank) == (0.3, 50, 1)
    assert not isinstance(made.collate_fn.wrapped_collator_fn, opacus.data_loader.CollateFnWithEmpty)


# --- empty batches ----------------------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "x y")
X, Y = torch.arange(3, dtype=torch.float16), torch.tensor(4)


class Rows(list):
    """A data set of 4 equal examples."""

    def __init__(self, example):
        super().__init__(copy.deepcopy(example) for _ in range(4))


def as_batch_encoding(examples):
    return BatchEncoding({"input_ids": torch.stack([example.pop("ids") for example in examples])})


def packed(examples):
    ends = torch.tensor([3 * i for i in range(len(examples) + 1)], dtype=torch.int32)
    return {"ids": torch.cat(examples)[None], "ends": ends, "longest": 3, "rows": len(examples), "kind": "packed"}


def second_dimension(examples):
    return torch.stack(examples, dim=1), torch.arange(len(examples)), torch.ones(1, 3)


E0 = torch.empty(0, 3, dtype=torch.float16)
EMPTY = {
    "tensor": (X, None, E0),
    "scalar": (Y, None, torch.empty(0, dtype=torch.int64)),
    "number": (2.5, None, torch.empty(0, dtype=torch.float64)),
    "string": ("a", None, []),
    "fields": ((X, Y), None, [E0, torch.empty(0, dtype=torch.int64)]),
    "dict": ({"x": X, "text": "a", "deep": {"y": Y}}, None,
             {"x": E0, "text": [], "deep": {"y": torch.empty(0, dtype=torch.int64)}}),
    "namedtuple": (Pair(X, "a"), None, Pair(E0, ())),
    "batch_encoding": ({"ids": X}, as_batch_encoding, BatchEncoding({"input_ids": E0})),
    "rows": ((X, Y), list, []),
    "columns": ((X, 1), lambda rows: tuple(zip(*rows, strict=True)), ((), ())),
    "numpy": (X, lambda rows: np.stack([np.asarray(row) for row in rows]), np.empty((0, 3), dtype=np.float16)),
    "packed": (X, packed, {"ids": torch.empty(1, 0, dtype=torch.float16), "ends": torch.zeros(1, dtype=torch.int32),
                           "longest": 3, "rows": 0, "kind": "packed"}),
    "second_dimension": (X, second_dimension,
                         (torch.empty(3, 0, dtype=torch.float16), torch.empty(0, dtype=torch.int64), torch.ones(1, 3))),
}  # fmt: skip


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict | BatchEncoding):
        assert list(found.keys()) == list(expected.keys())
        for key in expected.keys():
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    elif isinstance(expected, torch.Tensor | np.ndarray):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype) and (found == expected).all()
    else:
        assert found == expected


@pytest.mark.parametrize("example, collate, expected", EMPTY.values(), ids=EMPTY.keys())
def test_a_first_batch_that_is_empty_has_the_structure_of_a_full_one(example, collate, expected):
    loader = GhostDataLoader(Rows(example), sample_rate=1e-12, steps=2, collate_fn=collate)
    batches = list(loader)
    for batch in batches:
        assert_same(batch, expected)
    assert len(batches) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_empty_batches_come_between_full_ones(workers):
    examples = [{"x": X, "text": "a"} for _ in range(4)]
    loader = GhostDataLoader(examples, sample_rate=0.25, steps=60, generator=seeded(), num_workers=workers)
    batches = list(loader)
    sizes = {len(batch["text"]) for batch in batches}
    assert 0 in sizes and len(sizes) > 1 and len(batches) == 60
    for batch in batches:
        assert batch["x"].shape == (len(batch["text"]), 3) and batch["x"].dtype == torch.float16


def test_one_example_is_read_and_only_when_needed():
    class Counting(Rows):
        read = 0

        def __getitem__(self, index):
            self.read += 1
            return super().__getitem__(index)

    data = Counting(X)
    loader = GhostDataLoader(data, sample_rate=1e-12, steps=5)
    assert data.read == 0
    list(loader)
    assert data.read == 1


def test_a_batch_of_an_unknown_kind_is_refused():
    with pytest.raises(TypeError, match="object.*collate_fn"):
        list(GhostDataLoader(Rows(X), sample_rate=1e-12, steps=1, collate_fn=lambda rows: object()))


# --- physical batches, one rank ---------------------------------------------------------------------------------------


class Flags:
    """An optimizer's part in it, by Opacus' own code."""

    signal_skip_step = DPOptimizer.signal_skip_step
    _check_skip_next_step = DPOptimizer._check_skip_next_step

    def __init__(self):
        self._step_skip_queue, self._is_last_step_skipped, self.forgotten = [], False, 0

    def step(self):
        self._is_last_step_skipped = self._check_skip_next_step()
        return not self._is_last_step_skipped

    def reset_skip_queue(self):
        self.forgotten += 1
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False


def prescribe(loader, batches):
    """Lets the loader draw these batches."""

    class Prescribed:
        def batches(self):
            return iter([np.array(batch, dtype=np.int64) for batch in batches])

        def sizes(self):
            return np.array([len(batch) for batch in batches])

    loader.batch_sampler.steps = len(batches)
    loader.batch_sampler.draw_epoch = Prescribed


@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS.keys())
@pytest.mark.parametrize("workers", [0, 2])
def test_logical_batches_are_split_evenly(manager, workers):
    loader = GhostDataLoader(TensorDataset(torch.arange(20)), sample_rate=0.5, num_workers=workers)
    logical = [list(range(5)), [], [3], list(range(8, 16))]
    prescribe(loader, logical)
    optimizer = Flags()
    with manager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as physical:
        assert isinstance(physical.batch_sampler, AgreedSplittingSampler)
        pieces = [(batch[0].tolist(), optimizer.step()) for batch in physical]
        assert len(physical) == len(pieces) == 6
    assert pieces == [
        ([0, 1, 2], False), ([3, 4], True), ([], True), ([3], True), ([8, 9, 10, 11], False),
        ([12, 13, 14, 15], True),
    ]  # fmt: skip
    assert optimizer._step_skip_queue == []


def private(loader, **options):
    torch.manual_seed(1)
    module = torch.nn.Linear(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opacus.PrivacyEngine().make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=loader,
            poisson_sampling=False, noise_multiplier=0.0, max_grad_norm=1.0, **options,
        )  # fmt: skip


def train(module, optimizer, batch):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(module(batch[0]), batch[1] % 3).backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_split_training_is_unsplit_training():
    weights = []
    for largest in (12, 1):
        loader = GhostDataLoader(DATA, sample_rate=0.5, steps=8, generator=seeded())
        module, optimizer, loader = private(loader)
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=largest, optimizer=optimizer) as physical:
            for batch in physical:
                train(module, optimizer, batch)
        weights.append(module._module.weight.detach().clone())
    assert torch.allclose(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS.keys())
def test_leaving_early_leaves_nothing_behind(manager, workers):
    """One of three pieces done, more fetched: later steps are neither skipped nor do they hold the piece again."""
    loader = GhostDataLoader(DATA, sample_rate=0.5, num_workers=workers)
    prescribe(loader, [list(range(9))] * 4)
    module, optimizer, loader = private(loader)
    with manager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as physical:
        for batch in physical:
            train(module, optimizer, batch)
            break
    assert optimizer._step_skip_queue == [] and not optimizer._is_last_step_skipped
    assert all(parameter.summed_grad is None for parameter in optimizer.params)
    before = module._module.weight.detach().clone()
    train(module, optimizer, next(iter(loader)))
    assert not torch.equal(before, module._module.weight)


@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS.keys())
@pytest.mark.parametrize("leave", ["exception", "new_epoch"])
def test_the_optimizers_own_reset_is_used(manager, leave):
    loader = GhostDataLoader(DATA, sample_rate=0.5)
    prescribe(loader, [list(range(9))] * 4)
    optimizer = Flags()
    with manager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as physical:
        next(iter(physical))
        assert optimizer._step_skip_queue == [True]
        if leave == "new_epoch":
            assert [optimizer.step() for _ in physical] == [False, False, True] * 4
            assert optimizer.forgotten == 2
    if leave == "exception":
        with pytest.raises(KeyError):
            with manager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as physical:
                next(iter(physical))
                raise KeyError
        assert optimizer._step_skip_queue == [] and optimizer.forgotten == 4


def test_other_loaders_are_left_to_opacus():
    for manager, left in ((OpacusManager, [True]), (BatchMemoryManager, [])):
        optimizer, loader = Flags(), DataLoader(DATA, batch_size=4)
        with manager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as physical:
            assert type(physical.batch_sampler) is opacus_manager.BatchSplittingSampler
            next(iter(physical))
        assert optimizer._step_skip_queue == left


def test_a_manager_refuses():
    loader = GhostDataLoader(DATA, sample_rate=0.5)
    with pytest.raises(ValueError, match=">= 1"):
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=0, optimizer=Flags()).__enter__()
    loader = GhostDataLoader(DATA, sample_rate=0.5, rank=1, world_size=2)
    with pytest.raises(RuntimeError, match="init_process_group"):
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=Flags()).__enter__()


# --- two ranks --------------------------------------------------------------------------------------------------------


def serve(rank, ranks, store, pipe):
    """A rank's process: runs what comes through the pipe, answers with the result or the traceback."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    pipe.send((True, None))
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(rank, **arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """Two processes. A rank that does not answer in time, or fails, ends both and the test, with a message."""

    def __init__(self, folder):
        self._folder, self._starts, self._processes, self._pipes = folder, 0, [], []

    def _start(self):
        context = torch.multiprocessing.get_context("spawn")
        self._starts += 1
        for rank in range(2):
            mine, theirs = context.Pipe()
            arguments = (rank, 2, self._folder / f"store{self._starts}", theirs)
            self._processes.append(context.Process(target=serve, args=arguments, daemon=False))
            self._pipes.append(mine)
            self._processes[-1].start()
            theirs.close()
        self._answers("starting", 120)

    def _answers(self, what, seconds):
        answers, deadline = {}, time.monotonic() + seconds
        while len(answers) < 2:
            for rank, pipe in enumerate(self._pipes):
                if rank in answers or not pipe.poll(0.02):
                    continue
                try:
                    good, answers[rank] = pipe.recv()
                except EOFError:
                    good, answers[rank] = False, "its process died"
                if not good:
                    self.end()
                    pytest.fail(f"rank {rank}, {what}: {answers[rank]}", pytrace=False)
            if time.monotonic() > deadline and len(answers) < 2:
                self.end()
                waiting = [rank for rank in range(2) if rank not in answers]
                done = sorted(answers)
                pytest.fail(f"{what}: rank {waiting} still waits after {seconds} s, {done} done", pytrace=False)
        return [answers[rank] for rank in range(2)]

    def __call__(self, function, *, seconds=12, **arguments):
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return self._answers(function.__name__, seconds)

    def end(self):
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.end()


def take_part(step):
    """Stands for FSDP's collectives: waits for the other rank, and says whether it is in the same step."""
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(steps, torch.tensor([step]))
    return steps[0].item() == steps[1].item()


def epochs_of_steps(rank, q, epochs):
    loader = GhostDataLoader(DATA, sample_rate=q, rank=rank, world_size=2)
    return [[(take_part(step), batch[1].tolist()) for step, batch in enumerate(loader)] for _ in range(epochs)]


def test_a_rank_that_draws_nothing_takes_the_step(ranks):
    """Opacus' sampler skips it: 15 of 20 such epochs would hang."""
    epochs = ranks(epochs_of_steps, q=1 / 12, epochs=20)
    steps = [list(itertools.chain(*of_rank)) for of_rank in epochs]
    assert len(steps[0]) == len(steps[1]) == 12 * 20
    assert all(together for of_rank in steps for together, _ in of_rank)
    assert any(not first and second for (_, first), (_, second) in zip(*steps, strict=True))
    assert not any(set(first) & set(second) for (_, first), (_, second) in zip(*steps, strict=True))


def physical_steps(rank, manager, draws, workers, epochs=1):
    """Per epoch and logical batch the pieces it came in; each step meets the other rank's step of the same number."""
    loader = GhostDataLoader(
        TensorDataset(torch.arange(64)), sample_rate=0.1, rank=rank, world_size=2, num_workers=workers,
        multiprocessing_context="fork" if workers else None,  # A spawned worker imports torch for seconds.
    )  # fmt: skip
    if draws is not None:
        prescribe(loader, [list(range(rank, 2 * size, 2)) for size in draws[rank]])
    optimizer, result = Flags(), []
    for _ in range(epochs):
        with MANAGERS[manager](data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as physical:
            logical = [[]]
            for (units,) in physical:
                logical[-1].append(units.tolist())
                assert take_part(len(logical)), "the ranks are in different logical batches"
                if optimizer.step():
                    logical.append([])
            assert logical.pop() == [] and sum(map(len, logical)) == len(physical)
        result.append(logical)
    return result


# Sizes of rank 0's and rank 1's logical batches; how many physical ones each becomes.
SPLITS = {
    "3_against_2": ([6, 1], [4, 1], [3, 1]),
    "shifted": ([4, 2], [2, 4], [2, 2]),
    "empty_on_one": ([0, 3], [3, 0], [2, 2]),
    "empty_on_both": ([0, 1], [0, 1], [1, 1]),
    "more_pieces_than_units": ([9, 1], [1, 9], [5, 5]),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("first, second, pieces", SPLITS.values(), ids=SPLITS.keys())
def test_ranks_split_alike(ranks, first, second, pieces, manager, workers):
    of_ranks = ranks(physical_steps, manager=manager, draws=[first, second], workers=workers)
    for rank, (sizes, (logical,)) in enumerate(zip((first, second), of_ranks, strict=True)):
        assert [len(batch) for batch in logical] == pieces
        assert all(len(piece) <= 2 for batch in logical for piece in batch)
        assert [list(itertools.chain(*batch)) for batch in logical] == [list(range(rank, 2 * n, 2)) for n in sizes]


@pytest.mark.parametrize("manager", MANAGERS)
def test_poisson_batches_split_alike(ranks, manager):
    of_ranks = ranks(physical_steps, manager=manager, draws=None, workers=0, epochs=6)
    first, second = (list(itertools.chain(*epochs)) for epochs in of_ranks)
    assert len(first) == len(second) == 60
    for mine, others in zip(first, second, strict=True):
        sizes = [sum(map(len, batch)) for batch in (mine, others)]
        assert len(mine) == len(others) == max(1, -(-max(sizes) // 2))


def unequal_lengths(rank):
    loader = GhostDataLoader(DATA, sample_rate=0.25, steps=4 + rank, rank=rank, world_size=2)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=Flags()) as physical:
        with pytest.raises(ValueError, match="from 4 to 5 steps"):
            iter(physical)


def test_loaders_of_unequal_length_are_refused_on_every_rank(ranks):
    ranks(unequal_lengths)


def a_group_of_one(rank):
    alone = [dist.new_group([member]) for member in range(2)][rank]
    wrong = GhostDataLoader(DATA, sample_rate=0.25, rank=rank, world_size=2, process_group=alone)
    with pytest.raises(ValueError, match="2 ranks, but the group has 1"):
        BatchMemoryManager(data_loader=wrong, max_physical_batch_size=2, optimizer=Flags()).__enter__()
    loader = GhostDataLoader(DATA, sample_rate=0.25, rank=rank, world_size=2, process_group=dist.group.WORLD)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=Flags()) as physical:
        own = loader.batch_sampler.own_group()
        assert own is not dist.group.WORLD and dist.get_backend(own) == "gloo"
        assert physical.batch_sampler._group is own
        return len(list(physical))


def test_the_agreement_has_a_group_of_its_own(ranks):
    lengths = ranks(a_group_of_one)
    assert lengths[0] == lengths[1]
