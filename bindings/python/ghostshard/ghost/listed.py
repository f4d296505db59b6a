"""Lists with an entry for each unit, as detection models take their targets: [{"boxes": [k, 4], "labels": [k]}, ...].

A list of columns looks alike if it has as many of them as the batch has units. Of a batch that the loader hands out it is told by batches of single
examples, or else by what entries hold, and by other batches; of what a loop passes on, by whose the tensors in it are (provenance/proof.py). Where such lists are in the
arguments of a model or a criterion is kept as their paths.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .tensor_trees import tensors_in

Path = tuple  # of keys and places, from the arguments (args, kwargs)


def lists_units(value: Any, units: int) -> bool | None:
    """Whether a batch's list has an entry for each unit, by what it holds. An entry may be None. None: they may be columns as well, which have the
    units' extent, all of them."""
    if not isinstance(value, (list, tuple, deque)) or hasattr(value, "_fields") or len(value) != units or units == 0:
        return False
    there = [each for each in value if each is not None]
    held = [tensors_in(each) for each in there]
    if not any(held):
        return len({float if isinstance(each, (int, float)) else type(each) for each in there}) == 1
    if len({type(each) for each in there}) > 1:
        return False
    if isinstance(there[0], dict):
        return True
    if len({tuple((tensor.dtype, tensor.dim()) for tensor in tensors) for tensors in held}) > 1:
        return False
    shapes = [tensor.shape for tensors in held for tensor in tensors]
    time_first = all(len(shape) > 1 and shape[1] == units for shape in shapes) and len({shape[0] for shape in shapes}) == 1
    return None if time_first or all(len(shape) > 0 and shape[0] == units for shape in shapes) else True


class KnownLists:
    """What other batches showed of lists that may be either."""

    def __init__(self) -> None:
        self._known: dict[tuple, bool] = {}  # by the kind of their first entry
        self._by_columns: bool | None = None  # a batch is [columns], not [examples]; None: not known yet

    def of_units(self, value: Any, units: int, told: bool | None = None) -> bool:
        """told: what single examples showed of the list at this place (loaders/listed_examples.py)."""
        if not isinstance(value, (list, tuple, deque)) or not value or told is False:
            return False
        found = lists_units(value, units)
        if found is None and told:
            return True
        kind = (type(value[0]), *((tensor.dtype, tensor.dim()) for tensor in tensors_in(value[0])))
        if found is None:
            return self._known.get(kind, False)
        if len(value) == units:
            self._known[kind] = found
        return found

    def is_batch_of_units(self, batch: Any, units: int, told: bool | None = None) -> bool:
        """A collate_fn may leave a batch a list of its examples."""
        if told is not None:
            return told and isinstance(batch, (list, tuple)) and len(batch) == units and bool(tensors_in(batch))
        if not isinstance(batch, (list, tuple)) or len(batch) != units:
            if units > 1:
                self._by_columns = True
            return False
        if self._by_columns is None and units > 1 and tensors_in(batch) and lists_units(batch, units):
            self._by_columns = False
        return self._by_columns is False


def paths_of(is_list_of_units: Callable[[Any], bool], value: Any, path: Path = ()) -> frozenset[Path]:
    """Where such lists are in a tree of dicts, lists and tuples."""
    if isinstance(value, dict):
        return frozenset().union(*(paths_of(is_list_of_units, each, (*path, name)) for name, each in value.items()))
    if not isinstance(value, (list, tuple)):
        return frozenset()
    if len(path) > 1 and is_list_of_units(value):  # not the arguments themselves
        return frozenset([path])
    return frozenset().union(*(paths_of(is_list_of_units, each, (*path, place)) for place, each in enumerate(value)))


def leaves_beside(value: Any, listed: frozenset[Path], path: Path = ()) -> list[Any]:
    """Every leaf of the tree that is in no such list."""
    if path in listed:
        return []
    if isinstance(value, dict):
        return [leaf for name, each in value.items() for leaf in leaves_beside(each, listed, (*path, name))]
    if isinstance(value, (list, tuple)):
        return [leaf for place, each in enumerate(value) for leaf in leaves_beside(each, listed, (*path, place))]
    return [value]


def mapped_units(
    of_tensor: Callable[[torch.Tensor], torch.Tensor], of_list: Callable[[Any], Any], value: Any, listed: frozenset[Path], path: Path = ()
) -> Any:
    """The tree, with of_list(list) in the place of every such list, and of_tensor(tensor) in that of every tensor elsewhere."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, dict):
        changed = copy.copy(value)
        for name, each in value.items():
            changed[name] = mapped_units(of_tensor, of_list, each, listed, (*path, name))
        return changed
    if not isinstance(value, (list, tuple)):
        return value
    if path in listed:
        return of_list(value)
    items = (mapped_units(of_tensor, of_list, each, listed, (*path, place)) for place, each in enumerate(value))
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def picked(value: Any, source: Iterable[int]) -> Any:
    """A list of units, with the entries of these in their places."""
    return type(value)(value[int(each)] for each in source)


def with_entries(value: Any, entries: dict[Path, Any], device: torch.device) -> Any:
    """The tree of a draw without examples, in which each empty list has one entry of the kind that stands there if there are examples: many models
    form no loss of none. entries: by the lists' places in the loader's batches; a list that a loop hands on is known by its name, or
    because there is no other."""
    named = {path[-1]: entry for path, entry in entries.items() if path and isinstance(path[-1], str)}
    only = list(entries.values()) if len(entries) == 1 else []

    def filled(value: Any, name: Any) -> Any:
        if isinstance(value, dict):
            changed = copy.copy(value)
            changed.update((key, filled(each, key)) for key, each in value.items())
            return changed
        if not isinstance(value, (list, tuple)) or hasattr(value, "_fields"):
            return value
        if len(value) == 0:
            found = [named[name]] if name in named else only
            return type(value)(_of_nobody(each, device) for each in found)
        return type(value)(filled(each, place) for place, each in enumerate(value))

    args, kwargs = value
    return tuple(filled(each, place) for place, each in enumerate(args)), filled(kwargs, None)


def _of_nobody(entry: Any, device: torch.device) -> Any:
    """The entry's kind, with values of no example. A half is within a picture, as a box's place and its side."""
    if isinstance(entry, torch.Tensor):
        shape = [extent or 1 for extent in entry.shape]
        return torch.full(shape, 0.5 if entry.is_floating_point() else 0, dtype=entry.dtype, device=device)
    if isinstance(entry, dict):
        changed = copy.copy(entry)
        changed.update((key, _of_nobody(each, device)) for key, each in entry.items())
        return changed
    if isinstance(entry, (list, tuple)):
        items = [_of_nobody(each, device) for each in entry]
        return type(entry)(*items) if hasattr(entry, "_fields") else type(entry)(items)
    return type(entry)(1) if isinstance(entry, (int, float)) else type(entry)() if isinstance(entry, (str, bytes)) else entry


__all__ = ["KnownLists", "Path", "leaves_beside", "lists_units", "mapped_units", "paths_of", "picked", "with_entries"]
