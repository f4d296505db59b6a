"""What holds other values: dicts, lists, objects with attributes, classes. A program's settings are in such (`args.mixes`, `conf["act"]`), and so are tables of functions."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

_MOST_ENTRIES, _MOST_HELD, _DEPTH = 64, 256, 6
_OF_OTHERS = ("torch", "numpy", "builtins", *sorted(sys.stdlib_module_names - {"argparse", "types", "collections"}))  # whose objects are taken as they are
_CLOSED = (torch.Tensor, np.ndarray, nn.Module, types.ModuleType, logging.Logger)

_COMPUTED = ("__getitem__", "__getattr__", "__call__")

Space = tuple[Any, Any]  # what it belongs to, and what is read by name from it


class _Raw:
    """A dict by its own entries, if its class reads others (and might make them)."""

    def __init__(self, of: dict[Any, Any]) -> None:
        self._of = of

    def __getitem__(self, name: Any) -> Any:
        return dict.__getitem__(self._of, name)

    def __len__(self) -> int:
        return dict.__len__(self._of)


class _Slots:
    """Attributes of an object that keeps them in no dict."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __iter__(self) -> Iterator[str]:
        slots = (vars(kind).get("__slots__", ()) for kind in type(self._of).__mro__)
        return (name for each in slots for name in ([each] if isinstance(each, str) else each) if hasattr(self._of, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: str) -> bool:
        return name in iter(self)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._of, name)
        except AttributeError as error:
            raise KeyError(name) from error


class Cells:
    """What a function has of its surroundings."""

    def __init__(self, function: types.FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, name: str) -> Any:
        return self._cells[name].cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except (KeyError, ValueError):  # ValueError: it is empty as yet
            return default

    def items(self) -> list[tuple[str, Any]]:
        return [(name, cell.cell_contents) for name, cell in self._cells.items() if cell != types.CellType()]


def holds(value: Any) -> bool:
    kind = type(value)  # isinstance() would ask objects that answer with a warning
    if issubclass(kind, (dict, list, tuple)):
        return 0 < len(value) <= _MOST_ENTRIES
    kind = value if issubclass(kind, type) else kind
    return not issubclass(kind, _CLOSED) and kind.__module__.partition(".")[0] not in _OF_OTHERS and (hasattr(value, "__dict__") or hasattr(kind, "__slots__"))


def held(value: Any, names: Collection[str] | None) -> list[tuple[Space, Any, Any]]:
    """What is read, the name by which, and what stands there, of all that is held within. names: of attributes that are read (None: all)."""
    found: list[tuple[Space, Any, Any]] = []
    waiting, seen = [(value, names, _DEPTH)], {id(value)}  # of things that hold each other, each once
    while waiting and len(found) < _MOST_HELD:
        holder, named, depth = waiting.pop(0)
        for space, keys in _spaces(holder, named):
            for key in keys:
                entry = space[1][key]
                found.append((space, key, entry))
                if depth > 1 and holds(entry) and id(entry) not in seen:
                    seen.add(id(entry))
                    waiting.append((entry, None if isinstance(holder, Mapping) and not isinstance(holder, dict) else named, depth - 1))
    return found[:_MOST_HELD]


def _spaces(value: Any, names: Collection[str] | None) -> Iterator[tuple[Space, list[Any]]]:
    if isinstance(value, dict):
        plain = type(value).__getitem__ is dict.__getitem__
        yield (value, value if plain else _Raw(value)), list(dict.keys(value))
    elif isinstance(value, (list, tuple)):
        yield (value, value), list(range(len(value)))
    else:
        if not isinstance(value, type) and any(hasattr(type(value), each) for each in _COMPUTED):
            names = None  # of its own code
        if not isinstance(value, type):
            own = vars(value) if hasattr(value, "__dict__") else _Slots(value)
            yield (value, own), _named(own, names)
        for kind in (value if isinstance(value, type) else type(value)).__mro__:
            if kind.__module__.partition(".")[0] not in _OF_OTHERS:
                yield (kind, vars(kind)), _named(vars(kind), names)


def _named(space: Mapping[str, Any] | _Slots, names: Collection[str] | None) -> list[str]:
    found = space if names is None or len(space) < len(names) else names
    return [name for name in found if name in space and (names is None or name in names) and not name.startswith("__")][:_MOST_ENTRIES]


__all__ = ["Cells", "Space", "held", "holds"]
