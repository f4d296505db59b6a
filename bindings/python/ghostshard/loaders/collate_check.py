"""Does a collate_fn keep its examples apart? Called again with other neighbours, it must give the same rows of the same examples.

Rows of a batch pass for those of single examples. A collate_fn that mixes them (mixup, statistics of the batch) would make one
example part of several rows, before anything of the batch can be followed. So at the first batch of a loader (of each of its
workers), at one in 400, and when it is set otherwise (set_so.py), it is called again: half of the examples stays, and the others are replaced by copies of these, or
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
from .set_so import Settings

_AGAIN = 1 / 400
_HALVES = 12  # of the first batch: a dependence that shows at a fourth of them is overlooked once in 1,000 (each with its complement)
_COINS = 8  # tosses of a collate_fn's coins that must all give the same before it is taken for one without: short texts are rarely masked
_TOSSES = 24  # what a mixture at one batch of ten shows at, but for 8 %
_PERSISTENT = 16  # other coins with which a difference must be there, too: rare masks of short texts differ for half of them at most
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
        self._settings = Settings()
        self._first = _BATCHES  # that are told how far they are padded: in some, all examples are of one length
        self._lot = random.Random(secrets.randbits(64))  # not one of the generators that the loop seeds

    def __call__(self, collate: Callable[[list], Any], examples: list) -> tuple[Axis, ...]:
        """The extents that follow from the examples, if this batch is looked at (padding.py). ValueError if it mixes them. Generators stay
        what they were."""
        if collate is default_collate or len(examples) < 2:
            return ()
        if self._settings.are_new(collate):
            self._done, self._first = False, max(self._first, 1)
        by_lot = self._lot.random() < _AGAIN
        mixes, padded = by_lot or not self._done, by_lot or self._first > 0
        if not (mixes or padded):
            return ()
        before, halves = Coins(collate), 1 if self._done else _HALVES
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
        if any(self._mixes_into_half(layout, collate, each, before, _TOSSES if each is turned[0] and halves > 1 else 1) for each in turned):
            return True
        return self._mixes_in_place(layout, collate, examples, before, halves)

    def _mixes_in_place(self, layout: Layout, collate: Callable[[list], Any], examples: list, before: Coins, halves: int) -> bool:
        """Into examples that stay at their places, from any others, those before them too, or into a number that all share. Not told of a
        collate_fn that tosses coins often, as those before the others toss theirs first."""
        count = len(examples)
        everyone = set(range(count))

        def given() -> Any:
            return collate(copies_of(examples))

        before.again()
        as_given = given()
        for _ in range(_COINS):
            once_more = given()
            if not layout.same(as_given, once_more, range(count)):
                return False
        # Others: the time of day, for example.
        stable = same_numbers(layout.shared_numbers(as_given), layout.shared_numbers(once_more))

        def mixes(changed: list, differ: Callable[[Any, Any], bool]) -> bool:
            before.again()
            return differ(as_given, collate(copies_of(changed))) and _persists(given, lambda: collate(copies_of(changed)), differ, before)

        if count > 2 and mixes(examples[1:], lambda batch, others: self._by_place(layout, batch, others)):
            return True
        for _ in range(halves):
            half = set(self._lot.sample(range(count), count // 2))
            for stay in (half, everyone - half):

                def differ(batch: Any, found: Any, stay: set[int] = stay) -> bool:
                    same = layout.same(batch, found, sorted(stay)) or layout.in_another_order(batch, found, len(stay))
                    return not same or (stable and not same_numbers(layout.shared_numbers(batch), layout.shared_numbers(found)))

                kept, others = [examples[place] for place in sorted(stay)], [examples[place] for place in sorted(everyone - stay)]
                for neighbours in ([*kept, kept[0]][: len(others)], others[::-1]):
                    instead = iter(neighbours)
                    if mixes([each if place in stay else next(instead) for place, each in enumerate(examples)], differ):
                        return True
        return False

    def _by_place(self, layout: Layout, as_given: Any, others: Any) -> bool:
        """Whether the rows of examples are others if the first one is not in the batch."""
        rest = layout.units - 1
        return not layout.same(layout.without_first(as_given), others, range(rest)) and not layout.in_another_order(as_given, others, rest)

    def _mixes_into_half(self, layout: Layout, collate: Callable[[list], Any], examples: list, before: Coins, tosses: int = 1) -> bool:
        """Into the first half, which tosses its coins before the others. Of a collate_fn that tosses any: with so many sets of coins, as it may mix at some."""
        stays = (len(examples) + 1) // 2
        kept = range(stays)
        first, others = examples[:stays], examples[stays:]

        def batch(neighbours: list) -> Any:
            return collate(copies_of(first + neighbours))

        def differ(batch: Any, found: Any) -> bool:
            return not layout.same(batch, found, kept) and not layout.in_another_order(batch, found, stays)

        def mixes(neighbours: list, coins: Coins) -> bool:
            coins.again()
            as_given = batch(others)
            coins.again()
            found = batch(neighbours)
            if not differ(as_given, found) or same_extents(as_given, found):
                return differ(as_given, found)
            again = (batch(others) for _ in range(_COINS))  # with other coins
            return all(layout.same(as_given, each, kept) for each in again) and _persists(lambda: batch(others), lambda: batch(neighbours), differ, before)

        changed = (first[: len(others)], others[::-1])
        if any(mixes(neighbours, before) for neighbours in changed):
            return True
        return before.tossed() and any(mixes(changed[0], before.now()) for _ in range(1, tosses))


def _persists(given: Callable[[], Any], changed: Callable[[], Any], differ: Callable[[Any, Any], bool], of: Coins) -> bool:
    """Whether both batches differ whatever coins are tossed: a rare one that falls on another example, or elsewhere, is no mixing."""
    for _ in range(_PERSISTENT):
        coins = of.now()
        batch = given()
        coins.again()
        if not differ(batch, changed()):
            return False
    return True


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
