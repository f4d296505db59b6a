"""The batch of no example: the structure of a full one, with 0 rows."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from opacus.data_loader import CollateFnWithEmpty
from torch.utils.data import Dataset

from .collate_check import CollateCheck
from .fetched import item_of
from .items_again import ItemsAgain
from .listed_examples import entry_at, held, ones_and_two, told_apart
from .padding import Told


class CollateOrEmpty(CollateFnWithEmpty):
    """Collates, and looks whether examples are kept apart (collate_check.py). Makes the empty batch when it is first needed, from a batch of one example and a batch of it twice."""

    def __init__(self, collate_fn, dataset: Dataset):
        super().__init__(collate_fn)
        self._dataset = dataset
        self._empty: tuple[Any, dict] | None = None
        self._check = CollateCheck()
        self._items = ItemsAgain(dataset)
        self._lists: dict[tuple, bool] | None = None  # None: no batch was looked at yet
        self._tells = False
        self._telling: CollateOrEmpty | None = None

    def begin_pass(self, *, stay: str | None) -> None:
        """stay: items_again.py."""
        self._items.begin_pass(stay=stay)

    def telling(self) -> CollateOrEmpty:
        """The same for an iterator that takes batches that are Told: whoever else calls this one (a loader for evaluation) gets plain ones."""
        if self._telling is None:
            self._telling = copy.copy(self)
            self._telling._tells = True
        return self._telling

    def __call__(self, batch: list) -> Any:
        if len(batch) > 0:
            self._items()
            axes = self._check(self.wrapped_collator_fn, batch)
            if self._lists is None and self._tells:
                probed = ones_and_two(self.wrapped_collator_fn, batch)
                self._lists = {} if probed is None else told_apart(*probed)
                if probed is not None:
                    _warn_of_unknown(probed[0][0], probed[1])
            collated = self.wrapped_collator_fn(batch)
            return Told(collated, axes, self._lists or {}) if self._tells and (axes or self._lists) else collated
        if self._empty is None:
            example = item_of(self._dataset, 0)
            # Copies, because collators may take their examples apart.
            one, two = (self.wrapped_collator_fn([copy.deepcopy(example) for _ in range(n)]) for n in (1, 2))
            entries = {path: entry_at(one, path)[0] for path, of_examples in told_apart([one], two).items() if of_examples}
            self._empty = _without_rows(one, two), entries
        empty, entries = copy.deepcopy(self._empty)
        return Told(empty, entries=entries) if self._tells and entries else empty


class _UnknownKind(TypeError):
    """Of something in a batch."""


def _warn_of_unknown(one: Any, two: Any) -> None:
    """At the first batch, because an empty draw may come late. (With large batches none comes.)"""
    try:
        _without_rows(one, two)
    except _UnknownKind as error:
        warnings.warn(f"a draw without examples would end the run: {error}", stacklevel=2)
    except Exception:  # of a collate_fn that tosses coins, for example: the empty batch is made of others
        pass


def _without_rows(one: Any, two: Any) -> Any:
    """A batch of no example, from one of one and one of two: extents that grow with the examples are continued down to 0.

    One batch cannot show which dimension counts rows: [x, y] may be two fields or two rows.
    """
    if isinstance(one, torch.Tensor | np.ndarray):
        shape = [max(0, 2 * size - grown) for size, grown in zip(one.shape, two.shape, strict=True)]
        zeros = one.new_zeros(shape) if isinstance(one, torch.Tensor) else np.zeros(shape, one.dtype)
        if one.shape != two.shape:
            return zeros
        return (torch if isinstance(one, torch.Tensor) else np).where(one == two, one, zeros)
    if isinstance(one, Mapping):
        made = {key: _without_rows(value, two[key]) for key, value in one.items()}
        try:
            return type(one)(made)  # type: ignore[call-arg]
        except TypeError:
            return made
    if isinstance(one, list | tuple | deque):
        same = zip(one, two, strict=True) if len(one) == len(two) else ()
        items = [_without_rows(*pair) for pair in same]
        return type(one)(*items) if hasattr(one, "_fields") else type(one)(items)
    if one is None or isinstance(one, str | bytes | int | float | np.generic):
        return one if one == two else type(one)()
    if held(one):
        empty = copy.copy(one)
        for name, value in vars(one).items():
            object.__setattr__(empty, name, _without_rows(value, getattr(two, name)))  # a dataclass may be frozen
        return empty
    if one is two or _equal(one, two):
        return one
    raise _UnknownKind(
        f"how a batch with a {type(one).__name__} looks without examples is unknown: let collate_fn return tensors, "
        "mappings, lists, tuples, strings, numbers or an object with these as its attributes"
    )


def _equal(one: Any, two: Any) -> bool:
    try:
        return bool(one == two)
    except Exception:  # of a class that is not compared
        return False


__all__ = ["CollateOrEmpty"]
