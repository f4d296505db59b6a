"""Lists with an entry for each unit, as detection models take their targets: [{"boxes": [k, 4], "labels": [k]}, ...].

A list of columns looks alike if it has as many of them as the batch has units. It is told by what its entries hold: columns have the units'
extent, all of them, or differ in kind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .tensor_trees import tensors_in


def lists_units(value: Any, units: int) -> bool | None:
    """Whether its entries are the units', in their order. None: they may be columns as well."""
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields") or len(value) != units or units == 0:
        return False
    held = [tensors_in(each) for each in value]
    if not any(held):
        return len({float if isinstance(each, (int, float)) else type(each) for each in value}) == 1
    kinds = {(type(each), *((tensor.dtype, tensor.dim()) for tensor in tensors)) for each, tensors in zip(value, held)}
    if len(kinds) > 1:
        return False
    return True if any(units not in tensor.shape[:2] for tensors in held for tensor in tensors) else None


class KnownLists:
    """What other batches showed of lists that may be either."""

    def __init__(self) -> None:
        self._known: dict[tuple, bool] = {}  # by the kind of their first entry

    def of_units(self, value: Any, units: int) -> bool:
        if not isinstance(value, (list, tuple)) or not value:
            return False
        found = lists_units(value, units)
        kind = (type(value[0]), *((tensor.dtype, tensor.dim()) for tensor in tensors_in(value[0])))
        if found is None:
            return self._known.get(kind, False)
        if len(value) == units:
            self._known[kind] = found
        return found


def has_unclear_list(value: Any, units: int) -> bool:
    """Whether some list in it may be one of units or of columns."""
    if isinstance(value, dict):
        return any(has_unclear_list(each, units) for each in value.values())
    if not isinstance(value, (list, tuple)):
        return False
    found = lists_units(value, units)
    return found is None or (not found and any(has_unclear_list(each, units) for each in value))


def numbers_beside(value: Any, units: int) -> list[Any]:
    """Everything in it that is no tensor, without lists of a number for each unit."""
    if isinstance(value, torch.Tensor):
        return []
    if isinstance(value, dict):
        return [each for one in value.values() for each in numbers_beside(one, units)]
    if isinstance(value, (list, tuple)):
        each_has_one = len(value) == units and all(isinstance(each, (int, float)) for each in value)
        return [] if each_has_one else [each for one in value for each in numbers_beside(one, units)]
    return [value]


def mapped_units(of_tensor: Callable[[torch.Tensor], torch.Tensor], of_list: Callable[[Any], Any], value: Any, units: int) -> Any:
    """The value, with of_list(list) in the place of every list of units, and of_tensor(tensor) in that of every tensor elsewhere."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, dict):
        changed = copy.copy(value)
        for name, each in value.items():
            changed[name] = mapped_units(of_tensor, of_list, each, units)
        return changed
    if not isinstance(value, (list, tuple)):
        return value
    listed = lists_units(value, units)
    if listed or listed is None:
        return of_list(value) if listed else value
    items = (mapped_units(of_tensor, of_list, each, units) for each in value)
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def picked(value: Any, source: Iterable[int]) -> Any:
    """A list of units, with the entries of these in their places."""
    return type(value)(value[int(each)] for each in source)


__all__ = ["KnownLists", "has_unclear_list", "lists_units", "mapped_units", "numbers_beside", "picked"]
