"""An item of the data set is an example: it has that example alone, and no other item has it too. Looked at are a few items, at random
places, before the first batch; what a data set computes of one index alone cannot be known.

A data set that is asked for many items at once (`__getitems__`, a batched transform of Hugging Face's) may mix them, as a collate_fn may. One that
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

from .coins import Coins

_LOOKS = 6  # at so many pairs of items; repeated are all of them, and each other than the others
_MIXED = (
    "the data set mixes its items: __getitems__() gave another item {} beside other ones, so one example would be in several units and epsilon would be "
    "too small. Leave mixup and statistics over several items out of it, and compute those of the whole data set once, from public data"
)
_REPEATED = (
    "the data set holds its examples several times (items {} and {} are the same, and so are {} other pairs as far apart): each index is a unit that is drawn "
    "and clipped for itself, so epsilon would hold for one of its copies alone. Let each example be in it once; for more passes take more epochs"
)


def refuse_mixed_or_repeated(dataset: Any) -> None:
    """ValueError if items are seen to follow from others, or to be others' copies. Generators stay what they were."""
    count, lot, before = len(dataset), random.Random(secrets.randbits(64)), Coins()
    try:
        if count >= 4 and getattr(dataset, "__getitems__", None):
            _refuse_mixed(dataset, lot.sample(range(count), 4), before)
        for step, firsts in _copies_may_be(count):
            if len(firsts) >= _LOOKS:
                _refuse_repeated(dataset, lot.sample(firsts, _LOOKS), step, before)
    finally:
        before.again()


def _copies_may_be(count: int) -> Iterator[tuple[int, range]]:
    """How far apart, and at which places the first of a pair may lie: copies of all, one after another, and of each, side by side."""
    for times in (2, 3, 4, 5, 8, 10):
        if count % times == 0:
            yield count // times, range(count // times)
    if count % 2 == 0:
        yield 1, range(0, count, 2)


def _refuse_mixed(dataset: Any, places: list[int], before: Coins) -> None:
    def first(others: list[int]) -> Any:
        before.again()
        return copy.deepcopy(dataset.__getitems__([places[0], *others])[0])

    as_given = first(places[1:3])
    if alike(as_given, first(places[1:3])) and not alike(as_given, first(places[2:4])):  # of as many items, or other coins are tossed
        raise ValueError(_MIXED.format(places[0]))


def _refuse_repeated(dataset: Any, places: list[int], step: int, before: Coins) -> None:
    firsts: list[Any] = []
    for place in places:
        before.again()
        one = copy.deepcopy(dataset[place])
        before.again()
        if not alike(one, dataset[place + step], known=True) or any(alike(one, each) for each in firsts):
            return
        firsts.append(one)
    if places:
        raise ValueError(_REPEATED.format(places[0], places[0] + step, len(places) - 1))


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


__all__ = ["refuse_mixed_or_repeated"]
