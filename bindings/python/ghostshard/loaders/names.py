"""What the names in a model's code stand for, or in that of a criterion, a collate_fn, a data set: functions of torch and of modules, methods of classes, and plain
values beside them.

A program may put another function in the place of one (`F.gelu = mine`, `Block.attend = mine`), for good or while a forward runs, or set what all
modules of a class share (`Block.mixes = True`). No module, hook or setting shows that. So which names the code uses is read from it once, and
looked at again whether they are bound as they were.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .within import within

_ENTRIES = ("forward", "__call__", "__getitem__", "__getitems__", "__iter__", "__next__")  # where code is entered
_FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, np.ufunc, staticmethod, classmethod, property, torch.jit.ScriptFunction,
)  # fmt: skip
_PLAIN = (bool, int, float, str, types.NoneType)
_COUNTED = (int, float, str)
_MOST_VALUES = 3  # of a number or a word: a counter has a new one in every batch
_CLOSED = ("torch.", "numpy.")  # whose functions are taken as they are
_OPEN = ("torch.nn.functional", "torch.nn.modules")
_DEPTH, _MOST_HELD = 4, 256  # of objects within each other, and how many
_MOST = 4096  # functions that are read
_MOST_KNOWN = 16

Bound = list[tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Any], Any]]  # namespace, what reads its names, what they stood for


class Names:
    """Of one model, function or object. first: the number of what it sees first."""

    def __init__(self, first: int = 0) -> None:
        self._bound: Bound = []
        self._known: list[tuple[int, Bound]] = []  # with the number of each
        self._numbers = itertools.count(first)  # none comes twice: what one stood for was checked
        self._changes: collections.Counter[tuple[int, str]] = collections.Counter()  # of numbers and words, by namespace and name
        self.number = -1  # which of those that were seen it is

    def look(self, of: Any) -> int:
        """Which they are now."""
        if self.number < 0 or self.moved:
            self._count_changes()
            again = next((each for each in self._known if not _moved(each[1])), None)
            self.number, self._bound = again or (next(self._numbers), self._bound_in(of))
            if again is None and len(self._known) < _MOST_KNOWN:
                self._known.append((self.number, self._bound))
        return self.number

    @property
    def moved(self) -> str:
        """The first name that stands for something else than when it was looked at last; "" if none does."""
        return _moved(self._bound)

    def _count_changes(self) -> None:
        changed = [(id(space), name) for space, read, stood_for in self._bound for name, each in zip(_read_by(read), stood_for)
                   if type(each) in _COUNTED and not _same(space.get(name), each)]  # fmt: skip
        self._changes.update(set(changed))
        if any(self._changes[each] >= _MOST_VALUES for each in changed):
            self._known.clear()

    def _bound_in(self, of: Any) -> Bound:
        by_space: dict[int, tuple[Mapping[str, Any], set[str]]] = {}
        for space, name in _names_in(*_code_of(of)):
            if self._changes[id(space), name] < _MOST_VALUES:
                by_space.setdefault(id(space), (space, set()))[1].add(name)
        found = []
        for space, names in by_space.values():
            read = operator.itemgetter(*sorted(names), *sorted(names)[:1])  # two or more: a tuple
            found.append((space, read, read(space)))
        return found


def _read_by(read: Any) -> tuple[str, ...]:
    return read.__reduce__()[1]


def _moved(bound: Bound) -> str:
    for namespace, read, stood_for in bound:
        try:
            if not all(map(operator.is_, now := read(namespace), stood_for)):
                found = next((name for name, one, two in zip(_read_by(read), now, stood_for) if not _same(one, two)), "")
                if found:
                    return found
        except KeyError as error:
            return str(error.args[0])
    return ""


def _same(one: Any, two: Any) -> bool:
    return one is two or (type(one) is type(two) and type(one) in _PLAIN and one == two)


def _code_of(value: Any) -> tuple[list[Any], list[Mapping[str, Any]]]:
    """Functions, and namespaces of classes."""
    functions, classes = [], set()
    held = value.modules() if isinstance(value, nn.Module) else itertools.islice(_held_by(value, _DEPTH), _MOST_HELD)
    for each in held:
        if isinstance(each, _FUNCTIONS):
            functions.append(each)
        else:
            classes |= set(type(each).__mro__)
    return functions, [vars(each) for each in classes - {object, nn.Module} if each.__module__ != "builtins"]


def _held_by(value: Any, depth: int) -> Iterator[Any]:
    yield value
    archive = isinstance(value, Mapping) and not isinstance(value, dict)  # whose entries are read when they are asked for
    for _, each in within(value) if depth and not archive else ():
        if not isinstance(each, (torch.Tensor, np.ndarray, str, int, float, types.NoneType)):
            yield from _held_by(each, depth - 1)


def _names_in(functions: list[Any], classes: list[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Namespaces, and names in them that stand for functions which these may reach, or for plain values."""
    yield from _entries(classes)
    for _, spaces, names in _reached(functions, classes):
        for space in spaces:
            for name in names:
                bound = space.get(name)
                if isinstance(bound, _FUNCTIONS) or (type(bound) in _PLAIN and name in space and not name.startswith("__")):
                    yield space, name


def functions_in(of: Any) -> Iterator[types.FunctionType]:
    """Those that are entered when it is called, or asked for an item, and those that they may call, but for torch's and NumPy's."""
    return (function for function, *_ in _reached(*_code_of(of)))


def _entries(classes: list[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    return [(space, name) for space in classes for name in _ENTRIES if isinstance(space.get(name), _FUNCTIONS)]


def _reached(functions: list[Any], classes: list[Mapping[str, Any]]) -> Iterator[tuple[types.FunctionType, list[Mapping[str, Any]], set[str]]]:
    """Each function, with the names in its code and where they may be bound."""
    waiting, seen = [*functions, *(space[name] for space, name in _entries(classes))], set()
    while waiting and len(seen) < _MOST:
        bound = waiting.pop()
        function = getattr(bound, "fget", None) or getattr(bound, "func", None) or inspect.unwrap(getattr(bound, "__func__", bound))
        if not isinstance(function, types.FunctionType) or id(function.__code__) in seen or _closed(function.__module__ or ""):
            continue
        seen.add(id(function.__code__))
        own, names = function.__globals__, set(_names_of(function.__code__))
        modules = [own[name] for name in names if isinstance(own.get(name), types.ModuleType)]
        modules += [each for module in modules for name in names if isinstance(each := vars(module).get(name), types.ModuleType)]  # torch.nn.functional
        spaces = [own, *map(vars, modules), vars(torch.Tensor), *classes]
        yield function, spaces, names
        waiting += [space[name] for space in spaces for name in names if isinstance(space.get(name), _FUNCTIONS)]


def _closed(module: str) -> bool:
    return module.startswith(_CLOSED) and not module.startswith(_OPEN)


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_of(each)


__all__ = ["Names", "functions_in"]
