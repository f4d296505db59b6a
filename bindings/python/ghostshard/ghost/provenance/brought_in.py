"""Followed tensors that come into a forward or a criterion by another way than its arguments: an attribute or a buffer that the loop set, a closure, a global.

Arguments are plain tensors there. So whatever is followed, and what torch functions made of it, came in otherwise. It may if its rows are those of the
forward, in their order; tensors with a gradient that it meets stand for these rows, because gradients show whose theirs are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .drawn import VOUCHED, Drawn, Origin
from .findings import Finding, in_its_order, is_not

_BY_ATTRIBUTE = "a tensor that came into {} by another way than its arguments (an attribute, a buffer, a closure; a tensor of the batch comes as an argument)"


def wrong_within(where: str, tensors: Iterable[torch.Tensor], of: Finding, origin_of: Callable[[torch.Tensor, str], tuple[Any, str]], dims: tuple[int, ...]) -> str:
    """Why what a forward or a criterion gave may not stand in a loss; "" if none of it is followed, or if its rows are those of the forward. dims: which
    dimension may be theirs."""
    name = _BY_ATTRIBUTE.format(where)
    for each in tensors:
        if isinstance(each, Drawn) and of.piece is not None:
            origin, wrong = origin_of(each, name)
            wrong = wrong or _other_rows(name, origin, of, dims)
            if wrong:
                return wrong
    return ""


def _other_rows(name: str, origin: Origin, of: Finding, dims: tuple[int, ...]) -> str:
    if origin.memory.lost:  # to tensors with gradients alone
        return ""
    if origin.memory.piece is not of.piece and not (origin.vouched or of.piece is VOUCHED):
        return is_not(name, "it is of another batch of the loader")
    if of.packed:
        return is_not(name, "its tokens were moved, and which text they are of is not followed") if origin.moved else ""
    if origin.dim is not None and origin.dim not in dims:
        return is_not(name, "its rows stand in another dimension than those of the examples")
    return "" if in_its_order(origin, of) else is_not(name, "its rows are of other examples than the forward's, or in another order")


__all__ = ["wrong_within"]
