"""A loader whose batches are Poisson samples, made from one that shuffles."""

import opacus
import pytest
import torch
from drawing import DATA, seeded
from opacus.data_loader import DPDataLoader, switch_generator
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler  # fmt: skip

from ghostshard.loaders import GhostDataLoader


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))


class Evens(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(0, 12, 2))

    def __len__(self):
        return 6


def test_batch_first_is_opacus_word_and_means_nothing():
    """Batches show which dimension counts rows."""
    for batch_first in (True, False):
        assert isinstance(GhostDataLoader.from_data_loader(DataLoader(DATA, batch_size=4), batch_first=batch_first), GhostDataLoader)
    with pytest.raises(TypeError, match="batch_first"):
        GhostDataLoader(DATA, sample_rate=0.5, batch_first=True)


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
                 "persistent_workers", "pin_memory", "generator"):  # fmt: skip
        assert getattr(made, name) is getattr(original, name), name
    assert made.in_order  # the engine must know which draw a batch is from
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


def test_a_generator_that_is_seeded_again_gives_no_draw_twice():
    """Epsilon counts on coins of their own for every step."""
    generator = torch.Generator()
    loader = GhostDataLoader.from_data_loader(DataLoader(DATA, batch_size=4, generator=generator))
    passes = []
    for _ in range(3):
        generator.manual_seed(3)
        passes.append([[int(unit) for unit in batch[1]] for batch in loader])
    assert len({str(each) for each in passes}) == 3
