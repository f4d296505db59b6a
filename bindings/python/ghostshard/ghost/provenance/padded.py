"""Functions that count places of a batch, also those that are only there because its longest example has them.

Seen once the loader has told of a batch how far each example is padded (loaders/padding.py), as soon as two batches showed it. What is added up over
padded places shows by its gradient (checks/padding.py); how many they are, which divides a mean, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from .drawn import Drawn
from .places import place_of_loop

_COUNTING = {"mean", "nanmean", "std", "var", "std_mean", "var_mean", "median", "quantile", "nanquantile", *(f"adaptive_avg_pool{n}d" for n in (1, 2, 3))}
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


_TAKING = {"getitem", "narrow", "select", "index_select"}
_NEAR = 2  # places at a beginning that a loop may leave out in any batch
_SEEN = 2  # times that a beginning went with the padded length, and never otherwise: crops by coins may do so by chance
_FROM_THE_END = (
    "{} counted places from the end of the padded batch, and how far a batch is padded follows from its longest example: one would move all others. Count from "
    "each example's own length, pad on the left, or pad all examples to one length, whatever their batch"
)


def taken_from_the_end(name: str, x: Drawn, again: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Why name(x) is not each example's own; "" if it may be. again: does the same to another tensor."""
    constants = getattr(x.origin.memory.piece, "constants", None)
    if name not in _TAKING or constants is None or x.requires_grad:
        return ""
    left = {constants.extents[place] for place in constants.padded_left if place < len(constants.extents)}
    for d, extent in enumerate(x.shape):
        if d == x.origin.dim or extent in left or extent not in constants.padded:
            continue
        places = again(torch.arange(extent, device=x.device).view([-1 if k == d else 1 for k in range(x.dim())]).expand(x.shape))
        start, line = int(places.min()) if places.numel() else 0, (name, d, *place_of_loop())
        if start <= _NEAR:
            continue
        then, padded, seen = constants.starts.get(line, (start, extent, 0))
        if padded != extent:
            seen = seen + 1 if extent - start == padded - then and seen >= 0 else -1
        constants.starts[line] = (start, extent, seen)
        if seen >= _SEEN:
            return _FROM_THE_END.format(name)
    return ""


__all__ = ["over_padding", "taken_from_the_end"]
