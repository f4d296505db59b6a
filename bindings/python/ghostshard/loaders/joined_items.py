"""An item of a data set may be made of several rows of what the data set holds (mixup with a random partner, a pair, a negative example): if another item is
made of one of them too, one example is in several units.

Seen are the rows that an item takes by number out of tensors, arrays, lists and data sets which the data set holds by name (in a dict or an object, too), or which
its code finds by name around it, and which have as many rows as it has items. Rows that no other item takes (frames of a clip) are its own.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from .fetched import ways_to_items
from .holders import Cells
from .names import functions_in

_ENTRIES = 64  # of a dict
_ITEMS, _PARTNERS = 4, 2  # that are looked at, and of each of them
_JOINED = (
    "the data set mixes its items: of its {!r} item {} takes row {}, and so does item {}, so one example would be in several units and epsilon would be too small. "
    "Leave mixup, pairs and negative examples out of it, or choose them within the rows of one example, or from public data"
)


class _Watched(Dataset):
    """In the place of a list or a data set."""

    def __init__(self, of: Any, took: Callable[[Any], None]):
        self._of, self._took = of, took

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, place: Any) -> Any:
        self._took(place)
        return self._of[place]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class _WatchedArray(np.ndarray):
    took: Callable[[Any], None] | None = None

    def __getitem__(self, place: Any) -> Any:
        if self.took is not None:
            self.took(place)
        return self.view(np.ndarray)[place]


class _Tensors(TorchFunctionMode):
    def __init__(self, took: dict[int, Callable[[Any], None]]):
        super().__init__()
        self._of = took

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        took = self._of.get(id(args[0])) if args else None
        if took is not None and func is torch.Tensor.__getitem__:
            took(args[1])
        elif took is not None and getattr(func, "__name__", "") == "index_select":  # by its name: PyTorch Geometric puts another in torch's place
            given = dict(zip(("dim", "index"), args[1:])) | (kwargs or {})
            if given["dim"] == 0:
                took(given["index"])
        return func(*args, **(kwargs or {}))


def refuse_joined(dataset: Any, lot: random.Random, again: Callable[[], None]) -> None:
    """ValueError if two items are seen to be made of one row, however they are fetched. again(): the data set and generators become what they were."""
    for item in ways_to_items(dataset):
        try:
            count = len(dataset)
            places = lot.sample(range(count), min(_ITEMS, count))
            for place in places:
                for name, rows in _taken(dataset, item, place, count, again).items():
                    if not rows:
                        continue
                    beside = [(place + 1) % count, (place - 1) % count]
                    for other in {*sorted(rows - {place})[:_PARTNERS], *beside} - {place}:
                        shared = rows & _taken(dataset, item, other, count, again).get(name, set())
                        if shared:
                            raise _Joined(_JOINED.format(name, place, min(shared), other))
        except _Joined:
            raise
        except Exception:  # it does not work on stand-ins: nothing is known of it
            continue
        finally:
            again()


class _Joined(ValueError):
    pass


def _numbers_in(place: Any, count: int) -> set[int]:
    """The rows that an index names: one number, a slice of one, some of them. Longer slices, masks, and an order of all rows name none."""
    place = place[0] if isinstance(place, tuple) and place else place
    if isinstance(place, slice):
        rows = range(*place.indices(count))
        return set(rows) if len(rows) == 1 else set()
    if not isinstance(place, (int, np.integer, list, torch.Tensor, np.ndarray)):
        return set()
    numbers = np.asarray(place)
    return {int(row) % count for row in numbers.reshape(-1)} if numbers.dtype.kind in "iu" and numbers.size < count else set()


def _taken(dataset: Any, item: Callable[[int], Any], place: int, count: int, again: Callable[[], None]) -> dict[str, set[int]]:
    """The rows of each attribute that an item is made of."""
    again()
    found: dict[str, set[int]] = {}
    tensors: dict[int, Callable[[Any], None]] = {}
    replaced: list[tuple[_Space, str, Any]] = []
    for held, name, value in [*_held_by(dataset)]:
        if not isinstance(value, (torch.Tensor, np.ndarray, list, tuple, Dataset)) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0 or len(value) != count:
            continue

        taken = found.setdefault(name, set())

        def took(place: Any, rows: set[int] = taken) -> None:
            rows.update(_numbers_in(place, count))

        if isinstance(value, torch.Tensor):
            tensors[id(value)] = took
            continue
        replaced.append((held, name, value))
        if type(value) is np.ndarray:
            held[name] = value.view(_WatchedArray)
            held[name].took = took
        else:
            held[name] = _Watched(value, took)
    try:
        with _Tensors(tensors):
            item(place)
    finally:
        for held, name, value in replaced:
            held[name] = value
    again()
    return found


_Space = dict | Cells


def _held_by(dataset: Any) -> Iterator[tuple[_Space, str, Any]]:
    """Where a data set's code finds something by name, the name, and what."""
    spaces: list[_Space] = [vars(dataset)]
    for value in vars(dataset).values():
        if type(value) is dict and len(value) <= _ENTRIES:
            spaces.append(value)
        elif not isinstance(value, (torch.Tensor, np.ndarray, Dataset, torch.nn.Module, type, types.ModuleType)) and isinstance(getattr(value, "__dict__", None), dict):
            spaces.append(vars(value))
    for space in spaces:
        yield from ((space, name, value) for name, value in space.items() if isinstance(name, str))
    for function in functions_in(dataset):
        cells, around = Cells(function), function.__globals__
        yield from ((cells, name, value) for name, value in cells.items())
        yield from ((around, name, around[name]) for name in {*function.__code__.co_names} if name in around)


__all__ = ["refuse_joined"]
