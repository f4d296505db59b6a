"""Functions that count places of a batch, also those that are only there because its longest example has them.

Seen in batches of which the loader told how far each example is padded (loaders/padding.py). What is added up over padded places shows by its
gradient (checks/padding.py); how many they are, which divides a mean, does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from .drawn import Drawn

_COUNTING = {"mean", "std", "var", "std_mean", "var_mean", "median"}
_WRONG = (
    "{} went over padded places, and how far a batch is padded follows from its longest example: one would move all others. Add up each "
    "example's own places and divide by their number, or pad all examples to one length, whatever their batch"
)


def over_padding(name: str, x: Drawn, along: Iterable[int]) -> str:
    """Why name(x) along these dimensions is not each example's own; "" if it is."""
    extents = {axis.extent for axis in getattr(x.origin.memory.piece, "padding", ())} if name in _COUNTING else set()
    first = (x.origin.dim or 0) + 1
    padded = any(x.shape[d] in extents and x.shape[d] not in x.shape[first:d] for d in along)
    return _WRONG.format(name) if padded else ""


__all__ = ["over_padding"]
