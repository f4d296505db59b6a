"""What one forward sets on a model, and another uses: prototypes that a forward without gradients takes of the batch, a mean of the first view for the second.

A check repeats a forward with the attributes that it began with, whoever set them. So whether they follow from examples is looked at when they are set: the forward that
did it is made once more with other inputs. And a forward that is checked may not follow from those that do.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..provenance.opened import contents
from ..tensor_trees import mapped
from .state import MODELS_OWN, Attributes, State, marks_by_name

_MOST = 3  # forwards that set something are looked at


class SetAside:
    """Of one model."""

    def __init__(self, model: nn.Module):
        self._model, self._looked = model, 0
        self._before: tuple[dict, Attributes] | None = None
        self.followed: list[tuple[nn.Module, str]] = []  # attributes that follow from examples
        self._anew = False

    def begin_forward(self) -> None:
        self._before = (marks_by_name(self._model), Attributes(self._model)) if self._looked < _MOST else None

    def end_forward(self, again: Callable[[], Any], device: torch.device) -> None:
        """again(): the forward with other inputs."""
        before, self._before = self._before, None
        if before is None:
            return
        marks, kept = before
        changed = [key for key, mark in marks_by_name(self._model).items() if mark != marks.get(key)]
        changed = [key for key in changed if key not in self.followed and _numbers(key) is not None]
        if not changed:
            return
        self._looked += 1
        state, now, values = State(self._model, device), Attributes(self._model), [_numbers(key) for key in changed]
        try:
            kept.again()
            with torch.no_grad():
                again()
            found = [key for key, value in zip(changed, values) if _are_others(value, _numbers(key))]
        except MODELS_OWN:
            found = []
        finally:
            now.again()
            state.again()
        self.followed += found
        self._anew = self._anew or bool(found)

    def take_news(self) -> bool:
        """Whether there are more of them since it was asked last."""
        anew, self._anew = self._anew, False
        return anew


@contextmanager
def with_others(followed: list[tuple[nn.Module, str]]) -> Iterator[None]:
    """These attributes have other values; within the same lists, which other modules may hold, too."""
    restores = []
    for module, name in followed:
        of = vars(module)
        if name in of:
            restores.append(_changed(of, name))
    try:
        yield
    finally:
        for restore in reversed(restores):
            restore()


def _changed(of: Any, key: Any) -> Callable[[], None]:
    """Other values in the place of what stands there; what puts it back."""
    value = of[key]
    if isinstance(value, (list, dict, deque)):
        inside = [_changed(value, each) for each in (list(value) if isinstance(value, dict) else range(len(value)))]
        return lambda: [restore() for restore in reversed(inside)] and None
    if type(value) is float:
        of[key] = 1.5 * value + 0.1
    elif isinstance(value, (torch.Tensor, tuple)):
        of[key] = mapped(lambda each: each.detach() * 1.5 + 0.1 if each.is_floating_point() else each, value)
    return functools.partial(of.__setitem__, key, value)


def _numbers(key: tuple[nn.Module, str]) -> list[torch.Tensor] | None:
    """Copies of the fractions that an attribute holds; None: none."""
    module, name = key
    value = vars(module).get(name)
    if type(value) is float:
        return [torch.tensor(value)]
    found = [each.detach().clone() for each in contents(value) if each.is_floating_point() and not isinstance(each, nn.Parameter)]
    return found or None


def _are_others(one: list[torch.Tensor] | None, two: list[torch.Tensor] | None) -> bool:
    if one is None or two is None or len(one) != len(two):
        return True
    return any(a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) for a, b in zip(one, two))


__all__ = ["SetAside", "with_others"]
