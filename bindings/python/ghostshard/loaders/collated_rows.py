"""Where a collated batch has its examples' rows, and whether two batches have the same ones.

An extent of as many as there are examples tells little: three of them may be as many as colours, or as places of the longest text. But what
belongs to the examples is twice as long for twice the examples, and everything else stays as long: the longest of them is the same.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .listed_examples import Path

_PADDING = (0, -100)
_Array = (torch.Tensor, np.ndarray)
_List = (list, tuple, collections.deque)


class Rows(NamedTuple):
    """Of a tensor or a list."""

    dims: tuple[int, ...] = ()  # along which there is a row for each example; a list has its entries along 0
    counts: bool = False  # 0, 1, 2, …: as many as there are examples, and of none
    shared: bool = False  # as long for twice the examples


class Layout:
    """Of a batch of `units` examples. `twice` is a batch of these examples, one time after the other; None if none could be made: then every extent
    of `units` is taken for the examples'."""

    def __init__(self, batch: Any, twice: Any, units: int) -> None:
        self.units = units
        self._rows: dict[Path, Rows] = {}
        # Where nothing grows, it takes no more than so many of its examples.
        self._told = twice is not None and not same_extents(batch, twice)
        self._walk(batch, twice if self._told else None, ())

    def at(self, path: Path) -> Rows:
        return self._rows.get(path, Rows())

    def _walk(self, batch: Any, twice: Any, path: Path) -> None:
        known = type(batch) is type(twice)
        if isinstance(batch, _Array):
            known = known and batch.ndim == twice.ndim
            dims = tuple(d for d in range(min(batch.ndim, 2)) if batch.shape[d] == self.units and (not known or twice.shape[d] == 2 * self.units))
            counts = dims == (0,) and _is_count(batch) and (not known or _is_count(twice))
            shared = tuple(batch.shape) == tuple(twice.shape) if known else not dims and (not batch.ndim or batch.shape[0] < self.units)
            self._rows[path] = Rows(() if counts else dims, counts, shared)
        elif isinstance(batch, _List):
            entries = len(batch) == self.units and (len(twice) == 2 * self.units if known else not self._columns(batch))
            counts = known and entries and all(isinstance(each, int) for each in twice) and list(twice) == list(range(len(twice)))
            self._rows[path] = Rows((0,) if entries and not counts else (), counts)
            if not entries:
                for place, each in enumerate(batch):
                    self._walk(each, twice[place] if known and len(twice) == len(batch) else None, (*path, place))
        else:
            parts, of_twice = parts_of(batch), parts_of(twice)
            for key, value in parts.items():
                self._walk(value, of_twice.get(key), (*path, key))

    def _columns(self, batch: Sequence[Any]) -> bool:
        """As many columns as examples."""
        return all(isinstance(each, _Array) and each.ndim and each.shape[0] == self.units for each in batch)

    def same(self, one: Any, two: Any, stays: Sequence[int], path: Path = ()) -> bool:
        """Whether the examples at the places `stays` have the same rows in both batches, up to padding."""
        rows = self.at(path)
        if isinstance(one, _Array):
            if type(one) is not type(two) or one.ndim != two.ndim:
                return False
            dims = [d for d in rows.dims if d < one.ndim and one.shape[d] == two.shape[d] > max(stays, default=0)]
            cuts = [(slice(None),) * dim + (list(stays),) for dim in dims]
            # None: packed, or flattened, and no row is told apart.
            return not cuts or any(_same_array(one[cut], two[cut]) for cut in cuts)
        if isinstance(one, _List):
            if not isinstance(two, _List):
                return False
            if rows.dims:
                return len(one) == len(two) > max(stays, default=0) and all(same_entry(one[place], two[place]) for place in stays)
            return all(self.same(a, b, stays, (*path, place)) for place, (a, b) in enumerate(zip(one, two)))
        parts, of_two = parts_of(one), parts_of(two)
        return parts.keys() == of_two.keys() and all(self.same(parts[key], of_two[key], stays, (*path, key)) for key in parts)

    def without_first(self, batch: Any, path: Path = ()) -> Any:
        """A batch without its first example's rows."""
        rows = self.at(path)
        if isinstance(batch, _Array):
            for dim in rows.dims if self._told else rows.dims[:1]:  # if untold, one of them is the examples'
                batch = batch[(slice(None),) * dim + (slice(1, None),)]
            return batch[:-1] if rows.counts else batch
        if isinstance(batch, _List):
            if rows.dims or rows.counts:
                return list(batch)[1:] if rows.dims else list(batch)[:-1]
            return [self.without_first(each, (*path, place)) for place, each in enumerate(batch)]
        parts = parts_of(batch)
        return {key: self.without_first(value, (*path, key)) for key, value in parts.items()} if parts else batch

    def shared_numbers(self, batch: Any, path: Path = ()) -> list:
        """Fractions, and tensors of them, that are no example's: what a loop may weigh or shift all examples by. Lengths and counts are whole."""
        if isinstance(batch, float):
            return [batch]
        if isinstance(batch, _Array):
            value = _numbers(batch)
            return [value] if value is not None and self.at(path).shared and value.is_floating_point() else []
        if isinstance(batch, _List):
            if self.at(path).dims:
                return []
            return [found for place, each in enumerate(batch) for found in self.shared_numbers(each, (*path, place))]
        return [found for key, value in parts_of(batch).items() for found in self.shared_numbers(value, (*path, key))]

    def in_another_order(self, one: Any, two: Any, stays: int) -> bool:
        """Whether both batches have `stays` rows in common, each with all that belongs to it: sorted by length, for example."""
        rows = [collections.Counter(zip(*self._columns_of(each, ()))) for each in (one, two)]
        return sum((rows[0] & rows[1]).values()) >= stays

    def _columns_of(self, batch: Any, path: Path) -> list[list]:
        """What the batch has of each example, without padding."""
        rows = self.at(path)
        if isinstance(batch, _Array):
            value = _numbers(batch)
            dim = next((d for d in rows.dims if d < batch.ndim), None)
            if dim is None or value is None:
                return [] if dim is None else [[repr(row.tolist()) for row in np.moveaxis(batch, dim, 0)]]
            return [[_stripped(row) for row in value.movedim(dim, 0).flatten(1 if value.dim() > 1 else 0).unbind()]]
        if isinstance(batch, _List):
            if rows.dims:
                return [[repr(each) for each in batch]]
            return [column for place, each in enumerate(batch) for column in self._columns_of(each, (*path, place))]
        return [column for key, value in parts_of(batch).items() for column in self._columns_of(value, (*path, key))]


def parts_of(value: Any) -> dict:
    """What a mapping or an object holds; nothing of what is one value."""
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None or isinstance(value, (str, bytes, int, float, type)) or callable(value) else dict(getattr(value, "__dict__", {}))


def same_entry(one: Any, two: Any) -> bool:
    """What two lists have of one example, up to padding."""
    if isinstance(one, _Array):
        return type(one) is type(two) and one.ndim == two.ndim and _same_array(one, two)
    if isinstance(one, float) and isinstance(two, float):
        return one == two or abs(one - two) <= 1e-6 * abs(one) or (one != one and two != two)
    if isinstance(one, (str, bytes, int, float)):
        return bool(one == two)
    if isinstance(one, _List):
        return isinstance(two, _List) and len(one) == len(two) and all(map(same_entry, one, two))
    parts, of_two = parts_of(one), parts_of(two)
    return parts.keys() == of_two.keys() and all(same_entry(parts[key], of_two[key]) for key in parts)


def same_numbers(one: list, two: list) -> bool:
    """Two batches' shared numbers, as far as both go: those of each place are as many as the longest example has."""
    as_tensor = lambda value: torch.as_tensor(value, dtype=torch.float64) if isinstance(value, float) else value
    return len(one) == len(two) and all(_as_far_as_both(as_tensor(a), as_tensor(b)) for a, b in zip(one, two))


def _as_far_as_both(one: torch.Tensor, two: torch.Tensor) -> bool:
    same = lambda a, b: bool(((a == b) | (a.isnan() & b.isnan())).all())
    return one.dim() == two.dim() and any(same(one[at], two[of]) for at, of in _common(one, two))


def _is_count(value: Any) -> bool:
    numbers = _numbers(value)
    return numbers is not None and numbers.tolist() == list(range(len(value)))


def _numbers(value: Any) -> torch.Tensor | None:
    """None: an array of strings or objects."""
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value) if value.dtype.kind in "biufc" else None


def _same_array(one: Any, two: Any) -> bool:
    numbers = _numbers(one), _numbers(two)
    if numbers[0] is None or numbers[1] is None:
        return bool(one.tolist() == two.tolist())
    return _same_but_padding(*numbers)


def _common(one: torch.Tensor, two: torch.Tensor) -> tuple:
    """The places that both have, if padding is on the right, and if it is on the left."""
    left = tuple(slice(min(a, b)) for a, b in zip(one.shape, two.shape))
    right = tuple(slice(max(a - b, 0), None) for a, b in zip(one.shape, two.shape))
    left_of_two = tuple(slice(max(b - a, 0), None) for a, b in zip(one.shape, two.shape))
    return (left, left), (right, left_of_two)


def _same_but_padding(one: torch.Tensor, two: torch.Tensor) -> bool:
    return any(_close(one[at], two[of]) and _is_padding(one, at) and _is_padding(two, of) for at, of in _common(one, two))


def _close(one: torch.Tensor, two: torch.Tensor) -> bool:
    if not one.is_floating_point() or not one.numel():
        return torch.equal(one, two)
    largest = torch.where(torch.isfinite(one), one, 0).abs().max()
    return bool((((one - two).abs() <= 1e-6 * largest) | (one == two) | (one.isnan() & two.isnan())).all())


def _is_padding(value: torch.Tensor, common: tuple) -> bool:
    """What lies beyond the common extents is all one value, but for the place beside them: that of the last token where all are shifted by one
    (decoder_input_ids)."""
    for beside in (0, 1):
        beyond = torch.ones(value.shape, dtype=torch.bool)
        beyond[tuple(slice(_stretched(each.start, -beside), _stretched(each.stop, beside)) for each in common)] = False
        rest = value[beyond]
        if rest.numel() == 0 or bool((rest == rest[0]).all()):
            return True
    return False


def _stretched(end: int | None, by: int) -> int | None:
    return None if end is None else max(end + by, 0)


def _stripped(row: torch.Tensor) -> Any:
    if row.dim() == 0:
        return row.item()
    found = row.tolist()
    for end in (-1, 0):
        while found and found[end] in _PADDING:
            del found[end]
    return tuple(found)


def same_extents(one: Any, two: Any) -> bool:
    """Of all tensors, lists and words, in their order."""
    shapes: list[list] = [[], []]
    for batch, found in zip((one, two), shapes):
        waiting, opened = [batch], {}
        while waiting:
            each = waiting.pop()
            if isinstance(each, _Array):
                found.append(tuple(each.shape))
            elif isinstance(each, (str, bytes)):
                found.append(len(each))
            elif id(each) not in opened:  # an object may hold itself
                opened[id(each)] = each
                if isinstance(each, _List):
                    found.append(len(each))
                waiting.extend(each if isinstance(each, _List) else parts_of(each).values())
    return shapes[0] == shapes[1]


__all__ = ["Layout", "same_extents", "same_numbers"]
