"""Numbers that are a·n + b of the number n of examples that were drawn: `loss / (len(x) + 4)`, `model(x, len(x))`.

Such a number is the same in all batches of one size, and lies on one line for all sizes. A place at which it once was not is free forever, so a schedule
by steps must lie on a line with five random sizes to be refused.
"""

from __future__ import annotations

import math
from typing import Any

_POWERS = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
_SIZES = 5  # that show a line
COUNTED = (
    "{} met a number that goes with how many examples were drawn. Leave a division by it out (loss / len(x)): what is released is divided by the expected "
    "batch, once. What else needs the number takes len() of its arguments"
)


class Lines:
    def __init__(self) -> None:
        self._points: dict[Any, dict[int, float] | None] = {}  # by place: the number by size; None: free

    def goes_with_count(self, place: Any, units: int, value: float) -> bool:
        points = self._points.setdefault(place, {})
        if points is None:
            return False
        value = float(value)
        if not math.isfinite(value) or points.setdefault(units, value) != value or not _on_a_line(points):
            self._points[place] = None
            return False
        return len(points) >= _SIZES


def _on_a_line(points: dict[int, float]) -> bool:
    if len(points) < 2:
        return True
    (n, x), (m, y), *others = points.items()
    slope = (y - x) / (m - n)
    return slope != 0 and all(abs(x + slope * (k - n) - z) <= 1e-9 * max(abs(z), abs(x)) for k, z in others)


def follows(one: Any, units: float, two: Any, units_now: float) -> float | None:
    """The power of the number of examples that a number is, times a constant, from one batch to another; None: it is none."""
    numbers = isinstance(one, (int, float)) and isinstance(two, (int, float))
    if units == units_now or units * units_now <= 0 or not numbers or one * two <= 0 or math.isinf(one * two):
        return None
    power = math.log(two / one) / math.log(units_now / units)
    return next((each for each in _POWERS if abs(power - each) < 1e-6), None)


class AmongRanks:
    """The numbers that a batch met, and how many examples all ranks have: `loss * 2 * len(x) / total` after an all_reduce. A rank learns of
    that when all of them meet for the backward, and no step is made of it."""

    def __init__(self) -> None:
        self._met: dict[tuple, float] = {}  # of the batch at hand, by place
        # By place and kind of count: number, count, the power that one is of the other, and how often it was
        self._known: dict[tuple, tuple[float, float, float | None, int]] = {}

    def begin(self) -> None:
        self._met.clear()

    def note(self, place: tuple, value: Any) -> None:
        if type(value) in (int, float):
            self._met[place] = value

    def found(self, here: int, everywhere: int) -> tuple | None:
        """The place of a number that goes with all ranks' examples, or with this rank's share of them."""
        if not here or not everywhere:
            return None
        for place, value in self._met.items():
            for kind, count in enumerate((everywhere, here / everywhere)):
                before, then, power, times = self._known.get((place, kind), (value, count, None, 0))
                if then != count or before != value:
                    found = follows(before, then, value, count)
                    times = 0 if found is None else times + 1 if found == power else 1
                    power = found
                self._known[place, kind] = value, count, power, times
                if times > 1:  # once may be chance
                    return place
        return None


__all__ = ["COUNTED", "AmongRanks", "Lines", "follows"]
