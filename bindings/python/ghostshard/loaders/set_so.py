"""What a collate_fn or a criterion is set to: a loop may switch on later what was off in the batch that was looked at."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .names import Names
from .within import within

_PLAIN = (bool, int, float, str, types.NoneType)
_DEPTH = 4  # of objects within each other
_MOST_VALUES = 3
_ELSEWHERE = 1 << 32
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
        self._names: dict[int, tuple[Any, Names]] = {}  # by the code of a function, or else by the object
        self._first = 0

    def __getstate__(self) -> dict[str, Any]:
        """Of a worker that is started anew, which has its own functions: it looks at them once."""
        return {**vars(self), "_names": {}, "_first": self._first + _ELSEWHERE}

    def now(self, value: Any) -> dict[tuple, Any]:
        """By path; but for numbers, which may count."""
        return {path: each for path, each in self._found(value) if type(each) not in (int, float)}

    def _found(self, value: Any) -> tuple[tuple[tuple, Any], ...]:
        return self._telling(itertools.chain([(("names",), self._look_at_names(value))], self._walk(value)))

    def are_new(self, value: Any) -> bool:
        """Whether it was never set so; it is known from here on."""
        if len(self._seen) >= self._most:
            return False
        found = self._found(value)
        if found in self._seen:
            return False
        self._seen.add(found)
        for path, each in found:
            self._values.note(path, each)
        if self._frugal:
            self._seen.add(self._telling(found))
        return True

    def _look_at_names(self, value: Any) -> str:
        """Which functions those in its code are."""
        code = getattr(getattr(value, "__func__", value), "__code__", value)
        _, names = self._names.setdefault(id(code), (code, Names(self._first)))
        return f"of {names.look(value)}"

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


__all__ = ["FirstValues", "Settings"]
