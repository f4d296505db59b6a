"""What an object holds: attributes, entries, arguments that functools.partial keeps, what a function has of its surroundings."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = (bool, int, float, str, types.NoneType)
_ENTRIES = 64  # of a list or a dict


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


__all__ = ["within"]
