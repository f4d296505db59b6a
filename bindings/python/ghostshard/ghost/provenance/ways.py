"""Which way a tensor was computed since values of its draw were read: a branch, or how often a loop turns, may follow from them, and then one
example moves all others. So a tensor that reaches the model or the loss must have been computed as in earlier draws.

A way is counted by places of the loop: the function and its line, and how often it was applied in turn. Functions of one row alone are left out,
because their branches are that example's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .constants import Constants
from .drawn import Drawn
from .places import place_of_loop

_MOST = 1 << 9  # places

Way = dict[tuple, int]  # place -> how often


def way_of(name: str, sources: Sequence[Drawn]) -> Way:
    """Of what a function gives."""
    found: Way = {}
    for each in sources:
        for place, times in each.way.items():
            found[place] = max(found.get(place, 0), times)
    of_all = [each for each in sources if each._origin.dim is not None or each._origin.memory.lost]
    constants = _constants_of(of_all)
    if constants is not None and constants.read and len(found) < _MOST:
        place = (name, *place_of_loop())
        found[place] = found.get(place, 0) + 1
    return found


def another_way(name: str, tensor: Any) -> str:
    """Why a tensor may not reach the model or the loss; "" if it was computed as in earlier draws."""
    constants = _constants_of([tensor]) if isinstance(tensor, Drawn) else None
    return "" if constants is None else constants.steered(name, tensor.way)


def _constants_of(sources: Sequence[Drawn]) -> Constants | None:
    return next((found for each in sources if (found := getattr(each._origin.memory.piece, "constants", None))), None)


__all__ = ["Way", "another_way", "way_of"]
