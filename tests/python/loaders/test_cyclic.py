"""Cyclic Poisson sampling: the coins of the C++ program, of one group of units after another, alike on any number of ranks."""

import itertools
from fractions import Fraction

import pytest
import torch
from coin_twin import coin
from drawing import Flags, assert_binomial, seeded
from torch.utils.data import DataLoader, TensorDataset

from ghostshard.loaders import BatchMemoryManager, CyclicBatchSampler, GhostDataLoader, plan_of
from ghostshard.loaders.cyclic import CyclicEpoch


def loader_of(units=24, batch=4, groups=3, **options):
    original = DataLoader(TensorDataset(torch.arange(units)), batch_size=batch)
    return GhostDataLoader.from_data_loader(original, groups=groups, **options)


@pytest.mark.parametrize(("groups", "first_turn"), [(2, 0), (3, 7)])
def test_the_draws_are_those_of_the_cpp_program(groups, first_turn):
    """dp/mechanism/sampler.h: unit j · groups + group has coin j of its step."""
    key, units, q = bytes(range(32)), 41, 0.4
    found = CyclicEpoch(key, range(units), q, 6, groups=groups, first_turn=first_turn, share=slice(None))
    for step, batch in enumerate(found.batches()):
        mine = range((first_turn + step) % groups, units, groups)
        assert batch.tolist() == [unit for j, unit in enumerate(mine) if coin(key, step, j) < int(Fraction(q) * 2**64)]


class Noted:
    """Stands in the engine's place: the groups of the units that each piece holds, and the group whose turn it says it is."""

    def __init__(self, loader, groups=3):
        self.turns, self.groups = [], groups
        loader.batch_sampler.stamps.receiver = self

    def hand_out(self, piece, batch):
        assert {int(unit) % self.groups for unit in batch[0]} <= {piece.turn % self.groups}
        self.turns.append(piece.turn)
        return batch

    def end_of_pass(self): ...

    def left(self, number): ...


@pytest.mark.parametrize("workers", [0, 2])
def test_turns_go_on_from_pass_to_pass(workers):
    """Seven draws a pass and three groups. A loader with workers begins its first pass twice."""
    original = DataLoader(TensorDataset(torch.arange(28)), batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    loader = GhostDataLoader.from_data_loader(original, groups=3)
    noted = Noted(loader)
    for _ in range(2):
        for _ in loader:
            pass
    assert noted.turns == list(range(14))


def test_a_pass_that_ends_early_is_no_reason_to_begin_anew():
    loader = loader_of()
    noted = Noted(loader)
    for _ in itertools.islice(loader, 2):
        pass
    first, second = iter(loader), iter(loader)
    for each in (first, second, first):
        next(each)
    assert noted.turns == [0, 1, 2, 2, 3], "each batch says of which group it is, whichever iterator drew it"


def test_each_unit_is_drawn_in_its_groups_turns_alone():
    units, draws, groups, passes = 10, 4, 2, 4000
    sampler = CyclicBatchSampler(num_samples=units, sample_rate=1 / draws, steps=draws, groups=groups)
    counts = torch.zeros(units)
    for _ in range(passes):
        for turn, batch in enumerate(sampler):
            assert all(unit % groups == turn % groups for unit in batch)
            counts[batch] += 1
    for unit in range(units):
        assert_binomial(int(counts[unit]), passes * draws // groups, groups / draws)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_draw_is_the_same_on_any_number_of_ranks(world_size, monkeypatch):
    """One seed on all ranks, as if rank 0's key had come to the others."""
    monkeypatch.setattr(CyclicBatchSampler, "own_group", lambda self: None)
    terms = {"num_samples": 50, "sample_rate": 1 / 9, "steps": 9, "groups": 4}
    whole = list(CyclicBatchSampler(**terms, generator=seeded()))
    shares = [list(CyclicBatchSampler(**terms, generator=seeded(), rank=rank, world_size=world_size)) for rank in range(world_size)]
    for step, batch in enumerate(whole):
        assert sorted(itertools.chain(*(share[step] for share in shares))) == batch


def test_physical_batches_are_of_their_draws_group():
    optimizer = Flags()
    with BatchMemoryManager(data_loader=loader_of(), max_physical_batch_size=3, optimizer=optimizer) as physical:
        stamps = physical.batch_sampler.stamps
        stamps.receiver = noted = Noted(loader_of())
        for (batch,) in physical:
            assert len(batch) <= 3
    assert sorted(set(noted.turns)) == list(range(6))


def test_a_plan_has_the_rate_within_a_group():
    plan = plan_of(DataLoader(TensorDataset(torch.arange(28)), batch_size=4), poisson=True, groups=7)
    assert (plan.rate, plan.charged_rate, plan.expected_batch, plan.charges_of(3)) == (1 / 7, 1.0, 4, 3)
    assert plan_of(loader_of(), poisson=True).groups == 3, "a loader that draws from groups goes on to"
    assert plan_of(loader_of(), poisson=True).charged_rate == pytest.approx(0.5)


@pytest.mark.parametrize(("options", "message"), [
    ({"groups": 7}, "at most the 6 batches of a pass"),
    ({"groups": 3, "sampling": "balls_in_bins"}, "neither with sampling='balls_in_bins' nor with max_batch_size"),
    ({"groups": 3, "max_batch_size": 8}, "neither with sampling='balls_in_bins' nor with max_batch_size"),
], ids=["too_many", "bins", "largest_batch"])  # fmt: skip
def test_groups_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        loader_of(**options)


def test_a_loader_that_draws_otherwise_is_refused():
    poisson = GhostDataLoader.from_data_loader(DataLoader(TensorDataset(torch.arange(24)), batch_size=4))
    with pytest.raises(ValueError, match="from other groups"):
        GhostDataLoader.from_data_loader(poisson, groups=3)
    with pytest.raises(ValueError, match="groups must be a whole number from 2"):
        CyclicBatchSampler(num_samples=24, sample_rate=1 / 6, steps=6, groups=7)


def test_a_run_that_goes_on_begins_with_the_first_group_and_deals_the_units_anew():
    """So that the group with the most rounds is the same one in all sessions, wherever a unit stands in the data set then."""
    dealt = set()
    for _ in range(40):
        loader = loader_of(units=24, batch=12, groups=2)
        loader.batch_sampler.go_on_at(5)
        noted = Noted(loader, groups=1)  # which units they are is looked at here
        batches = [set(batch[0].tolist()) for _ in range(2) for batch in loader]
        assert noted.turns == list(range(6, 10))
        for turn, batch in zip(noted.turns, batches):
            assert len({(unit + turn) % 2 for unit in batch}) == 1, "a whole group, at the rate 1"
        assert batches[0] == batches[2] and not batches[0] & batches[1], "the same groups from pass to pass"
        dealt.add(min(batches[0]))
    assert dealt == {0, 1}
