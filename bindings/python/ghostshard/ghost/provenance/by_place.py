"""Rows that are treated by their place in the batch: `torch.cat([augment(x[:n]), x[n:]])`, `x[:n] = 0`.

If an example is absent, those behind it come one place nearer, and some are treated in another way: one example moves many. So parts that a slice, split or
chunk made, and that went through different functions since, are not joined again, and rows are not written to by a slice. Coins for each row, or masks that
follow from each row's own values, may choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .drawn import Drawn

_CUTS = {"getitem", "narrow", "split", "split_with_sizes", "tensor_split", "chunk", "hsplit", "vsplit"}
WHY = (
    "treated its rows by their place in the batch, so that an example's absence would change how others are treated. Choose rows by coins "
    "(torch.rand_like(x[:, :1]) < p) or by each example's own values, with torch.where"
)


def is_cut(name: str, source: Any, rows: int, *, by_tensor: bool) -> bool:
    """Whether a function took `rows` rows, by their places, of more."""
    of_all = isinstance(source, Drawn) and source._origin.dim is not None
    return name in _CUTS and not by_tensor and of_all and 1 < rows < source.shape[source._origin.dim]


def joins_cuts(parts: Sequence[Drawn]) -> bool:
    """Whether they are cuts that went through different functions, and have different rows."""
    parts = [each for each in parts if each._origin.dim is not None]
    if not any(each.by_place for each in parts) or len({each.course for each in parts}) < 2:
        return False
    rows = [set(each._origin.numbers().tolist()) for each in parts]
    return all(not one & two for number, one in enumerate(rows) for two in rows[:number])


def writes_a_cut(target: Drawn, index: Any) -> bool:
    """target[index] = ..."""
    dim = target._origin.dim
    given = index if isinstance(index, tuple) else (index,)
    if dim is None or dim >= len(given) or any(each is Ellipsis or each is None for each in given[: dim + 1]):
        return False
    rows = given[dim]
    return isinstance(rows, slice) and len(range(*rows.indices(target.shape[dim]))) not in (0, target.shape[dim])


__all__ = ["WHY", "is_cut", "joins_cuts", "writes_a_cut"]
