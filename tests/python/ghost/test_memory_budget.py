"""What a microbatch may record: budgets as they are given, the count of a step without privacy, the machine's room."""

import math

import pytest
import torch
from models import class_loss
from private import Private
from torch import nn

from ghostshard import _native
from ghostshard.ghost import memory_budget
from ghostshard.ghost.gathered import GatheredWeights
from ghostshard.ghost.layout import read_layout
from ghostshard.ghost.memory_budget import Memory, MemoryBudget, plan_memory
from ghostshard.ghost.ranks import Ranks

GIB = 1 << 30


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, MemoryBudget()), (0, MemoryBudget(bytes=0)), (600 << 20, MemoryBudget(bytes=600 << 20)),
        (1e9, MemoryBudget(bytes=10**9)), ("1.05x", MemoryBudget(times_plain=1.05)), ("1x", MemoryBudget(times_plain=1.0)),
    ],
    ids=str,
)  # fmt: skip
def test_a_budget_is_bytes_or_a_multiple(given, expected):
    assert MemoryBudget.parse(given) == expected


@pytest.mark.parametrize("given", [-1, math.nan, math.inf, True, "600", "0.9x", "x", "1,5x", "nanx", "infx", "plenty"], ids=repr)
def test_any_other_budget_is_refused_with_the_rule_and_the_value(given):
    with pytest.raises(ValueError, match="a multiple of the step without privacy") as refused:
        MemoryBudget.parse(given)
    assert repr(given) in str(refused.value)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))  # blocks of 56 and 27 parameters


@pytest.mark.parametrize(
    "ranks, accumulate, frozen, expected",
    [
        (1, False, False, 4 * 83 * 4),  # weights, reduced gradient, AdamW's two
        (1, True, False, 4 * 83 * 4 + 4 * 83),
        (2, False, False, 4 * 83 * 4 // 2 + 4 * 83),  # both blocks gathered
        (1, False, True, 4 * (83 + 27 * 3)),
    ],
    ids=["one_rank", "accumulated", "two_ranks", "frozen_block"],
)
def test_a_step_without_privacy_is_counted(ranks, accumulate, frozen, expected):
    counted = model()
    counted[0].requires_grad_(not frozen)
    layout = read_layout(counted, fsdp=False)
    assert memory_budget.plain_bytes(layout, shard_ranks=ranks, model_ranks=1, accumulate=accumulate) == expected


@pytest.fixture
def room(monkeypatch):
    """room(bytes): the machine has these free."""

    def set_room(free: float) -> None:
        engine = _native.load("engine")
        monkeypatch.setattr(engine, "host_memory_left", lambda: free)

    return set_room


def planned(given=None, *, free: float, room, held_before=None):
    room(free)
    return plan_memory(
        MemoryBudget.parse(given), read_layout(model(), fsdp=False), Ranks(torch.device("cpu")), accumulate=False,
        held_before=held_before,
    )  # fmt: skip


def test_without_a_budget_the_machines_room_is_kept_and_shared_by_the_ranks_of_the_host(room, monkeypatch):
    assert planned(free=64 * GIB, room=room).held == GIB
    assert planned(free=GIB, room=room).held == int(0.8 * GIB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert planned(free=GIB, room=room).held == int(0.2 * GIB)
    assert planned(free=GIB, room=room).records is None
    assert planned(free=math.inf, room=room).room is None


def test_a_large_model_may_hold_half_of_a_step_without_privacy(room):
    room(math.inf)
    with torch.device("meta"):
        large = nn.Linear(16384, 16384)
    plan = plan_memory(MemoryBudget(), read_layout(large, fsdp=False), Ranks(torch.device("cpu")), accumulate=False)
    assert plan.held == plan.plain // 2 > GIB


def test_a_multiple_leaves_what_is_beyond_the_step_without_privacy(room):
    plan = planned("1.25x", free=GIB, room=room)
    assert plan.records == plan.plain // 4
    assert planned("1x", free=GIB, room=room).records == 0
    assert planned(12345, free=GIB, room=room).records == 12345


def test_microbatches_are_summed_on_the_rank_if_there_are_several_and_room(room):
    layout = read_layout(model(), fsdp=False)
    sums, two = 4 * 83, Ranks(torch.device("cpu"), shape=(1, 2, 1))

    def summed(ranks=two, *, free=64 * GIB, budget=None, accumulate=None, several=True):
        room(free)
        return plan_memory(budget or MemoryBudget(), layout, ranks, accumulate=accumulate, several=several).sums

    assert summed() == sums
    assert summed(several=False) == 0
    assert summed(Ranks(torch.device("cpu"))) == 0  # nothing travels
    assert summed(Ranks(torch.device("cpu"), shape=(1, 64, 1))) == 0  # more than half of what a step takes with so many ranks
    assert summed(free=GIB) == 0  # which the examples' gradients take
    assert summed(budget=MemoryBudget(bytes=1 << 20)) == 0
    assert summed(accumulate=False) == 0
    assert summed(several=False, accumulate=True) == sums


def test_a_run_that_goes_on_keeps_its_plan_on_another_machine(room):
    assert planned(free=GIB, room=room, held_before=12345).held == 12345
    layout = read_layout(model(), fsdp=False)
    of = {"layout": layout, "ranks": Ranks(torch.device("cpu"), shape=(1, 2, 1)), "gathered": GatheredWeights(model(), layout)}
    before = Memory(None)
    room(64 * GIB)
    assert before.options(**of, several=True) == {"memory_budget": None, "hold_memory": GIB, "streamed": False}
    after = Memory(None)
    after.goes_on({"step": 3} | before.state)
    room(GIB / 2)
    assert after.options(**of, several=False) == before.options(**of, several=True)
    assert after.state == before.state == {"hold_memory": GIB, "accumulate": True}


def step(**options):
    torch.manual_seed(3)
    private = Private(model(), 1e-2, **options)
    batch = torch.randn(5, 6), torch.randint(0, 3, (5,))
    sums = [private.step(class_loss, [batch]) for _ in range(2)]
    engine = private.engine
    return sums, engine.memory.in_words(engine.layout, engine.session)


def test_the_plan_is_told_in_words_and_changes_no_sum():
    expected, said = step()
    assert "No budget: per-example gradients of a microbatch may take" in said
    for budget, words in (("1x", "may take 0.0 MiB"), ("1.5x", "in two passes from the next one on"), (0, "0.weight, 2.weight")):
        found, said = step(memory_budget=budget)
        assert words in said, said
        for ours, theirs in zip(found, expected):
            for name, value in ours.items():
                torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-7)


def test_before_the_first_forward_there_is_no_plan_to_tell():
    engine = Private(model(), 1.0).engine
    with pytest.raises(RuntimeError, match="as the first private forward begins"):
        engine.memory.in_words(engine.layout, engine.session)
