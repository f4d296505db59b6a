"""Whether rows of outputs or losses are others than before."""

from __future__ import annotations

import math

import torch

# Rows of a matrix product follow from their own inputs alone, bit for bit on most machines. On others they may differ by this
# share of the largest output.
_LEAST_CHANGE = 1e-4
_DIRECTIONS = 4
_AT_ONCE = 1 << 22  # elements that are narrowed
_WHOLE = 1 << 16  # the largest extent of outputs [units, extent] that are kept whole
_LARGEST = 1e38
_GOLDEN = (5**0.5 - 1) / 2

# A tensor's last extent, and its rows [units, ...]; more than one way to read them if it is not certain which rows are whose.
Rows = tuple  # [int, *tuple[torch.Tensor, ...]]


def rows_of(value: torch.Tensor, dim: int, units: int, places: set[int]) -> Rows | None:
    """Of an output, where the inputs' units are at `dim`. places: how many each unit may have in flattened ones. None: it has no rows of them."""
    at = dim_of_rows(value, dim, units)
    if at is not None:
        either = at == 0 and units > 1 and value.dim() > 2 and value.shape[1] == units  # a state [layers, units, features], or places
        # Kept whole, what a model makes as long as its longest example (a waveform) can be compared over its common part.
        small = on_a_log_scale(value).to(value.dtype) if value.dim() == 2 and value.shape[-1] <= _WHOLE else narrowed(value, at + 1 + either)
        return (value.shape[-1], small.movedim(at, 0), *([small.movedim(1, 0)] if either else []))
    flat = value.dim() > 0 and units > 1 and any(value.shape[0] == units * each for each in places)
    small = narrowed(value, 2 if value.dim() > 1 and value.shape[1] == units else 1)
    ways = [small.unflatten(0, (units, -1)), small.unflatten(0, (-1, units)).movedim(1, 0)] if flat else []  # each unit's together, or in turn
    if dim == 0 and units > 1 and value.dim() > 1 and value.shape[1] == units:
        ways.append(small.movedim(1, 0))
    return (value.shape[-1], *ways) if ways else None


def dim_of_rows(value: torch.Tensor, dim: int, units: int) -> int | None:
    """The dimension of an output's rows, where the inputs' is `dim`: what is pooled over time has them first. None: it has none, or it may be either."""
    if value.dim() > dim and value.shape[dim] == units and (dim == 0 or value.dim() > 2 or value.shape[0] != units):
        return dim
    return 0 if dim == 1 and value.dim() in (1, 2) and value.shape[0] == units and tuple(value.shape) != (units, units) else None


def narrowed(value: torch.Tensor, rows: int) -> torch.Tensor:
    """Values on a scale that is linear about zero and logarithmic far out, so that a mask of -1e9 hides no others. The last extent is replaced by
    products with a few vectors, because logits are large, unless it is small or one of the first `rows` extents, which are the rows'."""
    narrow = value.dim() > rows and value.shape[-1] > _DIRECTIONS
    fixed = torch.randn(value.shape[-1], _DIRECTIONS, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu").to(value.device) if narrow else None

    def scaled(part: torch.Tensor) -> torch.Tensor:
        found = on_a_log_scale(part)
        return (found if fixed is None else found @ fixed).to(value.dtype)

    if value.numel() <= _AT_ONCE or value.dim() < 2:
        return scaled(value)
    flat = value.flatten(0, -2)
    parts = [scaled(each) for each in flat.split(max(_AT_ONCE // max(value.shape[-1], 1), 1))]
    return torch.cat(parts).view(*value.shape[:-1], -1)


def on_a_log_scale(value: torch.Tensor) -> torch.Tensor:
    """In float32, linear about zero."""
    return value.float().nan_to_num(nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST).asinh()


def as_fractions(value: torch.Tensor) -> torch.Tensor:
    """Of complex numbers both parts; of whole ones (a mask, classes) fractions that are far apart for numbers next to each other."""
    if value.is_floating_point():
        return value
    return torch.view_as_real(value) if value.is_complex() else (value.double() * _GOLDEN).frac().float()


def nearest(moved: torch.Tensor) -> torch.Tensor:
    """Whose values each unit has: those that moved have the ones of the nearest unit before them that stays, or of the first that
    stays. So what is sorted (the lengths of packed sequences) stays sorted."""
    own = torch.arange(len(moved))
    if not bool(moved.any()) or bool(moved.all()):
        return own
    before = torch.where(moved, -1, own).cummax(0).values
    return torch.where(before < 0, own[~moved][0], before)


def differ(one: list[Rows], two: list[Rows], rows: torch.Tensor, *, eps: float = 0.0) -> bool:
    """In some tensor, in whatever way its rows are read. eps: of what they were computed in, if that is rougher than their own."""
    return how_far(one, two, rows, eps=eps) > 1


def how_far(one: list[Rows], two: list[Rows], rows: torch.Tensor, *, eps: float = 0.0) -> float:
    """The largest difference, in units of what differ() takes for none."""
    ways = ((last_a == last_b, zip(of_a, of_b)) for (last_a, *of_a), (last_b, *of_b) in zip(one, two) if len(of_a) == len(of_b))
    return max((min(_distance(a, b, same_last, rows, eps) for a, b in pairs) for same_last, pairs in ways), default=0.0)


def _distance(a: torch.Tensor, b: torch.Tensor, same_last: bool, rows: torch.Tensor, eps: float) -> float:
    if a.dim() != b.dim():
        return math.inf
    if not same_last and _DIRECTIONS in (a.shape[-1], b.shape[-1]):
        return 0.0  # attention over cut lengths: products with other vectors
    # A model that cuts its batch to the longest example gives outputs of other extents: their common part must stay.
    common = tuple(slice(0, min(size)) for size in zip(a.shape, b.shape))
    a, b = a[common][rows.to(a.device)], b[common][rows.to(b.device)]
    if a.numel() == 0:
        return 0.0
    near = torch.where(torch.isfinite(a), a, 0).abs().max().double() * max(_LEAST_CHANGE, 8 * torch.finfo(a.dtype).eps, 8 * eps)
    distances = ((a.double() - b.double()).abs() / near).nan_to_num(nan=math.inf, posinf=math.inf)
    return float(torch.where((a == b) | (a.isnan() & b.isnan()), 0, distances).max())


__all__ = ["Rows", "as_fractions", "differ", "dim_of_rows", "how_far", "narrowed", "nearest", "on_a_log_scale", "rows_of"]
