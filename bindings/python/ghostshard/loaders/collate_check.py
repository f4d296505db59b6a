"""Does a collate_fn keep its examples apart? Called again with other neighbours, it must give the same rows of the same examples.

Rows of a batch pass for those of single examples. A collate_fn that mixes them (mixup, statistics of the batch) would make one
example part of several rows, before anything of the batch can be followed. So at the first batch of a loader (of each of its
workers), and at one in 400, it is called again: half of the examples stays, and the others are replaced by copies of these, or
come in another order. Then the other half stays: a statistic may follow from one example alone, such as the largest. Halves are
drawn several times: what an example takes from the one before it may show at few of them. Coins are tossed again as they were.
Only padding may follow from the neighbours, and whole numbers that are no example's (lengths, counts).
"""

from __future__ import annotations

import collections
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from .coins import Coins
from .padding import Axis, axes_of, copies_of

_AGAIN = 1 / 400
_HALVES = 12  # of the first batch: a dependence that shows at a fourth of them is overlooked once in 1,000 (each with its complement)
_COINS = 8  # tosses of a collate_fn's coins that must all give the same before it is taken for one without: short texts are rarely masked
_BATCHES = 8
_PADDING = (0, -100)
_MIXED = (
    "collate_fn mixes its examples: the rows of some changed with the others of their batch, so one example would be in several units and "
    "epsilon would be too small. Leave mixup, cutmix, statistics of the batch and offsets into joined rows out of it, and no example either. "
    "(Padding to the longest example and random augmentation of each example are no mixing.)"
)


class CollateCheck:
    """Of one collate_fn, in one process."""

    def __init__(self) -> None:
        self._done = False
        self._first = _BATCHES  # that are told how far they are padded: in some, all examples are of one length
        self._lot = random.Random(secrets.randbits(64))  # not one of the generators that the loop seeds

    def __call__(self, collate: Callable[[list], Any], examples: list) -> tuple[Axis, ...]:
        """The extents that follow from the examples, if this batch is looked at (padding.py). ValueError if it mixes them. Generators stay
        what they were."""
        if collate is default_collate or len(examples) < 2:
            return ()
        by_lot = self._lot.random() < _AGAIN
        mixes, padded = by_lot or not self._done, by_lot or self._first > 0
        if not (mixes or padded):
            return ()
        before, halves = Coins(), 1 if self._done else _HALVES
        self._done = True
        try:
            if mixes and self._mixes(collate, copies_of(examples), before, halves):
                raise ValueError(_MIXED)
            self._first -= padded
            return axes_of(collate, examples, before) if padded else ()
        finally:
            before.again()

    def _mixes(self, collate: Callable[[list], Any], examples: list, before: Coins, halves: int) -> bool:
        count, start = len(examples), self._lot.randrange(len(examples))
        # Of an odd number one is in both halves: a third one is without it.
        starts = [(start + turn) % count for turn in ([0, (count + 1) // 2] + [1] * (count % 2))]
        turned = [examples[start:] + examples[:start] for start in starts]
        return any(self._mixes_into_half(collate, each, before) for each in turned) or self._mixes_in_place(collate, examples, before, halves)

    def _mixes_in_place(self, collate: Callable[[list], Any], examples: list, before: Coins, halves: int) -> bool:
        """Into examples that stay at their places, from any others, those before them too, or into a number that all share. Not told of a
        collate_fn that tosses coins, as those before the others toss theirs first."""

        def batch(stay: set[int], neighbours: list) -> Any:
            others = iter(neighbours)
            return collate(copies_of(each if place in stay else next(others) for place, each in enumerate(examples)))

        count = len(examples)
        everyone = set(range(count))
        before.again()
        as_given = batch(everyone, [])
        for _ in range(_COINS):
            once_more = batch(everyone, [])
            if not same_rows(as_given, once_more, range(count), count):
                return False
        numbers = shared_numbers(as_given, count)
        if numbers != shared_numbers(once_more, count):
            numbers = []  # the time of day, for example
        if count > 2 and self._by_place(as_given, collate(copies_of(examples[1:])), count):
            return True
        for _ in range(halves):
            half = set(self._lot.sample(range(count), count // 2))
            for stay in (half, everyone - half):
                kept, others = [examples[place] for place in sorted(stay)], [examples[place] for place in sorted(everyone - stay)]
                for neighbours in ([*kept, kept[0]][: len(others)], others[::-1]):
                    found = batch(stay, neighbours)
                    same = same_rows(as_given, found, sorted(stay), count) or in_another_order(as_given, found, len(stay), count)
                    if not same or (numbers and numbers != shared_numbers(found, count)):
                        return True
        return False

    def _by_place(self, as_given: Any, others: Any, count: int) -> bool:
        """Whether the rows of examples are others if the first one is not in the batch."""
        readings = (without_first(as_given, others, count, last) for last in (False, True))  # as many places as examples, and one less of both
        mixes = not any(same_rows(behind, others, range(count - 1), count - 1) for behind in readings)
        return mixes and not in_another_order(as_given, others, count - 1, count, count - 1)

    def _mixes_into_half(self, collate: Callable[[list], Any], examples: list, before: Coins) -> bool:
        stays = (len(examples) + 1) // 2
        kept = range(stays)
        first, others = examples[:stays], examples[stays:]

        def batch(neighbours: list) -> Any:
            before.again()
            return collate(copies_of(first + neighbours))

        as_given = batch(others)
        for neighbours in (first[: len(others)], others[::-1]):
            found = batch(neighbours)
            if same_rows(as_given, found, kept, len(examples)) or in_another_order(as_given, found, stays, len(examples)):
                continue
            if same_extents(as_given, found):
                return True  # the coins of the first examples are tossed before those of the others
            again = (collate(copies_of(first + others)) for _ in range(_COINS))  # with other coins
            if all(same_rows(as_given, each, kept, len(examples)) for each in again):
                return True
        return False


def same_rows(one: Any, two: Any, stays: Sequence[int], units: int) -> bool:
    """Whether the examples at the places `stays` of `units` have the same rows in both batches, up to padding."""
    if isinstance(one, (torch.Tensor, np.ndarray)):
        if type(one) is not type(two) or one.ndim != two.ndim:
            return False
        dims = [d for d in range(min(one.ndim, 2)) if one.shape[d] == two.shape[d] == units]
        rows = [(slice(None),) * dim + (list(stays),) for dim in dims]  # both, if there are as many steps as examples
        # None: packed, or flattened, and no row is told apart.
        return not dims or any(_same_but_padding(torch.as_tensor(one[each]), torch.as_tensor(two[each])) for each in rows)
    if isinstance(one, Mapping):
        return isinstance(two, Mapping) and one.keys() == two.keys() and all(same_rows(one[key], two[key], stays, units) for key in one)
    if isinstance(one, (list, tuple)):
        if not isinstance(two, (list, tuple)):
            return False
        of_examples = len(one) == len(two) == units
        pairs = list(zip(one, two))
        entries = [pairs[place] for place in stays] if of_examples else pairs
        # As many columns as examples look like a list of examples with as many rows each.
        readings = [entries, pairs] if of_examples and _columns(one, units) else [entries]
        return any(all(same_rows(a, b, stays, units) for a, b in each) for each in readings)
    if isinstance(one, (str, bytes, int, float)):
        return True  # a list's are compared by their list; one alone is no row
    held = getattr(one, "__dict__", None)
    return held is None or same_rows(held, getattr(two, "__dict__", {}), stays, units)


def without_first(batch: Any, others: Any, units: int, last: bool) -> Any:
    """A batch without its first example's rows: they are along a dimension of which `others`, the batch without it, has one less, the last such one or the
    first. What counts the examples counts one less."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        dims = [d for d in range(min(batch.ndim, 2)) if batch.shape[d] == units]
        shape = getattr(others, "shape", ())
        dims = [d for d in dims if len(shape) == batch.ndim and shape[d] == units - 1] or dims[:1]
        if not dims:
            return batch
        dim = dims[-1 if last else 0]
        counts = batch.ndim == 1 and np.array_equal(np.asarray(batch), np.arange(units))
        return batch[:-1] if counts else batch[(slice(None),) * dim + (slice(1, None),)]
    if isinstance(batch, Mapping):
        return {key: without_first(value, others.get(key) if isinstance(others, Mapping) else None, units, last) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        if len(batch) == units and not _columns(batch, units):
            return list(batch[1:])
        alike = isinstance(others, (list, tuple)) and len(others) == len(batch)
        return [without_first(each, others[i] if alike else None, units, last) for i, each in enumerate(batch)]
    return batch


def shared_numbers(batch: Any, units: int) -> list:
    """Fractions, and small tensors of them, that are no example's: what a loop may weigh or shift all examples by. Lengths and counts are whole."""
    found: list = []
    if isinstance(batch, float):
        found.append(repr(batch))
    elif isinstance(batch, (torch.Tensor, np.ndarray)):
        value = torch.as_tensor(batch)
        if value.is_floating_point() and units not in value.shape[:2] and (value.dim() == 0 or value.shape[0] < units):
            found.append(repr(value.tolist()))
    elif isinstance(batch, Mapping):
        found.extend(each for value in batch.values() for each in shared_numbers(value, units))
    elif isinstance(batch, (list, tuple)) and (len(batch) != units or _columns(batch, units)):
        found.extend(each for value in batch for each in shared_numbers(value, units))
    return found


def _columns(batch: Any, units: int) -> bool:
    """As many columns as examples."""
    return all(isinstance(each, (torch.Tensor, np.ndarray)) and each.ndim and each.shape[0] == units for each in batch)


def _same_but_padding(one: torch.Tensor, two: torch.Tensor) -> bool:
    """On the right, or on the left."""
    left = tuple(slice(min(a, b)) for a, b in zip(one.shape, two.shape))
    right = tuple(slice(max(a - b, 0), None) for a, b in zip(one.shape, two.shape))
    left_of_two = tuple(slice(max(b - a, 0), None) for a, b in zip(one.shape, two.shape))
    return any(_close(one[at], two[of]) and _is_padding(one, at) and _is_padding(two, of) for at, of in ((left, left), (right, left_of_two)))


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


def in_another_order(one: Any, two: Any, stays: int, units: int, units_of_two: int | None = None) -> bool:
    """Whether both batches have `stays` rows in common, each with all that belongs to it: sorted by length, for example."""
    rows = [collections.Counter(zip(*_columns_of(each, of))) for each, of in ((one, units), (two, units_of_two or units))]
    return sum((rows[0] & rows[1]).values()) >= stays


def _columns_of(batch: Any, units: int) -> list[list]:
    """What the batch has of each example, without padding."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        value = torch.as_tensor(batch)
        dim = next((d for d in range(min(value.dim(), 2)) if value.shape[d] == units), None)
        return [] if dim is None else [[_stripped(row) for row in value.movedim(dim, 0).flatten(1 if value.dim() > 1 else 0).unbind()]]
    if isinstance(batch, Mapping):
        return [column for each in batch.values() for column in _columns_of(each, units)]
    if isinstance(batch, (list, tuple)):
        if len(batch) == units and not _columns(batch, units):
            return [[repr(each) for each in batch]]
        return [column for each in batch for column in _columns_of(each, units)]
    return []


def _stripped(row: torch.Tensor) -> Any:
    if row.dim() == 0:
        return row.item()
    found = row.tolist()
    for end in (-1, 0):
        while found and found[end] in _PADDING:
            del found[end]
    return tuple(found)


def same_extents(one: Any, two: Any) -> bool:
    shapes: list[list] = [[], []]
    for batch, found in zip((one, two), shapes):
        waiting = [batch]
        while waiting:
            each = waiting.pop()
            if isinstance(each, (torch.Tensor, np.ndarray)):
                found.append(tuple(each.shape))
            elif isinstance(each, Mapping):
                waiting.extend(each.values())
            elif isinstance(each, (list, tuple)):
                found.append(len(each))
                waiting.extend(each)
    return shapes[0] == shapes[1]


__all__ = ["CollateCheck"]
