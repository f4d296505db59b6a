"""Ranks compare where they are in the run before they communicate anything else: whoever is elsewhere ends all of them with a
sentence, instead of a wait for a message that never comes."""

from __future__ import annotations

import contextlib
import functools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...lost_ranks import answered
from .presence import Presence
from .read_together import NOTHING_READ
from .replicas import NONE, Replica

FORWARD, BACKWARD, STEP, EVALUATION, SAVING, LEFT = range(6)
_NAMES = (
    "a forward", "a backward", "optimizer.step()", "a forward without gradients (an evaluation)", "a checkpoint or a report",
    "nothing: it has left its loop over the private loader (break, return, an error that was caught)",
)  # fmt: skip
_PLACES = ("step", "attempt", "items of the data set by their digest", "passes over the loader", "draws begun", "batches handed out", "batches gone backward", "draws passed over", "parameters that train by their digest", "settings of the criterion and autocast by their digest", "settings of the optimizer by their digest")
_MODES = "modules in training mode by their digest"  # the last of them, before a backward
_TERMS = ("clip norm", "noise multiplier", "learning rates together")


class Agreement:
    """control: the group of all ranks; None for one alone. refuse_apart: of an event, and of what each rank tells there of its weights or its batch."""

    def __init__(self, control: Any, refuse_apart: Callable[[int, Sequence[Replica]], None] = lambda *_: None):
        self._control, self._refuse_apart = control, refuse_apart
        self.presence = Presence(control, self._without_this_rank)
        self.several = control is not None
        self.units = 0  # of all ranks, as they told them at the latest event
        self.reads: list[tuple[float, float]] = []  # of each

    def elsewhere(self, event: int, wrong: Exception | None = None, news: int = 0) -> int:
        """Of all ranks together, at no place of the run. RuntimeError on all of them if some are not at this event. A collective."""
        return self(event, *_NOWHERE, wrong, news)

    def _without_this_rank(self) -> None:
        """Its part in an agreement of the others, after it has left."""
        with contextlib.suppress(RuntimeError, ValueError):
            self._compare(LEFT, *_NOWHERE)

    def __call__(
        self, event: int, place: Sequence[int], terms: Sequence[float], wrong: Exception | None = None, news: int = 0, replica: Replica = NONE, units: int = 0,
        reads: tuple[float, float] = NOTHING_READ,
    ) -> int:  # fmt: skip
        """Raises `wrong`, this rank's own error, or RuntimeError on all ranks if another has one, is elsewhere, or has other terms. A
        collective.

        place, terms: as _PLACES and _TERMS name them. news: bits. Returns those that any rank has. replica: of this rank's weights, or of its batch. units: that this rank has. reads: that it read last.
        """
        if self._control is None:
            if wrong is not None:
                raise wrong
            return news
        self.presence.arrives()
        return self._compare(event, place, terms, wrong, news, replica, units, reads)

    def _compare(
        self, event: int, place: Sequence[int], terms: Sequence[float], wrong: Exception | None = None, news: int = 0, replica: Replica = NONE, units: int = 0,
        reads: tuple[float, float] = NOTHING_READ,
    ) -> int:  # fmt: skip
        own = [news, replica[0], *map(_bits, replica[1:]), units, *map(_bits, reads)]
        mine = torch.tensor([wrong is not None, event, *place, *map(_bits, terms), *own])
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._control))]
        with answered():
            work = dist.all_gather(every, mine, group=self._control, async_op=True)
            self.presence.wait(work, in_the_loop=event in (FORWARD, BACKWARD, STEP), begun=event != FORWARD, at=_NAMES[event])
        if any(bool(each[0]) for each in every):
            self._raise_the_first(wrong)
        alike = len(mine) - len(own)
        others = [rank for rank, each in enumerate(every) if not torch.equal(each[:alike], every[0][:alike])]
        if others:
            raise RuntimeError(
                f"the ranks are not at the same place of the run: rank 0 is at {_described(every[0])}; rank {others[0]} at "
                f"{_described(every[others[0]])}. Every rank takes every batch of its loader, empty ones too, calls backward "
                "and step() equally often, leaves the loop where the others leave it, has the data set in their order, trains the same parameters and the same modules in training mode, sets its criterion and autocast (torch.autocast) alike, and changes clip norm, noise multiplier, learning rates and other settings of the optimizer alike. A "
                "sharded model is evaluated and saved by all ranks together. Nothing of this was released"
            )
        told = [each[alike:].tolist() for each in every]
        self._refuse_apart(event, [(part, _number(total), _number(norm)) for _, part, total, norm, *_ in told])
        self.units, self.reads = sum(each[4] for each in told), [(_number(first), _number(last)) for *_, first, last in told]
        return functools.reduce(operator.or_, (each[0] for each in told))

    def _raise_the_first(self, wrong: Exception | None) -> None:
        said: list = [None] * dist.get_world_size(self._control)
        with answered():
            dist.all_gather_object(said, None if wrong is None else str(wrong), group=self._control)
        if wrong is not None:
            raise wrong
        rank = next(rank for rank, sentence in enumerate(said) if sentence is not None)
        raise RuntimeError(f"rank {rank} refused this: {said[rank]}")


_NOWHERE = ([0] * len(_PLACES), [0.0] * len(_TERMS))


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _number(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def _described(found: torch.Tensor) -> str:
    _, event, *given = found.tolist()
    if event in (EVALUATION, SAVING, LEFT):
        return _NAMES[event]
    given = given[: len(_PLACES) + len(_TERMS)]
    places = (*_PLACES[:-1], _MODES) if event == BACKWARD else _PLACES
    values = [*given[: len(_PLACES)], *map(_number, given[len(_PLACES) :])]
    return f"{_NAMES[event]} ({', '.join(f'{name} {value}' for name, value in zip(places + _TERMS, values, strict=True))})"


__all__ = ["BACKWARD", "EVALUATION", "FORWARD", "SAVING", "STEP", "Agreement"]
