"""x[index] = value keeps the rows of x if each row gets values of its own, or what is the same for all rows."""

from __future__ import annotations

from typing import Any

import torch

from .drawn import Drawn, Origin, constant
from .moves import located, spread


def after_setting(x: Drawn, index: Any, value: Any) -> Origin:
    """Of x after x[index] = value."""
    if x.origin.memory.lost:
        others = isinstance(value, torch.Tensor) and value.dim() > 0 and not value.requires_grad and not constant(value, 0)
        return x.origin.lost("", strangers=others)
    indices = index if isinstance(index, tuple) else (index,)
    chosen_by = [(place, each) for place, each in enumerate(indices) if isinstance(each, torch.Tensor) and each.dim() > 0]
    plain = all(isinstance(each, (int, slice, torch.Tensor)) for each in indices)
    for place, each in chosen_by:
        if not _is_own_choice(x, each, place if plain else None):
            return x.origin.lost("its elements were chosen by a tensor of other rows, and written to", strangers=True)
    if not isinstance(value, torch.Tensor) or (value.dim() == 0 and not isinstance(value, Drawn)):
        return x.origin
    strangers = not value.requires_grad
    if isinstance(value, Drawn) and value.origin.memory.lost:
        return x.origin.lost(value.origin.memory.lost, strangers=strangers)
    if chosen_by or not _are_its_rows(x, index, value):
        return x.origin.lost("rows of others were written to it", strangers=strangers)
    return x.origin


def _is_own_choice(x: Drawn, index: torch.Tensor, place: int | None) -> bool:
    """The mask of each row itself, or places that are the same for all rows."""
    dim = x.origin.dim
    if dim is None:
        return x.origin.rows == 1 or not isinstance(index, Drawn) or index.origin.same_rows(x.origin)
    if isinstance(index, Drawn):
        own = not index.origin.memory.lost and index.origin.dim == dim and index.origin.same_rows(x.origin)
        return own and index.dtype == torch.bool and place == 0
    if index.dtype == torch.bool and place == 0:
        return index.dim() <= dim or constant(index, dim)
    return place is not None and place != dim and index.dtype != torch.bool


def _are_its_rows(x: Drawn, index: Any, value: torch.Tensor) -> bool:
    there = spread(x.origin, x, torch.int64)[index]
    if there.numel() == 0:
        return True
    place = located(there, x.origin.dim)
    if place is None or value.dim() > there.dim():
        return False
    dim, ids = place
    if isinstance(value, Drawn) and value.origin.memory.piece is not x.origin.memory.piece and not value.origin.vouched:
        return False
    if dim is None:
        own = isinstance(value, Drawn) and value.origin.dim is None and torch.equal(value.origin.numbers(), ids.reshape(-1))
        return x.origin.rows == 1 or own or bool((value == value.reshape(-1)[:1]).all())
    of_value = dim - there.dim() + value.dim()
    if isinstance(value, Drawn):
        return value.origin.dim == of_value and torch.equal(value.origin.numbers(), ids.reshape(-1))
    return of_value < 0 or constant(value, of_value)


__all__ = ["after_setting"]
