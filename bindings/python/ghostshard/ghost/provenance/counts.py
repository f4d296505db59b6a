"""Numbers that are a·n + b of the number n of examples that were drawn: `loss / (len(x) + 4)`, `model(x, len(x))`.

Such a number is the same in all batches of one size, and lies on one line for all sizes. A place at which it once was not is free forever, so a schedule
by steps must lie on a line with five random sizes to be refused.
"""

from __future__ import annotations

import math
from typing import Any

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


__all__ = ["COUNTED", "Lines"]
