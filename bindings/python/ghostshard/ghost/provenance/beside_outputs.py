"""Numbers that a model's forward returns beside its tensors: it may have read them from its batch (`{"logits": …, "scale": float(x.std())}`), where nothing is
followed. A constant stays what it is from draw to draw; a number that changes counts as read from then on, unless it is an extent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .constants import as_read


class NumbersBesideOutputs:
    """Of one run. By place: what stood there first."""

    def __init__(self) -> None:
        self._first: dict[tuple, Any] = {}
        self._changing: set[tuple] = set()

    def as_given(self, place: tuple, value: Any, extents: set[int]) -> Any:
        """The value as the loop gets it. What is no number stays what it is."""
        number = value.item() if isinstance(value, np.generic) else value
        if type(number) not in (int, float) or (type(number) is int and number in extents):
            return value
        first = self._first.setdefault(place, number)
        if type(first) is not type(number) or not (first == number or (first != first and number != number)):
            self._changing.add(place)
        return as_read(number) if place in self._changing else value


__all__ = ["NumbersBesideOutputs"]
