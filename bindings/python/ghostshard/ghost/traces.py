"""Which operations of torch a call runs, by their names (dp/recording/operations.h)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import _native


class Traced:
    """of: the call's, once it ended."""

    of: Any = None


@contextmanager
def traced() -> Iterator[Traced]:
    """All that this thread runs within."""
    found, native = Traced(), _native.load("engine")
    number = native.begin_trace()
    try:
        yield found
    finally:
        found.of = native.end_trace(number)


@contextmanager
def left_out() -> Iterator[None]:
    """Of the trace at hand: what is none of the model's."""
    native = _native.load("engine")
    native.leave_out(0)
    try:
        yield
    finally:
        native.go_on()


__all__ = ["Traced", "left_out", "traced"]
