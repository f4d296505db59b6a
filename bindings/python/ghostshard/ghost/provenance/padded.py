"""Functions that count places of a batch, also those that are only there because its longest example has them.

Seen once the loader has told of a batch how far each example is padded (loaders/padding.py), as soon as two batches showed it. What is added up over
padded places shows by its gradient (checks/padding.py); how many they are, which divides a mean, does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from .drawn import Drawn

_COUNTING = {"mean", "nanmean", "std", "var", "std_mean", "var_mean", "median", *(f"adaptive_avg_pool{n}d" for n in (1, 2, 3))}
_WRONG = (
    "{} went over padded places, and how far a batch is padded follows from its longest example: one would move all others. Add up each "
    "example's own places and divide by their number, or pad all examples to one length, whatever their batch"
)


def over_padding(name: str, x: Drawn, along: Iterable[int]) -> str:
    """Why name(x) along these dimensions is not each example's own; "" if it is."""
    constants = getattr(x.origin.memory.piece, "constants", None)
    if name not in _COUNTING or constants is None:
        return ""
    pairs = [(x.shape[d], extent) for d in along for extent in constants.padded]
    padded = [constants.goes_with_padding(f"{name} {number}", *pair) for number, pair in enumerate(pairs)]
    return _WRONG.format(name) if any(padded) else ""


__all__ = ["over_padding"]
