"""What the names in a model's code stand for, or in that of a criterion, a collate_fn, a data set: functions of torch and of modules, methods of classes, plain
values beside them, and what holds such values.

A program may put another function in the place of one (`F.gelu = mine`, `Block.attend = mine`, `table["act"] = mine`), for good or while a forward runs, or set
what all modules of a class share (`Block.mixes = True`) or what stands beside them (`args.mixes = True`). No module, hook or setting shows that. So which names the
code uses is read from it once, and looked at again whether they are bound as they were. Code that makes names up (`getattr`, `globals`) may use any.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .holders import Cells, Space, held, holds
from .within import within

_ENTRIES = ("forward", "__call__", "__getitem__", "__getitems__", "__iter__", "__next__")  # where code is entered
_FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, np.ufunc, staticmethod, classmethod, property, torch.jit.ScriptFunction,
)  # fmt: skip
_PLAIN = (bool, int, float, str, types.NoneType)
_COUNTED = (int, float, str)
_MOST_VALUES = 3  # of a number or a word, and of what holds others: a counter has a new one in every batch
_CLOSED = ("torch.", "numpy.", "ghostshard.")  # whose functions are taken as they are
_OPEN = ("torch.nn.functional", "torch.nn.modules")
_DEPTH, _MOST_HELD = 4, 256  # of objects within each other, and how many
_MOST = 4096  # functions that are read
_MOST_KNOWN = 16
_OF_OBJECTS = {"getattr", "attrgetter", "methodcaller"}  # make up names of attributes
_OF_SURROUNDINGS = {"globals", "eval", "exec"}  # and of what stands beside
_MOST_MADE_UP = 512  # names of a namespace any of which may be meant
_OF_MODULES = vars(nn.Module()).keys()  # which every module has
_EXTENT, _NOTHING = "entries", object()  # how many a dict or a list has

Bound = list[tuple[Space, Callable[[Any], tuple], tuple]]  # a namespace, what reads its names, what they stood for


class Names:
    """Of one model, function or object. first: the number of what it sees first."""

    def __init__(self, first: int = 0) -> None:
        self._bound: Bound = []
        self._known: list[tuple[int, Bound]] = []  # with the number of each
        self._numbers = itertools.count(first)  # none comes twice: what one stood for was checked
        self._changes: collections.Counter[tuple[int, Any]] = collections.Counter()  # by whose namespace it is, and name
        self.number = -1  # which of those that were seen it is

    def look(self, of: Any) -> int:
        """Which they are now."""
        changed = list(self._changed())
        if self.number < 0 or changed:
            self._count(changed)
            replaced = any(holds(before) for *_, before in changed)  # maybe by another that holds the same: it is looked into from now on
            number, bound = next((each for each in self._known if not _moved(each[1])), (-1, []))
            self.number, self._bound = next(self._numbers) if number < 0 else number, self._bound_in(of) if number < 0 or replaced else bound
            if number < 0 and len(self._known) < _MOST_KNOWN:
                self._known.append((self.number, self._bound))
        return self.number

    @property
    def moved(self) -> str:
        """The first name that stands for something else than when it was looked at last; "" if none does."""
        return _moved(self._bound)

    def _changed(self) -> Iterator[tuple[Any, Any, Any]]:
        """Whose namespace, a name, and what it stood for, of those that stand for something else."""
        return ((space[0], name, before) for space, name, now, before in _others(self._bound) if holds(before) or not _same(now, before))

    def _count(self, changed: list[tuple[Any, Any, Any]]) -> None:
        counted = {(id(owner), name) for owner, name, before in changed if type(before) in _COUNTED or holds(before)}
        self._changes.update(counted)
        if any(self._changes[each] >= _MOST_VALUES for each in counted):
            self._known.clear()

    def _bound_in(self, of: Any) -> Bound:
        by_owner: dict[tuple[int, bool], tuple[Space, dict[Any, None]]] = {}
        for space, name in _named_in(*_code_of(of), self._is_followed):
            by_owner.setdefault((id(space[0]), name is _EXTENT), (space, {}))[1][name] = None
        found: Bound = []
        for (_, extent), (space, names) in by_owner.items():
            read = _length if extent else operator.itemgetter(*names, *itertools.islice(names, 1))  # two or more: a tuple
            found.append((space, read, read(space[1])))
        return found

    def _is_followed(self, owner: Any, name: Any) -> bool:
        return self._changes[id(owner), name] < _MOST_VALUES


def _length(space: Any) -> tuple[int]:
    return (len(space),)


def _others(bound: Bound) -> Iterator[tuple[Space, Any, Any, Any]]:
    """Names that are bound otherwise, if to the same content: the namespace, the name, what stands there now (None: nothing) and what stood there."""
    for space, read, before in bound:
        try:
            if all(map(operator.is_, read(space[1]), before)):
                continue
        except (LookupError, ValueError):  # one is gone; a cell is empty
            pass
        if read is _length:
            yield space, _EXTENT, len(space[1]), before[0]
            continue
        for name, each in zip(read.__reduce__()[1], before):
            try:
                now = space[1][name]
            except (LookupError, ValueError):
                now = None
            if now is not each:
                yield space, name, now, each


def _moved(bound: Bound) -> str:
    others = (name for _, name, now, before in _others(bound) if not _same(now, before) and not (holds(before) and _content(now) == _content(before)))
    name = next(others, "")
    return name if isinstance(name, str) else f"entry {name!r}"


def _same(one: Any, two: Any) -> bool:
    return one is two or (type(one) is type(two) and type(one) in _PLAIN and one == two)


def _runs(value: Any) -> bool:
    return issubclass(type(value), _FUNCTIONS)


def _tells(value: Any) -> bool:
    return _runs(value) or type(value) in _PLAIN


def _content(value: Any) -> list[Any]:
    return [each for _, _, each in held(value, None) if _tells(each)] if holds(value) else [value]


def _code_of(value: Any) -> tuple[list[Any], list[type]]:
    """Functions and classes."""
    functions, classes = [], set()
    for each in _parts_of(value) if isinstance(value, nn.Module) else itertools.islice(_held_by(value, _DEPTH), _MOST_HELD):
        if _runs(each):
            functions.append(each)
        else:
            classes |= set(type(each).__mro__)
    return functions, [each for each in classes - {object, nn.Module} if each.__module__ != "builtins"]


def _parts_of(model: nn.Module) -> Iterator[Any]:
    """Modules, functions that they hold, and objects of the program's own."""
    for module in model.modules():
        yield module
        own = (each for name, each in vars(module).items() if name not in _OF_MODULES)
        yield from (each for each in own if _runs(each) or (holds(each) and callable(each) and not isinstance(each, type)))


def _held_by(value: Any, depth: int) -> Iterator[Any]:
    yield value
    archive = isinstance(value, Mapping) and not isinstance(value, dict)  # whose entries are read when they are asked for
    for _, each in within(value) if depth and not archive else ():
        if not isinstance(each, (torch.Tensor, np.ndarray, str, int, float, types.NoneType)):
            yield from _held_by(each, depth - 1)


def _named_in(functions: list[Any], classes: list[type], followed: Callable[[Any, Any], bool]) -> Iterator[tuple[Space, Any]]:
    """Namespaces, and names in them that stand for functions which these may reach, for plain values, or for what holds such."""
    yield from ((space, name) for space, name in _entries(classes) if followed(space[0], name))
    for _, names, read in _reached(functions, classes):
        for space, name, bound in read:
            if followed(space[0], name):
                yield space, name
                if holds(bound):
                    yield from _held_in(bound, names, followed)


def _held_in(value: Any, names: set[str], followed: Callable[[Any, Any], bool]) -> Iterator[tuple[Space, Any]]:
    for space, name, entry in held(value, names):
        if (_tells(entry) or holds(entry)) and followed(space[0], name):
            yield space, name
        if isinstance(space[1], (dict, list)) and followed(space[0], _EXTENT):
            yield space, _EXTENT


def functions_in(of: Any) -> Iterator[types.FunctionType]:
    """Those that are entered when it is called, or asked for an item, and those that they may call, but for torch's and NumPy's."""
    return (function for function, *_ in _reached(*_code_of(of)))


def _entries(classes: list[type]) -> list[tuple[Space, str]]:
    return [((each, vars(each)), name) for each in classes for name in _ENTRIES if _runs(vars(each).get(name))]


def _reached(functions: list[Any], classes: list[type]) -> Iterator[tuple[types.FunctionType, set[str], list[tuple[Space, str, Any]]]]:
    """Each function, the names in its code, and where which of them stand for what."""
    waiting, seen = [*functions, *(space[1][name] for space, name in _entries(classes))], set()
    beside: list[Space] = [(each, vars(each)) for each in (torch.Tensor, *classes)]
    while waiting and len(seen) < _MOST:
        bound = waiting.pop()
        function = getattr(bound, "fget", None) or getattr(bound, "func", None) or inspect.unwrap(getattr(bound, "__func__", bound))
        if not isinstance(function, types.FunctionType) or id(function.__code__) in seen or _closed(function.__module__ or ""):
            continue
        seen.add(id(function.__code__))
        own, names = function.__globals__, set(names_of(function.__code__))
        modules = [own[name] for name in names if isinstance(own.get(name), types.ModuleType)]
        modules += [each for module in modules for name in names if isinstance(each := vars(module).get(name), types.ModuleType)]  # torch.nn.functional
        spaces: list[Space] = [(each, each) for each in (own, *map(vars, modules))] + beside
        if function.__closure__:
            spaces.append((function.__closure__, Cells(function)))
        spaces.append((function, vars(function)))  # act.mixes = True
        read = [(space, name, each) for space in spaces for name, each in _read_in(space, names, function)]
        yield function, names, read
        for *_, each in read:
            waiting += [entry for _, _, entry in held(each, names) if _runs(entry)] if holds(each) else [each] * _runs(each)


def _read_in(space: Space, names: set[str], function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Names in a namespace that a function with these reads, and functions, plain values, and what holds such, that stand there."""
    values = space[1]
    made_up = set() if _is_installed(function) else _OF_SURROUNDINGS if values is function.__globals__ else _OF_OBJECTS
    for name in list(values) if names & made_up and len(values) <= _MOST_MADE_UP else names:
        bound = values.get(name, _NOTHING)
        if _runs(bound) or (not name.startswith("__") and bound is not _NOTHING and (type(bound) in _PLAIN or holds(bound))):
            yield name, bound


def _is_installed(function: types.FunctionType) -> bool:
    """Whether it is a library's, not the program's own."""
    return any(each in str(function.__globals__.get("__file__")) for each in ("site-packages", "dist-packages"))


def _closed(module: str) -> bool:
    return (module.startswith(_CLOSED) and not module.startswith(_OPEN)) or module.partition(".")[0] in sys.stdlib_module_names


def names_of(code: types.CodeType) -> Iterator[str]:
    """Also in what is defined within: comprehensions, functions."""
    yield from (*code.co_names, *code.co_freevars)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from names_of(each)


__all__ = ["Names", "functions_in", "names_of"]
