"""Who has left a pass over the loader, and who says so: two ranks' presences in one process, with a store of their own."""

import threading
import time
import warnings

import pytest
import torch.distributed as dist

from ghostshard.ghost.checks import presence
from ghostshard.ghost.checks.presence import Presence

pytestmark = pytest.mark.filterwarnings("ignore:rank .* has waited")
PATIENCE = 5  # seconds: a thread that looks ten times a second


class Control:
    group_name = "these"

    def __init__(self, rank):
        self.rank, self.size = lambda: rank, lambda: 2


class Waits:
    """A collective of an agreement: not over until it is told, like one that another rank does not come to."""

    def __init__(self):
        self.asked, self.over = 0, threading.Event()

    def wait(self, timeout=None):
        self.asked += 1
        if timeout is not None:
            raise RuntimeError("Operation timed out!")

    def is_completed(self):
        return self.over.is_set()


@pytest.fixture
def ranks(monkeypatch):
    """Two presences, and what those have done that have left. Each has come to three agreements, and taken a batch of pass 1 since."""
    store, parts = dist.HashStore(), []
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    found = [Presence(Control(rank), lambda rank=rank: parts.append(rank)) for rank in range(2)]
    for each in found:
        for _ in range(3):
            each.arrives()
        each.took(1)
    yield found[0], found[1], parts
    for each in found:
        each._end()


def waits(rank, *, in_the_loop=True, begun=False):
    rank.arrives()
    work = Waits()
    rank.wait(work, in_the_loop=in_the_loop, begun=begun, at="optimizer.step()")
    return work


def is_replaced(parts) -> bool:
    limit = time.monotonic() + PATIENCE
    while not parts and time.monotonic() < limit:
        time.sleep(0.02)
    return bool(parts)


def stays(parts) -> bool:
    time.sleep(4 * presence._FIRST_LOOK)
    return not parts


@pytest.mark.parametrize("left_first", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_one_that_left_is_replaced_where_the_others_go_on(ranks, begun, left_first):
    gone, other, parts = ranks
    if left_first:
        gone.left()
    assert waits(other, begun=begun).asked == 2 + presence._NOTICE // presence._LOOK
    if not left_first:
        gone.left()
    assert is_replaced(parts) and parts == [0]
    with pytest.raises(RuntimeError, match="this rank left its loop .* in which other ranks went on"):
        gone.arrives()


def test_it_is_replaced_in_every_agreement_that_follows(ranks):
    gone, other, parts = ranks
    gone.left()
    for times in (1, 2):
        waits(other)
        other.took(1)
        assert is_replaced(parts)
        limit = time.monotonic() + PATIENCE
        while len(parts) < times and time.monotonic() < limit:
            time.sleep(0.02)
        assert parts == [0] * times


def both_left(gone, other):
    gone.left()
    other.left()
    waits(other)


def one_begins_another_pass(gone, other):
    gone.left()
    gone.took(2)
    waits(other)


def the_other_began_another_pass(gone, other):
    gone.left()
    other.took(2)
    waits(other)


def the_pass_was_over(gone, other):
    for each in (gone, other):
        each.ended()
        each.left()
    waits(other)


def no_further_batch(gone, other):
    """The second forward of a batch: its iterator may be held by a variable, and its loop be over as well."""
    for each in (gone, other):
        each.arrives()
    gone.left()
    waits(other)


def an_evaluation(gone, other):
    gone.left()
    waits(other, in_the_loop=False)


def it_was_there_before(gone, other):
    """And left after the agreement that the other waits in."""
    gone.arrives()
    waits(other)
    gone.left()


def in_a_worker(gone, other):
    gone._process += 1
    gone.left()
    waits(other)


NO_FAULT = (both_left, one_begins_another_pass, the_other_began_another_pass, the_pass_was_over, no_further_batch, an_evaluation, it_was_there_before, in_a_worker)


@pytest.mark.parametrize("case", NO_FAULT, ids=lambda case: case.__name__)
def test_nobody_is_replaced_who_comes_later(ranks, case):
    gone, other, parts = ranks
    case(gone, other)
    assert stays(parts)
    gone.arrives()


def test_a_rank_that_is_awaited_briefly_is_not_asked_for(ranks):
    gone, other, parts = ranks
    gone.left()
    other.arrives()
    work = Waits()
    work.wait = lambda timeout=None: True
    other.wait(work, in_the_loop=True, begun=True, at="optimizer.step()")
    assert stays(parts)


class Fails(Waits):
    def wait(self, timeout=None):
        super().wait(timeout)
        raise RuntimeError("Connection closed by peer")


def test_an_error_of_the_collective_is_raised(ranks):
    """That is over: nobody waits any more."""
    _, other, parts = ranks
    work = Fails()
    work.over.set()
    with pytest.raises(RuntimeError, match="Connection closed"):
        other.wait(work, in_the_loop=True, begun=True, at="optimizer.step()")
    assert work.asked == 2


def test_a_rank_that_comes_just_after_the_time_is_no_error(ranks):
    _, other, parts = ranks
    work = Waits()
    work.over.set()
    other.wait(work, in_the_loop=True, begun=True, at="optimizer.step()")
    assert work.asked == 2 and stays(parts)


def test_those_that_do_not_come_are_named(ranks):
    """Once both wait, nobody is missing."""
    late, other, _ = ranks
    with pytest.warns(UserWarning, match=r"rank 1 has waited \d+ s at optimizer.step\(\) for rank 0, which is slow or elsewhere"):
        waits(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        waits(late)


def test_one_rank_alone_has_no_thread():
    alone = Presence(None, lambda: None)
    alone.took(1)
    alone.left()
    assert alone._thread is None
