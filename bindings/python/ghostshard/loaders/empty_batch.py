"""The batch of no example: the structure of a full one, with 0 rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from opacus.data_loader import CollateFnWithEmpty
from torch.utils.data import Dataset

from .collate_check import CollateCheck
from .padding import WithPadding


class CollateOrEmpty(CollateFnWithEmpty):
    """Collates, and looks whether examples are kept apart (collate_check.py). Makes the empty batch when it is first needed, from a batch of one example and a batch of it twice."""

    def __init__(self, collate_fn, dataset: Dataset):
        super().__init__(collate_fn)
        self._dataset = dataset
        self._empty: tuple[Any] | None = None
        self._check = CollateCheck()
        self._tells_padding = False
        self._telling: CollateOrEmpty | None = None

    def telling(self) -> CollateOrEmpty:
        """The same for an iterator that takes batches WithPadding: whoever else calls this one (a loader for evaluation) gets plain ones."""
        if self._telling is None:
            self._telling = copy.copy(self)
            self._telling._tells_padding = True
        return self._telling

    def __call__(self, batch: list) -> Any:
        if len(batch) > 0:
            axes = self._check(self.wrapped_collator_fn, batch)
            collated = self.wrapped_collator_fn(batch)
            return WithPadding(collated, axes) if axes and self._tells_padding else collated
        if self._empty is None:
            fetch_many = getattr(self._dataset, "__getitems__", None)
            example = fetch_many([0])[0] if fetch_many else self._dataset[0]
            # Copies, because collators may take their examples apart.
            one, two = (self.wrapped_collator_fn([copy.deepcopy(example) for _ in range(n)]) for n in (1, 2))
            self._empty = (_without_rows(one, two),)
        return copy.deepcopy(self._empty[0])


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
    if isinstance(one, list | tuple):
        same = zip(one, two, strict=True) if len(one) == len(two) else ()
        items = [_without_rows(*pair) for pair in same]
        return type(one)(*items) if hasattr(one, "_fields") else type(one)(items)
    if one is None or isinstance(one, str | bytes | int | float | np.generic):
        return one if one == two else type(one)()
    raise TypeError(
        f"how a batch with a {type(one).__name__} looks without examples is unknown: let collate_fn return tensors, "
        "mappings, lists, tuples, strings or numbers"
    )


__all__ = ["CollateOrEmpty"]
