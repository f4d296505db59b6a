"""A data set's indices are the units of privacy, so each must be another example.

A data set of one's own that holds one other, of as many items, is taken to make each of its items of that one's (a transform, an augmentation).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset


def refuse_repeated(dataset: Any) -> None:
    """ValueError if torch's own combinations of data sets (Subset, ConcatDataset), or wrappers in these, hold one example at several indices: it would be
    several units, drawn and clipped each for itself."""
    chosen: dict[int, list[tuple[Any, np.ndarray | None]]] = {}
    for source, indices in _sources(dataset, None):
        chosen.setdefault(id(source), []).append((source, indices))
    for given in chosen.values():
        if len(given) == 1 and given[0][1] is None:
            continue  # all of it, once
        places = [np.arange(len(source)) if indices is None else indices % max(len(source), 1) for source, indices in given]
        found, times = np.unique(np.concatenate(places), return_counts=True)
        if len(found) and times.max() > 1:
            raise ValueError(
                f"the data set holds example {found[times.argmax()]} at {times.max()} indices: each index is a unit that is drawn and clipped for "
                "itself, so epsilon would hold for one of its copies alone. Let each example be in it once; for more passes take more epochs"
            )


def _sources(dataset: Any, chosen: np.ndarray | None) -> Iterator[tuple[Any, np.ndarray | None]]:
    """Data sets that are no combination, with the indices that are taken of each; None: all, in order."""
    if type(dataset) is Subset:
        indices = _whole_numbers(dataset.indices)
        if indices is not None:
            yield from _sources(dataset.dataset, indices if chosen is None else indices[chosen])
        return
    if type(dataset) is not ConcatDataset:
        within = _wrapped(dataset)
        yield from [(dataset, chosen)] if within is None else _sources(within, chosen)
        return
    begins = 0
    for part in dataset.datasets:
        own = None
        if chosen is not None:
            own = chosen[(chosen >= begins) & (chosen < begins + len(part))] - begins
        yield from _sources(part, own)
        begins += len(part)


def _wrapped(dataset: Any) -> Any:
    """What a data set of one's own makes its items of, one of one; None if that is not known."""
    held = [value for value in getattr(dataset, "__dict__", {}).values() if isinstance(value, Dataset)]
    if len(held) != 1 or not hasattr(held[0], "__len__") or type(dataset).__module__.startswith("torch."):
        return None
    return held[0] if len(held[0]) == len(dataset) else None


def _whole_numbers(indices: Any) -> np.ndarray | None:
    """None for keys of other kinds, which a data set of one's own may take."""
    try:
        found = np.asarray(indices)
    except ValueError:
        return None
    return found.astype(np.int64) if found.ndim == 1 and found.dtype.kind in "iu" else None


__all__ = ["refuse_repeated"]
