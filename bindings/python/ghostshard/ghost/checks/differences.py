"""Whether rows of outputs or losses are others than before."""

from __future__ import annotations

import torch

# Rows of a matrix product follow from their own inputs alone, bit for bit on most machines. On others they may differ by this
# share of the largest output.
_LEAST_CHANGE = 1e-4
_DIRECTIONS = 4


def dim_of_rows(value: torch.Tensor, dim: int, units: int) -> int | None:
    """The dimension of an output's rows, where the inputs' is `dim`: what is pooled over time has them first. None: it has none, or it may be either."""
    if value.dim() > dim and value.shape[dim] == units and (dim == 0 or value.dim() > 2 or value.shape[0] != units):
        return dim
    return 0 if dim == 1 and value.dim() in (1, 2) and value.shape[0] == units and tuple(value.shape) != (units, units) else None


def narrowed(value: torch.Tensor, rows: int) -> torch.Tensor:
    """The value with its last extent replaced by products with a few vectors, because logits are large; unchanged if the last
    extent is small or one of the first `rows` extents, which are the rows'."""
    if value.dim() <= rows or value.shape[-1] <= _DIRECTIONS:
        return value
    fixed = torch.Generator().manual_seed(0)
    return value @ torch.randn(value.shape[-1], _DIRECTIONS, generator=fixed).to(value.device, value.dtype)


def nearest(moved: torch.Tensor) -> torch.Tensor:
    """Whose values each unit has: those that moved have the ones of the nearest unit before them that stays, or of the first that
    stays. So what is sorted (the lengths of packed sequences) stays sorted."""
    own = torch.arange(len(moved))
    if not bool(moved.any()) or bool(moved.all()):
        return own
    before = torch.where(moved, -1, own).cummax(0).values
    return torch.where(before < 0, own[~moved][0], before)


def differ(one: list[tuple[int, torch.Tensor]], two: list[tuple[int, torch.Tensor]], rows: torch.Tensor) -> bool:
    for (last_of_a, a), (last_of_b, b) in zip(one, two):
        if a.dim() != b.dim():
            return True
        if last_of_a != last_of_b and a.shape[-1] == _DIRECTIONS:
            continue  # attention over cut lengths: products with other vectors
        # A model that cuts its batch to the longest example gives outputs of other extents: their common part must stay.
        common = tuple(slice(0, min(size)) for size in zip(a.shape, b.shape))
        a, b = a[common][rows.to(a.device)], b[common][rows.to(b.device)]
        if a.numel() == 0:
            continue
        largest = torch.where(torch.isfinite(a), a, 0).abs().max().double()
        near = (a.double() - b.double()).abs() <= largest * max(_LEAST_CHANGE, 8 * torch.finfo(a.dtype).eps)
        if not bool((near | (a == b) | (a.isnan() & b.isnan())).all()):
            return True
    return False


__all__ = ["differ", "dim_of_rows", "narrowed", "nearest"]
