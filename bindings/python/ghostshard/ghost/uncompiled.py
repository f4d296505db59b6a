"""What torch.compile made runs as it was written while a private batch is under way.

A compiled graph would hold what layers report; whose its rows are is not to be seen in it, and tensors that are followed, or that all units share, are none that it can be made for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_lock = threading.RLock()  # a run may be given up at any time; the stance is the process's, and two runs may train in two threads
_under_way = 0
_stance: Any = None


def begin() -> bool:
    """Whether there is an end() to come. Nothing can be set from within a compiled function, and nothing need be where none was ever made."""
    global _under_way, _stance
    if "torch._dynamo.eval_frame" not in sys.modules or torch.compiler.is_compiling():
        return False
    with _lock:
        _under_way += 1
        if _stance is None:
            try:
                _stance = torch.compiler.set_stance("force_eager")
            except RuntimeError:  # called by a compiled function, between its graphs
                _under_way -= 1
                return False
    return True


def end() -> None:
    global _under_way, _stance
    with _lock:
        _under_way -= 1
        if _under_way == 0:
            with suppress(RuntimeError):  # a run is given up within a compiled function: what comes next ends it
                _stance.__exit__(None, None, None)
                _stance = None


class Held:
    """Compiled functions run as they were written from take() to let_go(), each any number of times."""

    def __init__(self) -> None:
        self._begun = False

    def take(self) -> None:
        self._begun = self._begun or begin()

    def let_go(self) -> None:
        if self._begun:
            self._begun = False
            end()

    def __del__(self) -> None:
        """Of a run that was given up. At the end of the process nothing is compiled any more, and nothing can be imported."""
        if sys is not None and not sys.is_finalizing():
            self.let_go()


@contextmanager
def uncompiled() -> Iterator[None]:
    held = Held()
    held.take()
    try:
        yield
    finally:
        held.let_go()


__all__ = ["Held", "begin", "end", "uncompiled"]
