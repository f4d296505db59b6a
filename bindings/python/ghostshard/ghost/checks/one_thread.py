"""A private run is one thread's at a time: what two threads do one after another is what one thread would do, and is judged like that. Within a forward, a backward or a step of one of
them another's call would find the records of the first, half made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TWO = (
    "thread {!r} called the private model, its optimizer or its loader within {} of thread {!r}: a private run is one thread's at a time, because its steps are charged and "
    "clipped one after another. Nothing of the second call was done. Train and evaluate in one thread, or take a lock around each whole step; an evaluation beside the training takes a copy of the weights, in a "
    "model of its own"
)


class OneThread:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: threading.Thread | None = None
        self._within: list[str] = []  # calls of the holder, the innermost last

    def check(self) -> None:
        """RuntimeError if another thread is within a call. One that autograd has for this backward is none."""
        with self._lock:
            self._refuse_another(threading.current_thread())

    def is_anothers(self) -> bool:
        """Whether check() would raise."""
        holder, me = self._holder, threading.current_thread()
        return holder is not None and holder is not me and holder.is_alive() and torch._C._current_graph_task_id() == -1

    @contextmanager
    def within(self, what: str) -> Iterator[None]:
        """A call that no other thread may enter. RuntimeError if another is within one."""
        self._enter(what)
        try:
            yield
        finally:
            with self._lock:
                self._within.remove(what)
                self._holder = self._holder if self._within else None

    def begin_forward(self) -> None:
        """Until end_forward(), which an interrupt may leave out: so the next call of this thread ends it, too."""
        self.end_forward()
        self._enter("a forward")

    def end_forward(self) -> None:
        with self._lock:
            if self._holder is threading.current_thread() and "a forward" in self._within:
                self._within.remove("a forward")
                self._holder = self._holder if self._within else None

    def _enter(self, what: str) -> None:
        me = threading.current_thread()
        with self._lock:
            self._refuse_another(me)
            self._holder = me
            self._within.append(what)

    def _refuse_another(self, me: threading.Thread) -> None:
        holder = self._holder
        if holder is None or holder is me or torch._C._current_graph_task_id() != -1:
            return
        if holder.is_alive():
            raise RuntimeError(_TWO.format(me.name, self._within[-1], holder.name))
        self._within.clear()


__all__ = ["OneThread"]
