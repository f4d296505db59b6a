"""Has a rank that the others wait for left the loop that they are in?

A rank that breaks out of its loop and lives on (in a barrier of the script's own, in an evaluation) comes to no agreement, and its
process answers, so that nothing tells the others. What shows it is its iterator over the private loader, which is gone. So a rank that waits for more
than a moment writes to torch.distributed's store at which agreement it waits, and in which pass over the loader; and a rank whose
iterator ended early has a thread that reads this. If others go on in the very pass that this rank has left, the thread takes its place in
the agreement that they wait in, and says so: all of them raise, and this rank at its next agreement.

Left and not gone on is no fault in itself: all ranks may break, and evaluate for however long. So only a rank with a batch of that pass
in hand asks, in a forward, a backward or a step. An iterator that is still held by a variable has not ended: such a rank cannot be told from
one that is slow, so after some seconds a warning names it, and the groups' time limit ends the wait.

Ranks may also wait for each other in two runs of one program (two models, each with its loader), or one in a run and one where a pass over a loader begins (meeting_places.py).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...lost_ranks import RULE, LostRank
from ...meeting_places import arrive, crossing, store, wait_at
from ..ranks import TIMEOUT

_PATIENCE = timedelta(seconds=0.3)  # before a rank asks
_NOTICE = timedelta(seconds=10)  # after that, before a warning names those that are waited for
_LOOK = timedelta(seconds=0.5)  # while it waits
_FIRST_LOOK, _LAST_LOOK = 0.1, 2.0  # seconds between two looks at the store: each 1.3 times the one before


class Presence:
    """Of this rank. control: the group of all ranks; None for one alone. take_part(): its part in an agreement, as one that has left."""

    def __init__(self, control: Any, take_part: Callable[[], None]):
        self._control = control
        self._take_part = take_part
        self._state = threading.Condition()
        self._met = 0  # agreements: as many on every rank
        self._pass = 0  # over the loader, as all ranks count them; 0: in none
        self._taken_at = -1  # agreements when the latest batch was taken
        self._left = False
        self._replaced = False  # the thread has taken this rank's place
        self._process = os.getpid()  # workers of a loader are copies of it
        self._thread: threading.Thread | None = None
        self._over = False

    # The loader's side ----------------------------------------------------------------------------------------------

    def took(self, number: int) -> None:
        """A batch of this pass."""
        with self._state:
            self._pass, self._taken_at, self._left = number, self._met, False

    def ended(self) -> None:
        """The pass came to its end."""
        with self._state:
            self._pass = 0

    def left(self) -> None:
        """The iterator of the latest pass is gone, before the pass was over."""
        if self._control is None or _ENDING.is_set() or os.getpid() != self._process:
            return
        with self._state:
            self._left = self._pass > 0
            if self._left and self._thread is None:
                self._thread = threading.Thread(target=self._looks, name="ghostshard: left", daemon=True)
                self._thread.start()
                atexit.register(self._end)
            self._state.notify()

    # The agreement's side -------------------------------------------------------------------------------------------

    def arrives(self) -> None:
        """This rank is at an agreement. RuntimeError if its place was taken."""
        with self._state:
            if self._replaced:
                raise RuntimeError(f"this rank left its loop over the private loader, in which other ranks went on: they have ended by now. {RULE}")
            self._met += 1
        arrive(self._control)

    def wait(self, work: Any, *, in_the_loop: bool, begun: bool, at: str) -> None:
        """For a collective of the agreement that this rank is at. in_the_loop: it is one of a private step. begun: and not the first of
        its batch. at: in words. Warns of ranks that do not come."""
        since = time.monotonic()
        if _is_over(work, _PATIENCE):
            return
        gc.collect()  # an iterator in a circle of references is gone on another rank, perhaps
        with contextlib.suppress(RuntimeError, ValueError):  # the store is gone: the collective will say so
            self._write(in_the_loop=in_the_loop, begun=begun)
        crossed = None
        for _ in range(_NOTICE // _LOOK):
            before, crossed = crossed, crossing(self._control)
            if crossed is not None and crossed == before:  # seen once it may have just left the collective that this rank is about to leave
                self._refuse_crossing(crossed)
            if _is_over(work, _LOOK):
                return
        with contextlib.suppress(RuntimeError, ValueError):
            self._warn(at, time.monotonic() - since)
        work.wait()

    def _write(self, *, in_the_loop: bool, begun: bool) -> None:
        """That this rank waits, and whether for one that may have left its pass."""
        board, key = self._board()
        wait_at(self._control)
        with self._state:
            goes_on = self._pass > 0 and not self._left and (begun or self._taken_at >= self._met - 1)
            met, number = self._met, self._pass
        board.set(f"{key}/{self._control.rank()}", str(met))
        if in_the_loop and goes_on:
            board.set(key, f"{met} {number}")

    @staticmethod
    def _refuse_crossing(rank: int) -> None:
        """For a rank that this one waits for, and that waits for this one elsewhere."""
        raise LostRank(
            f"rank {dist.get_rank()} and rank {rank} wait for each other, in two runs (two models that were made private) or at the beginning of a pass over a private loader: every rank "
            f"calls forward, backward and step() of several runs in one order, and iter() of a loader as often as the others. {RULE}"
        )

    def _warn(self, at: str, seconds: float) -> None:
        board, key = self._board()
        came = [board.check([each]) and int(board.get(each)) >= self._met for each in (f"{key}/{rank}" for rank in range(self._control.size()))]
        late = [str(rank) for rank, there in enumerate(came) if not there]
        if late:
            warnings.warn(
                f"rank {self._control.rank()} has waited {seconds:.0f} s at {at} for rank {', '.join(late)}, which is slow or elsewhere (an error ends the wait "
                f"after {TIMEOUT.total_seconds() / 60:g} minutes). {RULE}",
                stacklevel=2,
            )

    def _board(self) -> tuple[Any, str]:
        """Where ranks write that they wait: the store, and the key of this run."""
        return store(), f"ghostshard/waits/{self._control.group_name}"

    # The thread -----------------------------------------------------------------------------------------------------

    def _looks(self) -> None:
        pause = _FIRST_LOOK
        while True:
            with self._state:
                if self._over:
                    return
                if not self._left:
                    pause = _FIRST_LOOK
                    self._state.wait()
                    continue
            try:
                called = self._is_called()
                if called:
                    self._take_part()
            except (RuntimeError, ValueError):
                return  # the others have ended, or torch.distributed has
            with self._state:
                if not (called or self._over):
                    self._state.wait(pause)
                    pause = min(1.3 * pause, _LAST_LOOK)

    def _is_called(self) -> bool:
        """Whether others wait for this rank in the pass that it has left; then it is at their agreement from here on."""
        board, key = self._board()
        if not board.check([key]):
            return False
        agreement, number = map(int, board.get(key).split())
        with self._state:
            called = self._left and number == self._pass and agreement == self._met + 1
            if called:
                self._met, self._replaced = agreement, True
            return called

    def _end(self) -> None:
        """Before the interpreter goes, which a thread must not outlive."""
        with self._state:
            self._over = True
            self._state.notify()
        if self._thread is not None:
            self._thread.join(1.0)


def _is_over(work: Any, patience: timedelta) -> bool:
    """Within that time. RuntimeError if it ended with one."""
    try:
        work.wait(patience)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it may have been over just after the time was
    return True


_ENDING = threading.Event()  # the interpreter is
atexit.register(_ENDING.set)

__all__ = ["Presence"]
