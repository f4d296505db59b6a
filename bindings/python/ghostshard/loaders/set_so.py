"""What a collate_fn or a criterion is set to: a loop may switch on later what was off in the batch that was looked at."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_PLAIN = (bool, int, float, str, types.NoneType)
_DEPTH, _ENTRIES = 4, 64  # of objects within each other, and of a list or a dict
_MOST_VALUES = 3
_MOST, _MOST_READ = 64, 1024  # settings that are looked at, and values of each


class FirstValues:
    """Those of each number, by where it is: a counter, or a weight that is annealed, has a new one in every batch, and tells nothing from the fourth on.
    words: of each word too, as an item's name has a new one in every batch."""

    def __init__(self, *, words: bool = False) -> None:
        self._of: dict[tuple, set] = {}
        self._counted = (int, float, str) if words else (int, float)

    def tells(self, place: tuple) -> bool:
        return len(self._of.get(place, ())) < _MOST_VALUES

    def note(self, place: tuple, value: Any) -> None:
        """A flag goes on telling."""
        if type(value) in self._counted:
            self._of.setdefault(place, set()).add(value)


class Settings:
    """Those with which it was looked at. frugal: for what is slow to look at: words are counted too, and that a value does not tell any more is no news."""

    def __init__(self, walk: Callable[[Any], Iterator[tuple[tuple, Any]]] | None = None, *, most: int = _MOST, frugal: bool = False) -> None:
        """walk: plain values by where they are; default, those of a function or an object."""
        self._walk, self._most, self._frugal = walk or _settings_of, most, frugal
        self._seen: set[tuple] = set()
        self._values = FirstValues(words=frugal)

    def are_new(self, value: Any) -> bool:
        """Whether it was never set so; it is known from here on."""
        if len(self._seen) >= self._most:
            return False
        found = self._telling(self._walk(value))
        if found in self._seen:
            return False
        self._seen.add(found)
        for path, each in found:
            self._values.note(path, each)
        if self._frugal:
            self._seen.add(self._telling(found))
        return True

    def _telling(self, found: Iterable[tuple[tuple, Any]]) -> tuple[tuple[tuple, Any], ...]:
        return tuple((path, each) for path, each in found if self._values.tells(path))


def _settings_of(function: Any) -> Iterator[tuple[tuple, Any]]:
    return itertools.islice(_walk(function, (), _DEPTH), _MOST_READ)


def _walk(value: Any, path: tuple, depth: int) -> Iterator[tuple[tuple, Any]]:
    """Plain values by where they are: attributes, entries, arguments that functools.partial keeps, what a function has of its surroundings."""
    if type(value) in _PLAIN:
        yield path, value
    elif depth:
        for name, each in within(value):
            yield from _walk(each, (*path, name), depth - 1)


def within(value: Any) -> Iterator[tuple[Any, Any]]:
    """What an object holds, by name."""
    if isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), ("function", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield "code", str(id(value.__code__))
        own = value.__globals__
        yield from ((name, own[name]) for name in value.__code__.co_names if name in own and type(own[name]) in (*_PLAIN, types.FunctionType))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                yield name, cell.cell_contents
            except ValueError:  # it is empty
                pass
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value if len(value) <= _ENTRIES else ())
    elif isinstance(value, Mapping):
        yield from ((repr(name), each) for name, each in value.items() if len(value) <= _ENTRIES)
    elif not isinstance(value, (type, types.ModuleType)) and isinstance(held := getattr(value, "__dict__", None), dict):
        yield from held.items()


__all__ = ["FirstValues", "Settings", "within"]
