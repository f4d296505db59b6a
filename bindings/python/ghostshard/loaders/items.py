"""An item of the data set is an example: it has that example alone, and no other item has it too. Looked at are a few items, at random
places, before the first batch and before every later pass; what a data set computes of one index alone cannot be known.

A data set that is asked for many items at once (`__getitems__`, a batched transform of Hugging Face's) may mix them, as a collate_fn may; so may one
that remembers the items before (a running mean, the last of them). One that
repeats its examples (`i % n`, `list(data) * 2`, two copies in one tensor) makes several units of each.
"""

from __future__ import annotations

import copy
import random
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .coins import Coins
from .fetched import fetched, item_of
from .joined_items import refuse_joined

_MOST_SOURCES = 64
_LOOKS = 6  # at so many pairs of items; repeated are all of them, and each other than the others
_MIXED = (
    "the data set mixes its items: {}() gave another item {} {} other ones, so one example would be in several units and epsilon would be "
    "too small. Leave mixup and statistics over several items out of it, and compute those of the whole data set once, from public data"
)
_REPEATED = (
    "the data set holds its examples several times (items {} and {} are the same, and so are {} other pairs as far apart): each index is a unit that is drawn "
    "and clipped for itself, so epsilon would hold for one of its copies alone. Let each example be in it once; for more passes take more epochs"
)


def refuse_mixed_or_repeated(dataset: Any) -> None:
    """ValueError if items are seen to follow from others, or to be others' copies. Generators stay what they were."""
    count, lot, before = len(dataset), random.Random(secrets.randbits(64)), _Before(dataset)
    try:
        if count >= 4:
            _refuse_mixed(dataset, lot.sample(range(count), 4), before)
            for each in before.sources:
                if isinstance(each, Dataset) and not type(each).__module__.startswith("torch."):
                    refuse_joined(each, lot, before.again)
        for step, firsts in _copies_may_be(count):
            if len(firsts) >= _LOOKS:
                _refuse_repeated(dataset, lot.sample(firsts, min(len(firsts), 4 * _LOOKS)), step, before)
    finally:
        before.again()


def _copies_may_be(count: int) -> Iterator[tuple[int, range]]:
    """How far apart, and at which places the first of a pair may lie: copies of all, one after another, and of each, side by side."""
    for times in (2, 3, 4, 5, 8, 10):
        if count % times == 0:
            yield count // times, range(count // times)
    if count % 2 == 0:
        yield 1, range(0, count, 2)


class _Before:
    """Generators, and what a data set and those in it hold by name, at construction."""

    def __init__(self, dataset: Any):
        self.coins, self.sources = Coins(), sources(dataset)
        self._held = [(vars(each), dict(vars(each))) for each in self.sources]

    def again(self) -> None:
        self.coins.again()
        for now, before in self._held:
            if any(now.get(name, now) is not value for name, value in before.items()) or len(now) > len(before):
                now.clear()
                now.update(before)


def sources(dataset: Any) -> list[Any]:
    """A data set, and those that it holds (torch's Subset, wrappers), of which attributes are known."""
    found: list[Any] = []
    waiting = [dataset]
    while waiting and len(found) < _MOST_SOURCES:
        each = waiting.pop()
        if all(each is not known for known in found) and isinstance(getattr(each, "__dict__", None), dict):
            found.append(each)
            for value in vars(each).values():
                waiting += [held for held in (value if isinstance(value, (list, tuple)) and len(value) <= _MOST_SOURCES else [value]) if isinstance(held, Dataset)]
    return found


def _refuse_mixed(dataset: Any, places: list[int], before: _Before) -> None:
    def among(others: list[int]) -> Any:
        before.again()
        return copy.deepcopy(fetched(dataset, [places[0], *others])[0])

    def behind(others: list[int]) -> Any:
        """With coins as they come: an item that tosses some gives nothing to compare here, as the others toss theirs first."""
        return copy.deepcopy(fetched(dataset, [*others, places[0]])[-1])

    def after(others: list[int]) -> Any:
        before.again()
        for place in others:
            item_of(dataset, place)
        before.coins.again()  # they may have tossed other numbers of them
        return copy.deepcopy(item_of(dataset, places[0]))

    together = getattr(dataset, "__getitems__", None)
    for how, name in ((among, "__getitems__"), (after, "__getitem__"), (behind, "__getitems__")):
        if how is not after and not together:
            continue
        as_given = how(places[1:3])
        if alike(as_given, how(places[1:3])) and not alike(as_given, how(places[2:4])):  # of as many items, or other coins are tossed
            raise ValueError(_MIXED.format(name, places[0], how.__name__))


def _refuse_repeated(dataset: Any, places: list[int], step: int, before: _Before) -> None:
    firsts: list[Any] = []
    for looked, place in enumerate(places):
        if looked == 3 and len(firsts) == 1:
            return  # all items look alike
        before.again()
        one = copy.deepcopy(item_of(dataset, place))
        before.again()
        if not alike(one, item_of(dataset, place + step), known=True):
            return
        if not any(alike(one, each) for each in firsts):
            firsts.append(one)
        if len(firsts) == _LOOKS:
            raise ValueError(_REPEATED.format(place, place + step, _LOOKS - 1))


def alike(one: Any, two: Any, *, known: bool = False) -> bool:
    """Of the same values. known: objects of unknown types are not."""
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and one.shape == two.shape and one.dtype == two.dtype and bool(((one == two) | ((one != one) & (two != two))).all())
    if isinstance(one, np.ndarray):
        return isinstance(two, np.ndarray) and one.shape == two.shape and one.dtype == two.dtype and bool(np.all((one == two) | ((one != one) & (two != two))))
    if isinstance(one, Mapping):
        return isinstance(two, Mapping) and one.keys() == two.keys() and all(alike(one[key], two[key], known=known) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(two, (list, tuple)) and len(one) == len(two) and all(alike(a, b, known=known) for a, b in zip(one, two))
    if one is None or isinstance(one, (str, bytes, int, float, complex, np.generic)):
        return type(one) is type(two) and (one == two or one != one)
    return not known


__all__ = ["refuse_mixed_or_repeated", "sources"]
