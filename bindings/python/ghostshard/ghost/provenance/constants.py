"""Constants that meet a batch: numbers and tensors that stand for all of its examples. Do they follow from the batch?

A number that a loop reads from private tensors (`y.float().mean().item()`) may come back as a constant, and Python does not say
where a number comes from. But a constant stays what it is from draw to draw, and a number of the batch does not. So each
place of the loop remembers which constants it had, and a change is refused where it may follow from examples:

* after values of the draw were read, until its loss is formed (what is read after that cannot enter it);
* if the constant goes with the number of examples that were drawn, or rows are scaled by one that goes with how far they are padded;
* a tensor's, in a batch of one example, or after functions that are not followed: nothing tells it from a row of another example.

A constant that changes by itself (an annealed weight, a random scale) goes through elsewhere. Numbers that were read are Read or
ReadInt, and are known again after plain arithmetic, also in later draws.
"""

from __future__ import annotations

import collections
import os
from typing import Any

import numpy as np
import torch

from .counts import COUNTED, AmongRanks, Lines, follows
from .courses import Courses
from .decisions import COMPARISONS, deciding
from .formed import Formed, goes_to_ranks
from .opened import contents
from .places import masks_of_transformers, place_of_loop
from .summaries import Reads

_MOST = 1 << 16  # elements of a tensor of which a copy is kept; of larger ones, a few sums
_SCALING = set("mul multiply div divide true_divide truediv floordiv floor_divide pow".split()) | {"the loss", "the criterion"}
_LATER = "Read numbers of a batch when its loss is formed (loss = criterion(...) comes first, then metrics, then backward())"


class Constants:
    """Of one run."""

    def __init__(self) -> None:
        # By place: the constant, how many examples its batch had, how often it has gone with their number, and with an extent of the batch
        self._known: dict[Any, tuple[Any, int, int, int]] = {}
        self._extents: dict[Any, tuple[int, ...]] = {}  # by place: of that batch
        # By place and number of dimensions: which of them cannot be the examples', as batches of several showed
        self._not_rows: dict[Any, set[int]] = {}
        self._counted: dict[Any, tuple[int, int]] = {}
        self.lines, self._among_ranks = Lines(), AmongRanks()
        self._padded: set[int] = set()  # places in `extents`
        self.padded_left: set[int] = set()
        self.starts: dict[tuple, tuple[int, int, int]] = {}  # of padded.py
        self.extents: tuple[int, ...] = ()  # of the batch's tensors at hand
        self._of_lists: tuple[int, ...] = ()  # of its lists of the examples: how many rows all entries have together (boxes, tokens)
        self._lists_of: dict[Any, tuple[int, ...]] = {}  # by place, as extents
        self._times: collections.Counter = collections.Counter()
        self._ways: dict[Any, dict] = {}  # by place: how a tensor was computed that came there (ways.py)
        self.courses = Courses()
        self._units = 0
        self._draws = 0  # with examples
        self._empty = True
        self._batches = 0  # of the draw at hand
        self.read = ""  # what was read of this draw
        # While a forward or a criterion is under way, whose arguments are not followed: those of a forward that have the examples' rows
        self.within: tuple[torch.Tensor, ...] | None = None
        self.list_joined: tuple[str, str, int] | None = None  # where a loop joined a list with an entry for each example
        self.opened = False  # a constant that was 0 is none any more
        self._left_0: set[Any] = set()  # the lines where that was said once

    def begin_draw(self) -> None:
        self.read = ""
        self._empty = True
        self._batches = 0

    def begin_batch(self, units: int) -> None:
        self.within = None
        self._batches += 1
        self._draws += self._empty and units > 0  # an empty batch meets nothing that is followed
        self._empty = self._empty and units == 0
        self._units = units
        self.courses.begin(units)
        self._among_ranks.begin()
        self.extents = self._of_lists = ()
        self._times.clear()

    def take_list(self, entries: Any) -> None:
        """One of the batch at hand, with an entry for each example."""
        rows = [[each.shape[0] for each in contents(entry) if each.dim()] for entry in entries]
        self._of_lists += tuple(map(sum, zip(*rows)))

    def goes_with_count(self, name: str, value: int) -> str:
        """Why a whole number, which may be an extent, is none but how many examples there are; "" if it is not known to be."""
        line = ("count", name, *place_of_loop())
        self._times[line] += 1
        return COUNTED.format(name) if self.lines.goes_with_count((*line, self._times[line]), self._units, value) else ""

    def went_with(self, units: int) -> str:
        """Why a number that met the batch follows from how many examples all ranks have together; "" if none is known to."""
        place = self._among_ranks.found(self._units, units)
        return COUNTED.format(f"{place[0]} ({os.path.basename(place[1])}:{place[2]})") if place else ""

    def was_read(self, how: str) -> None:
        self.courses.was_read(how)
        if not self.read and (how != "bool()" or place_of_loop()[0] != masks_of_transformers()):
            self.read = how

    def wrong(self, name: str, value: Any, *, alone: bool = False, single: bool = False) -> str:
        """Why this number or tensor is not known to be a constant, where the loop now is; "" if it is one. alone: nothing else tells it
        from rows of other examples. single: nothing does but its extents, where larger batches may have shown that none of them is the examples'."""
        if isinstance(value, (Read, ReadInt)):
            return (
                f"{name} met a number that was read from a private batch, or that collate_fn counted over it (a constant belongs outside of the batch), "
                "or that a forward returned beside its outputs and that changed"
            )
        line = (name, *place_of_loop())
        self._times[line] += 1
        place, kept = (*line, self._times[line]), _kept(value, self._units)
        before, units, hits, of_extents = self._known.get(place, (None, 0, 0, 0))
        extents = self._extents.get(place, ())
        same = bool(before is not None and _same(before, kept))
        self._among_ranks.note(place, _number(kept))
        was = _number(before)
        if not same and isinstance(was, (int, float)) and was == 0 and line not in self._left_0:
            self.opened = True
            self._left_0.add(line)
        self._known[place] = kept, self._units, hits if units == self._units else 0, of_extents if same else 0
        self._extents[place] = self.extents
        lists, self._lists_of[place] = self._lists_of.get(place, ()), self._of_lists
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        not_rows = self._not_rows.get((place, len(shape)))
        alone = alone or (single and (not_rows is None or not not_rows.issuperset(d for d, extent in enumerate(shape) if extent == 1)))
        if self._units > 1:  # a tensor with a row for each example has as many there, in every batch
            self._not_rows.setdefault((place, len(shape)), set()).update(d for d, extent in enumerate(shape) if extent != self._units)
        if before is None:
            last = self._known.get((*line, self._times[line] - 1), (None,))[0]
            if not self.read or self._draws < 2 or (last is not None and _same(last, kept)):  # a loop over more rows than before
                return ""
            return f"{name} met a constant that earlier draws did not have, after {self.read} read values of this one. {self._later}"
        if same:
            return ""
        if self.read:
            return f"{name} met a constant that is not what it was in earlier draws, after {self.read} read values of this one. {self._later}"
        if alone and isinstance(value, torch.Tensor) and not _goes_on(before, kept):
            return (
                f"{name} joined it with a tensor {tuple(value.shape)} that is not what it was in earlier draws, and nothing tells it from "
                "a row of another example here"
            )
        if alone and isinstance(value, torch.Tensor) and before.numel() > kept.numel():
            self._known[place] = before, self._units, 0, 0  # as far as it is known
        if isinstance(value, (int, float)) and self.lines.goes_with_count(place, self._units, value):
            return COUNTED.format(name)
        of_count = isinstance(value, (int, float)) and follows(before, units, value, self._units) is not None
        if of_count and hits:  # once may be chance
            return COUNTED.format(name)
        one, two = (_number(each) for each in (before, kept))
        of_lists = any(follows(one, then, two, now) is not None for then, now in zip(lists, self._of_lists))
        if of_lists and hits:
            return f"{name} met a number that goes with how many entries the batch's lists have: take each example's own number, or a constant"
        found = []
        if name in _SCALING or isinstance(value, torch.Tensor):
            both = zip(extents, self.extents)
            found = [each for each in both if any(follows(one, each[0] + shift, two, each[1] + shift) is not None for shift in (0, -1, 1))]
        if found and of_extents:
            if all(each == (units, self._units) for each in found):
                return COUNTED.format(name)
            return (
                f"{name} met a number that goes with how far the batch is padded, which follows from its longest example: take each example's own "
                "number of places, or a constant"
            )
        if of_count or of_lists or found:
            self._known[place] = kept, self._units, hits + (of_count or of_lists), of_extents + bool(found)
        return ""

    @property
    def _of_several(self) -> str:
        return "; of a draw in several batches, read losses after the last one's backward (keep loss.detach())" if self._batches > 1 else ""

    @property
    def _later(self) -> str:
        return _LATER + self._of_several

    def steered(self, name: str, way: dict[tuple, int]) -> str:
        """Why a tensor that was computed this way may not be used where the loop now is; "" if it was computed so in earlier draws, or if nothing
        was read of this one."""
        if not self.read or self._units < 2:  # one example's branches are its own
            return ""
        line = ("way", name, *place_of_loop())
        self._times[line] += 1
        near = {extent + shift for extent in self.extents for shift in (-1, 0, 1)}  # a loop over places
        way = {place: 0 if times > 1 and times in near else times for place, times in way.items()}
        before = self._ways.setdefault((*line, self._times[line]), way)
        if before == way:
            return ""
        one, two = ({*before.items()} - {*way.items()}, {*way.items()} - {*before.items()})
        function, file, number = next(iter(two or one))[0]
        return (
            f"it was computed in another way than in an earlier draw ({function} in {os.path.basename(file)}:{number}), after {self.read} read values of "
            "this one: a branch or the turns of a loop may follow from the batch. Choose per example (torch.where), or by coins and counters, before anything is read"
            + self._of_several
        )

    def learn(self, padded: set[int], left: set[int]) -> None:
        """Which of the batch's extents follow from its longest example. left: those where padding comes first."""
        self.padded_left |= {place for place, extent in enumerate(self.extents) if extent in left}
        self._padded |= {place for place, extent in enumerate(self.extents) if extent in padded}

    @property
    def padded(self) -> list[int]:
        """Those of the batch at hand."""
        return sorted({extent for place, extent in enumerate(self.extents) if place in self._padded})

    def goes_with_padding(self, name: str, extent: int, padded: int) -> bool:
        """Whether an extent that the loop counts (a mean's) has gone with one that follows from the longest example, as far as another batch showed it
        too: one alone may be alike by chance."""
        line = (name, *place_of_loop())
        before, self._counted[line] = self._counted.get(line), (extent, padded)
        if before is None or before[1] == padded:
            return False
        return extent * before[1] == before[0] * padded or extent - padded == before[0] - before[1]


def note_list(name: str, entries: list[Any]) -> None:
    """Function `name` joins a list with an entry for each example, as a loop made it."""
    constants = getattr(entries[0]._origin.memory.piece, "constants", None)
    if constants is not None and constants.list_joined is None:
        constants.list_joined = (name, *place_of_loop())


def _kept(value: Any, units: int) -> Any:
    """Of rows that are all alike, one: batches differ in how many they are. Of values that are all alike, one."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.dim() and value.numel() and bool((value == value.reshape(-1)[0]).all()):
        return value.reshape(-1)[:1].clone()
    if value.dim() and value.shape[0] == units and bool((value == value[:1]).all()):
        value = value[:1]
    if value.numel() > _MOST:
        flat = value.reshape(-1)
        return torch.stack([flat[start::7].double().sum() for start in range(7)])
    return value.clone()


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and one.device == two.device and torch.equal(one, two)
    return type(one) is type(two) and one == two


def _goes_on(before: Any, kept: Any) -> bool:
    """Whether they are one table of places, cut to the lengths of two texts: the same as far as both go, and not all alike there. Whole numbers and masks follow
    from places alone, too: 0, 1, 2, …, or distances (a causal mask); those of an example hardly do."""
    if not all(isinstance(each, torch.Tensor) for each in (before, kept)) or before.dim() != kept.dim() or before.dtype != kept.dtype:
        return False
    both = tuple(slice(min(one, two)) for one, two in zip(before.shape, kept.shape))
    one, two = before[both].to(kept.device), kept[both]
    if not _same(one, two) or not (kept.is_floating_point() or (_of_places(before) and _of_places(kept))):
        return False
    return before.dim() == 1 and not kept.is_floating_point() or bool((one != one.reshape(-1)[:1]).any())


def _of_places(value: torch.Tensor) -> bool:
    value = value.reshape([extent for extent in value.shape if extent > 1] or [1])
    if value.dim() == 1:
        return value.dtype != torch.bool and torch.equal(value, torch.arange(len(value), dtype=value.dtype, device=value.device))
    return value.dim() == 2 and value.shape[0] == value.shape[1] and torch.equal(value[1:, 1:], value[:-1, :-1])


def _number(kept: Any) -> Any:
    return kept.item() if isinstance(kept, torch.Tensor) and kept.numel() == 1 and not kept.is_complex() else kept


# Numbers that were read -------------------------------------------------------------------------------------------------

_ARITHMETIC = "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs round floor ceil trunc".split()


class Read(float):
    """A number that was read from a private tensor, and what follows from it."""

    def __reduce__(self) -> tuple:
        return Read if goes_to_ranks() else float, (float(self),)


class ReadInt(int):
    """A whole number that was read from a private tensor, and what follows from it."""

    def __reduce__(self) -> tuple:
        return ReadInt if goes_to_ranks() else int, (int(self),)


READS, FORMED = Reads(), Formed()


def note_read(value: Any, examples: int = 1) -> None:
    """examples: of the batch that it is of."""
    if type(value) is float:
        READS.note(value, examples)
        FORMED.note(value)


def as_read(value: Any) -> Any:
    """Numbers, in lists too, as what they are: read."""
    if type(value) is float:
        FORMED.note(value)
        return Read(value)
    if type(value) is int:
        return ReadInt(value)
    return [as_read(each) for each in value] if type(value) is list else value


def bare(value: Any) -> Any:
    """A number without the mark that it was read."""
    return float(value) if isinstance(value, Read) else int(value) if isinstance(value, ReadInt) else value


def of_batch(value: Any, extents: set[int]) -> Any:
    """A number of a batch that a collate_fn made, as what it is: read, if it is none of the batch's extents. A fraction that it shares among all
    examples was looked at in its process (loaders/collate_check.py)."""
    value = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    return ReadInt(value) if type(value) is int and value not in extents else value


def extents_of(batch: Any, units: int) -> set[int]:
    """What a batch's whole numbers may be without a look at its values."""
    return {units, *(extent for each in contents(batch) for extent in each.shape[1:])}


def _carried(kind: type, name: str) -> Any:
    own = getattr(kind, f"__{name}__")

    def carried(self: Any, *others: Any) -> Any:
        result = own(self, *others)
        if result is NotImplemented and others and isinstance(others[0], float):  # ReadInt with a float
            result = getattr(float, f"__{name}__")(float(self), *others)
        return as_read(result)

    return carried


for _name in _ARITHMETIC:
    setattr(Read, f"__{_name}__", _carried(float, _name))
    setattr(ReadInt, f"__{_name}__", _carried(int, _name))
for _name in COMPARISONS:
    setattr(Read, f"__{_name}__", deciding(float, _name))
    setattr(ReadInt, f"__{_name}__", deciding(int, _name))
Read.__hash__, ReadInt.__hash__ = float.__hash__, int.__hash__  # type: ignore[method-assign]

__all__ = ["FORMED", "READS", "Constants", "Read", "ReadInt", "as_read", "bare", "extents_of", "note_read", "of_batch"]
