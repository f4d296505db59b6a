"""Which draw a batch is from: the private loader tells it to the engine whenever it hands a batch out.

The engine stamps the batch's tensors then (ghost/provenance). A sampler notes a Piece for each batch that it draws; batches leave
a DataLoader in the order in which they were drawn, so its iterator knows the piece of each batch that it hands out, however many
batches its workers fetch ahead.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from .empty_batch import CollateOrEmpty
from .padding import Axis, Told

_LOST = (
    "a batch of the private loader did not come to its end (an error in the data set or in collate_fn, an interrupt), so this pass is over: the batches that follow would be taken "
    "for parts of its draw, and that a draw makes no step must not follow from what it holds. Begin another iteration over the loader, and let the data set give every "
    "example (a placeholder for one that cannot be read), or leave such examples out (torch.utils.data.Subset)"
)


@dataclass(frozen=True)
class Piece:
    """The units of one draw that one batch holds on this rank. A draw has `count` pieces, on every rank."""

    draw: tuple[int, int]  # which pass over the sampler, and which draw of it
    index: int
    count: int
    units: int
    turn: int = 0  # of the draw, through all passes: of cyclic sampling, whose groups take turns
    constants: Any = field(default=None, compare=False, repr=False)  # that its tensors may meet: the receiver's
    padding: tuple[Axis, ...] = field(default=(), compare=False, repr=False)  # of some batches
    lists: dict = field(default_factory=dict, compare=False, repr=False)  # what a loader's process told of lists (padding.py)
    entries: dict = field(default_factory=dict, compare=False, repr=False)


class Receiver(Protocol):
    """The engine's side (ghost/checks/batches.py)."""

    def hand_out(self, piece: Piece, batch: Any) -> Any:
        """The batch as the loop gets it next, stamped. RuntimeError if the loop has not done with the draw before."""
        ...

    def left(self, number: int) -> None:
        """The iterator of this pass is gone, and was not at its end."""
        ...

    def end_of_pass(self) -> None: ...


class Stamps:
    """A sampler's notes on the batches that it has drawn. `receiver`: set by make_private()."""

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        self.alone: Callable[[], None] = lambda: None  # RuntimeError if another thread is within a step
        self._passes = 0
        self.items = 0  # of the data set: a digest when the latest pass began, if several ranks deal them out, or groups take turns
        self.turns = 0  # the next pass's first, if nothing is drawn before it
        self.ended = 0  # passes up to this one dealt the examples to other groups than those that follow
        self.waiting: deque[Piece] = deque()  # of the latest pass: drawn and not handed out
        self.latest: weakref.ref[StampedBatches] | None = None  # not held: it holds workers

    @property
    def passes(self) -> int:
        """Begun so far."""
        return self._passes

    def begin_pass(self, first_turn: int = 0) -> Pass:
        self._passes += 1
        self.waiting = deque()
        return Pass(self, self._passes, first_turn)


class Pass:
    """A worker's DataLoader begins its first pass twice and draws from the later one, so each has notes of its own."""

    def __init__(self, stamps: Stamps, number: int, first_turn: int):
        self._stamps, self._waiting = stamps, stamps.waiting
        self._number, self._turn, self._draws = number, first_turn, 0

    def noted(self, pieces: list[Any]) -> Iterator[Any]:
        """The pieces of one draw, each a sequence of units; each is noted when it is taken."""
        self._draws, turn = self._draws + 1, self._turn + self._draws
        if self._number > self._stamps.ended:
            self._stamps.turns = max(self._stamps.turns, turn + 1)
        for index, piece in enumerate(pieces):
            self._waiting.append(Piece((self._number, self._draws), index, len(pieces), len(piece), turn))
            yield piece


class StampedBatches:
    """A DataLoader's iterator, which tells the receiver of each batch before the loop has it."""

    def __init__(self, batches: Any, stamps: Stamps):
        self.batches, self._receiver, self._waiting, self._alone = batches, stamps.receiver, stamps.waiting, stamps.alone
        self.superseded = False  # `batches` went over to a later pass, whose notes this iterator does not have
        self._pass: int | None = None  # that it is in the midst of
        self._taking = False  # a batch, which has not come yet

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.batches)

    def __next__(self) -> Any:
        if self.superseded:
            raise RuntimeError(
                "this iterator of the private loader ended when the next one began: with persistent_workers=True they share their workers"
            )
        if self._taking:
            raise RuntimeError(_LOST)
        self._alone()
        self._taking = True
        try:
            batch = next(self.batches)
        except StopIteration:
            self._pass, self._taking = None, False
            self._receiver.end_of_pass()
            raise
        piece = self._waiting.popleft()
        self._taking = False
        if isinstance(batch, Told):
            piece, batch = replace(piece, padding=tuple(batch.axes), lists=batch.lists, entries=batch.entries), batch.batch
        self._pass = piece.draw[0]
        return self._receiver.hand_out(piece, batch)

    def __del__(self) -> None:
        if self._pass is not None:
            self._receiver.left(self._pass)


class StampedLoader:
    """Mixed into a DataLoader whose batch_sampler has `stamps`."""

    def __iter__(self) -> Iterator[Any]:
        stamps: Stamps = self.batch_sampler.stamps  # type: ignore[attr-defined]
        batches = self._told() if stamps.receiver is not None else super().__iter__()  # type: ignore[misc]
        before = stamps.latest and stamps.latest()
        if before is not None and before.batches is batches:
            before.superseded = True
        if stamps.receiver is None:
            return batches
        stamped = StampedBatches(batches, stamps)
        stamps.latest = weakref.ref(stamped)
        return stamped

    def __reduce_ex__(self, protocol: int) -> Any:
        if self.batch_sampler.stamps.receiver is None:  # type: ignore[attr-defined]
            return super().__reduce_ex__(protocol)
        raise TypeError(
            "a private loader is neither copied nor pickled: the engine knows which draw a batch is from by the one that make_private() returned. Take that one, or give "
            "make_private() of another PrivacyEngine the data loader that you built"
        )

    def _told(self) -> Iterator[Any]:
        """DataLoader's iterator, of what its processes told with each batch."""
        collate = self.collate_fn  # type: ignore[has-type]
        try:
            self.collate_fn = collate.telling() if isinstance(collate, CollateOrEmpty) else collate
            return super().__iter__()  # type: ignore[misc]
        finally:
            self.collate_fn = collate


__all__ = ["Pass", "Piece", "Receiver", "StampedLoader", "Stamps"]
