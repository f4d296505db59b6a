"""In which order a criterion gets the rows of its examples: a loop may join the outputs of several forwards, in any order, and their targets alike."""

from __future__ import annotations

from typing import Any

import torch

from .drawn import Drawn


def orders_of(given: list[torch.Tensor], piece: Any) -> list[torch.Tensor]:
    """Of the outputs among these whose rows are known: which example each row is of."""
    outputs = [each for each in given if isinstance(each, Drawn) and each.requires_grad and each.origin.live and each.origin.memory.piece is piece]
    return [rows for each in outputs if (rows := _rows_of(each)) is not None]


def order_of_units(orders: list[torch.Tensor], expected: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor | None:
    """[rows]: the unit of each row, if all outputs have one order in which each unit has as many rows, and all targets with as many rows have it, too.
    None: they stand as the units do, or in no order that losses could be told by. expected: the units' numbers."""
    if not orders or not all(torch.equal(each, orders[0]) for each in orders[1:]):
        return None
    rows, (each, odd) = orders[0], divmod(len(orders[0]), max(len(expected), 1))
    if odd or each == 0 or torch.equal(rows, expected):
        return None
    beside = [_rows_of(one) for one in given if isinstance(one, Drawn) and one.dim() and one.shape[0] == len(rows)]
    if not all(one is not None and torch.equal(one, rows) for one in beside):
        return None
    place = {number: unit for unit, number in enumerate(expected.tolist())}
    units = torch.tensor([place.get(number, -1) for number in rows.tolist()])
    as_many = bool((units >= 0).all()) and bool((torch.bincount(units, minlength=len(expected)) == each).all())
    return units if as_many else None


def _rows_of(value: Drawn) -> torch.Tensor | None:
    """Which example each row along the first dimension is of; None if that is not known."""
    origin = value.origin
    if origin.memory.lost or value.dim() == 0:
        return None
    if origin.dim is None and origin.rows == 1:  # all of it is of the one example
        return origin.numbers().expand(value.shape[0])
    return origin.numbers() if origin.dim == 0 else None


def as_units(value: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """[rows, ...] as [units, rows of each, ...], or as [units, ...] if that is one."""
    together = value.index_select(0, order.argsort(stable=True).to(value.device))
    each = len(order) // int(order.unique().numel())
    return together if each == 1 else together.unflatten(0, (-1, each))


__all__ = ["as_units", "order_of_units", "orders_of"]
