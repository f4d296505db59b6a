"""Does a collate_fn keep its examples apart? Called again with other neighbours, it must give the same rows of the same examples.

Rows of a batch pass for those of single examples. A collate_fn that mixes them (mixup, statistics of the batch) would make one
example part of several rows, before anything of the batch can be followed. So at the first batch of a loader (of each of its
workers), and at one in 400, it is called again: half of the examples stays, and the others are replaced by copies of these, or
come in another order. Then the other half stays: a statistic may follow from one example alone, such as the largest. Halves are
drawn several times: what an example takes from the one before it may show at few of them. Coins are tossed again as they were.
Only padding may follow from the neighbours, and whole numbers that are no example's (lengths, counts).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate

from .coins import Coins
from .collated_rows import Layout, same_extents, same_numbers
from .padding import Axis, axes_of, copies_of

_AGAIN = 1 / 400
_HALVES = 12  # of the first batch: a dependence that shows at a fourth of them is overlooked once in 1,000 (each with its complement)
_COINS = 8  # tosses of a collate_fn's coins that must all give the same before it is taken for one without: short texts are rarely masked
_BATCHES = 8
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
        layout = _layout_of(collate, examples, before)
        # Of an odd number one is in both halves: a third one is without it.
        starts = [(start + turn) % count for turn in ([0, (count + 1) // 2] + [1] * (count % 2))]
        turned = [examples[start:] + examples[:start] for start in starts]
        if any(self._mixes_into_half(layout, collate, each, before) for each in turned):
            return True
        return self._mixes_in_place(layout, collate, examples, before, halves)

    def _mixes_in_place(self, layout: Layout, collate: Callable[[list], Any], examples: list, before: Coins, halves: int) -> bool:
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
            if not layout.same(as_given, once_more, range(count)):
                return False
        numbers = layout.shared_numbers(as_given)
        if not same_numbers(numbers, layout.shared_numbers(once_more)):
            numbers = []  # the time of day, for example
        if count > 2 and self._by_place(layout, as_given, collate(copies_of(examples[1:]))):
            return True
        for _ in range(halves):
            half = set(self._lot.sample(range(count), count // 2))
            for stay in (half, everyone - half):
                kept, others = [examples[place] for place in sorted(stay)], [examples[place] for place in sorted(everyone - stay)]
                for neighbours in ([*kept, kept[0]][: len(others)], others[::-1]):
                    found = batch(stay, neighbours)
                    same = layout.same(as_given, found, sorted(stay)) or layout.in_another_order(as_given, found, len(stay))
                    if not same or (numbers and not same_numbers(numbers, layout.shared_numbers(found))):
                        return True
        return False

    def _by_place(self, layout: Layout, as_given: Any, others: Any) -> bool:
        """Whether the rows of examples are others if the first one is not in the batch."""
        rest = layout.units - 1
        return not layout.same(layout.without_first(as_given), others, range(rest)) and not layout.in_another_order(as_given, others, rest)

    def _mixes_into_half(self, layout: Layout, collate: Callable[[list], Any], examples: list, before: Coins) -> bool:
        stays = (len(examples) + 1) // 2
        kept = range(stays)
        first, others = examples[:stays], examples[stays:]

        def batch(neighbours: list) -> Any:
            before.again()
            return collate(copies_of(first + neighbours))

        as_given = batch(others)
        for neighbours in (first[: len(others)], others[::-1]):
            found = batch(neighbours)
            if layout.same(as_given, found, kept) or layout.in_another_order(as_given, found, stays):
                continue
            if same_extents(as_given, found):
                return True  # the coins of the first examples are tossed before those of the others
            again = (collate(copies_of(first + others)) for _ in range(_COINS))  # with other coins
            if all(layout.same(as_given, each, kept) for each in again):
                return True
        return False


def _layout_of(collate: Callable[[list], Any], examples: list, before: Coins) -> Layout:
    before.again()
    batch = collate(copies_of(examples))
    before.again()
    try:
        twice = collate(copies_of([*examples, *examples]))
    except Exception:  # of the user's code, which is asked what no draw has asked it yet
        twice = None
    before.again()
    return Layout(batch, twice, len(examples))


__all__ = ["CollateCheck"]
