"""Rows that stand in another dimension than the first for a while: attention makes queries, keys and values of one product,
[rows, n, 3·d] -> [3, rows, heads, n, d/heads], and takes them apart."""

from __future__ import annotations

import math
from typing import Any

_ELEMENTWISE = {f"{name}Backward0" for name in ("Clone", "Alias", "ToCopy", "Mul", "Div", "Neg", "Relu", "Gelu", "Silu", "Sigmoid", "Tanh")}
_ALONG_ONE = {"SoftmaxBackward0", "SliceBackward0", "SplitBackward0", "SplitWithSizesBackward0"}

Moved = list[tuple[tuple[Any, int], int]]


def moved(node: Any, _number: int, shape: tuple[int, ...], dim: int) -> Moved | None:
    """The outputs from which the rows of this one come, and the dimension in which they stand there; None for anything else. dim: the rows' here."""
    following = [each for each in node.next_functions if each[0] is not None]
    if len(following) != 1 or dim >= len(shape):
        return None
    before = _dimension(node, shape, dim)
    return None if before is None else [(following[0], before)]


def _dimension(node: Any, shape: tuple[int, ...], dim: int) -> int | None:
    name = node.name()
    if name in ("UnbindBackward0", "SelectBackward0"):
        return dim + (dim >= _positive(node._saved_dim, len(shape) + 1))
    if name == "PermuteBackward0":
        return _positive(node._saved_dims[dim], len(shape))
    if name == "TransposeBackward0":
        pair = [_positive(each, len(shape)) for each in (node._saved_dim0, node._saved_dim1)]
        return pair[1 - pair.index(dim)] if dim in pair else dim
    if name in ("ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0"):
        return _same_extent(node._saved_self_sym_sizes, shape, dim)
    if name in _ELEMENTWISE:
        return dim if dim else None
    if name in _ALONG_ONE:
        return dim if dim and _positive(node._saved_dim, len(shape)) != dim else None
    return None


def _positive(dim: int, dims: int) -> int:
    return dim - (2**64 - dims) if dim >= dims else dim  # a negative dimension is saved as 2^64 less


def _same_extent(before: Any, shape: tuple[int, ...], dim: int) -> int | None:
    """The dimension of what was viewed that stayed as it is, with as many elements before it."""
    for number in range(len(before or ())):
        if before[number] == shape[dim] and math.prod(before[:number]) == math.prod(shape[:dim]):
            return number
    return None


__all__ = ["moved"]
