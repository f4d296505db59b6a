"""Whose are the rows of a layer's input, if its first extent is not that of the units?

[units, T, d] that was flattened to [units·T, d] is in order as long as nothing has changed the order of the rows since. The
autograd graph says so: from the input back to the flattening there must be nothing but operations that keep each row in its
place. This is asked at every call, because a batch that is indexed (experts, masked places) may have as many rows by chance.
"""

from __future__ import annotations

from typing import Any

import torch

# Each row of the output follows from the same row of every input.
_BY_ROWS = {
    f"{name}Backward{number}"
    for name in (
        "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Pow", "Exp", "Log", "Sqrt", "Rsqrt", "Reciprocal", "Erf", "Tanh", "Sigmoid",
        "Relu", "Gelu", "Silu", "Mish", "Elu", "LeakyRelu", "Hardtanh", "Hardswish", "Hardsigmoid", "Softplus", "Clamp", "ToCopy",
        "Alias", "Clone", "NativeDropout", "MaskedFill", "Where", "NativeLayerNorm", "FusedRmsNorm",
    )
    for number in (0, 1)
}  # fmt: skip
_ALONG_A_DIM = {"SoftmaxBackward0", "LogSoftmaxBackward0", "SliceBackward0", "SplitBackward0", "TopkBackward0", "GatherBackward0"}
_PRODUCTS = {"AddmmBackward0": 1, "MmBackward0": 0}  # number of the input whose rows they keep
_VIEWS = ("ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0")
_FURTHEST = 200


def rows_of_each(x: torch.Tensor, units: int) -> int | None:
    """How many rows, one after another, each unit has in x [units · rows, ...]; None if that is not certain."""
    if units == 1 and x.dim() > 1 and x.shape[0] > 1:
        return x.shape[0]
    if x.dim() < 2 or units < 2 or x.shape[0] % units or x.shape[0] <= units or x.grad_fn is None:
        return None
    waiting, seen = [x.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        before = _before(node, x.shape[0], units)
        if before is None or len(seen) > _FURTHEST:
            return None
        waiting.extend(before)
    return x.shape[0] // units


def _before(node: Any, rows: int, units: int) -> list[Any] | None:
    """The nodes from which the same rows come; [] at a flattening of the units; None for anything else."""
    name = node.name()
    following = [each for each, _ in node.next_functions]
    if name in _VIEWS:
        shape = node._saved_self_sym_sizes
        return [] if _flattened(shape, rows, units) else following if len(shape) and shape[0] == rows else None
    if name in _PRODUCTS:
        return [following[_PRODUCTS[name]]] if following[_PRODUCTS[name]] is not None else None
    # A negative dimension is saved as 2^64 less: all but the first and the last of two are taken, -1 among them.
    if name in _BY_ROWS or (name in _ALONG_A_DIM and node._saved_dim in (1, 2, 3, 2**64 - 1)):
        found = [each for each in following if each is not None]
        return found or None
    return None


def _flattened(shape: Any, rows: int, units: int) -> bool:
    """The first extents, of which the very first is the units', make the rows."""
    if len(shape) == 0 or shape[0] != units:
        return False
    count = 1
    for extent in shape:
        count *= extent
        if count >= rows:
            break
    return count == rows


def of_places(value: torch.Tensor) -> bool:
    """0, 1, 2, …, or [T,T] that follows from the distance of two places alone (a causal mask, a table of distances), and is not all the same: what T
    examples hardly look like, and all of them share."""
    if value.dim() == 1:
        return len(value) >= 4 and not torch.compiler.is_compiling() and not value.is_floating_point() and value.dtype != torch.bool and torch.equal(value, torch.arange(len(value), dtype=value.dtype, device=value.device))
    if value.dim() != 2 or value.shape[0] != value.shape[1] or len(value) < 2:
        return False
    return bool((value[1:, 1:] == value[:-1, :-1]).all()) and bool((value != value[0, 0]).any())


__all__ = ["of_places", "rows_of_each"]
