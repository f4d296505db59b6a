"""Which numbers and tensors a torch function brings to rows of a batch, and whether they are constants (constants.py)."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..tensor_trees import constants_in, tensors_in
from .constants import Read, ReadInt
from .drawn import Drawn
from .functions import ALONG, LAYERS
from .moves import JOIN, MOVES

_CUTS = {"getitem", "narrow", "select"}
_MOST_PLACES = 64  # of a list of them that are looked at
_OF_SIZES = (set(ALONG) | set(LAYERS)) - {"pad"}  # windows, sizes, strides, which what they give goes with
_TO_SIZES = {"interpolate", *(name for name in LAYERS if name.startswith("adaptive"))}  # to another tensor's, as a rule
# Parts along a dimension: by sizes, or by an index that may be made of them. With the place and the default of the dimension.
_PARTS = {"split": (2, 0), "split_with_sizes": (2, 0), "tensor_split": (2, 0), "chunk": (2, 0), "unfold": (1, 0), "index_select": (1, 0), "take_along_dim": (2, None)}
_BY_COUNT = {"topk", "kthvalue", "roll", "rot90"}  # what they give goes with a whole number that is no extent
# Whole numbers are operands here, and dimensions or extents elsewhere.
_OF_NUMBERS = set(
    "add sub subtract mul multiply div divide true_divide truediv floordiv floor_divide mod remainder fmod pow clamp clamp_min clamp_max clip "
    "where masked_fill lerp fill full_like addcmul addcdiv setitem eq ne lt le gt ge maximum minimum float_power".split()
)


def wrong_constant(name: str, args: tuple, kwargs: dict, out: Any, sources: list[Drawn]) -> str:
    """Why some number or tensor of the call is not known to be a constant; "" if all are."""
    constants = next((found for each in sources if (found := getattr(each._origin.memory.piece, "constants", None))), None)
    if constants is None:
        return ""
    if name in _CUTS:
        wrong = next((found for each in _places(args, kwargs) if constants.read and (found := constants.wrong(name, each))), "")
        return "" if wrong and _leaves_padding_out(args, out) else wrong
    if name in _PARTS and constants.read and not _along_rows(name, args, kwargs):
        wrong = next((found for each in _sizes_of_parts(args, kwargs) if (found := constants.wrong(name, each))), "")
        if wrong:
            return wrong
    for each in constants_in((args, list(kwargs.values()))):
        if name in _BY_COUNT and constants.read and isinstance(each, int) and (found := constants.wrong(name, each)):
            return found
        number = name in _OF_NUMBERS or (constants.read and name in _OF_SIZES)
        if name not in MOVES and (isinstance(each, (float, Read, ReadInt)) or (type(each) is int and number)):
            extent = name in _TO_SIZES and type(each) is int and each in _sizes(constants.extents, sources)
            if found := constants.wrong(name, "an extent of the batch" if extent else each):
                return found
    if name in MOVES and name not in JOIN:
        return ""
    alone, single = any(each._origin.memory.lost for each in sources), any(each._origin.rows == 1 for each in sources)
    for each in tensors_in((args, list(kwargs.values()))):
        if not isinstance(each, Drawn) and not each.requires_grad and each.numel():
            if found := constants.wrong(name, each, alone=alone, single=single):
                return found
    return ""


def _sizes(of_batch: tuple[int, ...], sources: list[Drawn]) -> set[int]:
    """Extents that are not the number of examples."""
    own = {extent for each in sources for d, extent in enumerate(each.shape) if d != each._origin.dim}
    return own | {extent for extent in of_batch if all(extent != each._origin.rows for each in sources)}


def wrong_extent(name: str, x: Drawn, along: set[int]) -> str:
    """Why the number of elements along these dimensions may follow from values; "" if it does not, or has not changed yet."""
    constants = getattr(x._origin.memory.piece, "constants", None)
    if constants is None or not x.counted:
        return ""
    before, constants.read = constants.read, constants.read or "a function that gives as many elements as the batch's values say"
    try:
        return constants.wrong(name, math.prod(x.shape[d] for d in along))
    finally:
        constants.read = before


def _places(args: tuple, kwargs: dict) -> list[int]:
    """Which elements are taken, of each row."""
    x, *given = args
    indices = [each for index in (*given, *kwargs.values()) for each in (index if isinstance(index, tuple) else (index,))]
    if isinstance(x, Drawn) and x._origin.dim is not None and x._origin.dim < len(indices):
        del indices[x._origin.dim]  # whose row that is, is followed
    numbers = [n for each in indices for n in ((each.start, each.stop, each.step) if isinstance(each, slice) else (len(each), *each) if isinstance(each, (list, range)) else (each,))]
    return [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)][:_MOST_PLACES]


def _along_rows(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether whole rows are taken, whose rows that are is followed."""
    place, default = _PARTS[name]
    dim = kwargs.get("dim", kwargs.get("dimension", args[place] if len(args) > place else default))
    x = args[0]
    return isinstance(x, Drawn) and isinstance(dim, int) and x._origin.dim is not None and dim % max(x.dim(), 1) == x._origin.dim


def _sizes_of_parts(args: tuple, kwargs: dict) -> list[Any]:
    given = (args[1:], list(kwargs.values()))
    numbers = [each for each in constants_in(given) if isinstance(each, int) and not isinstance(each, bool)][:_MOST_PLACES]
    return [*numbers, *(each for each in tensors_in(given) if not isinstance(each, Drawn))]


def _leaves_padding_out(args: tuple, out: Any) -> bool:
    """x[:, :n], where the rest is all one value."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not isinstance(out, torch.Tensor) or not all(isinstance(each, slice) and each.start in (None, 0) and each.step in (None, 1) for each in index):
        return False
    rest = [args[0].narrow(d, out.shape[d], args[0].shape[d] - out.shape[d]) for d in range(len(index))]
    return all(each.numel() == 0 or bool((each == each.reshape(-1)[0]).all()) for each in rest)


__all__ = ["wrong_constant", "wrong_extent"]
