"""What a loop asked of values of its batches: every comparison of numbers that were read, and every `if` of a followed tensor, with its place and outcome.

A way (courses.py) or a setting (checks/held_settings.py) that goes with such outcomes may follow from them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .places import masks_of_transformers, place_of_loop
from .summaries import Latest

_PYTHON = os.path.join(os.path.dirname(os.__file__), "")  # its own library (json, statistics) decides nothing of a loop
COMPARISONS = "lt le gt ge eq ne bool".split()
_IN_ORDER = 4  # outcomes at one place

Place = tuple[str, int]


class Decisions(Latest[tuple[Place, bool]]):
    def note_here(self, outcome: bool) -> None:
        place = place_of_loop()
        if place[0] == masks_of_transformers() or (place[0].startswith(_PYTHON) and "site-packages" not in place[0]):
            return
        self.note((place, outcome))


DECISIONS = Decisions()


def outcomes_of(decisions: list[tuple[Place, bool]]) -> frozenset:
    """How comparisons came out, by place: in order, or of many (a loop over rows) which there were."""
    by_place: dict[Place, list[bool]] = {}
    for place, outcome in decisions:
        by_place.setdefault(place, []).append(outcome)
    return frozenset((place, tuple(each) if len(each) <= _IN_ORDER else frozenset(each)) for place, each in by_place.items())


def deciding(kind: type, name: str) -> Callable[..., Any]:
    """A number's comparison, which is noted."""
    own, of_fractions = getattr(kind, f"__{name}__"), getattr(float, f"__{name}__")

    def compared(self: Any, *others: Any) -> Any:
        outcome = own(self, *others)
        if outcome is NotImplemented and others and isinstance(others[0], float):  # a whole number with a fraction
            outcome = of_fractions(float(self), *others)
        if outcome is not NotImplemented:
            DECISIONS.note_here(outcome)
        return outcome

    return compared


__all__ = ["COMPARISONS", "DECISIONS", "Decisions", "Place", "deciding", "outcomes_of"]
