"""The tiles of a matrix, side by side in one flat tensor: what Shampoo and SOAP keep of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass
class Tiles:
    """Of one shape [n, r, c], side by side in the same rows; views of one flat tensor. Transforms are roots, or bases."""

    first_row: int
    first_column: int
    first: torch.Tensor
    second: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    left_transform: torch.Tensor
    right_transform: torch.Tensor


def tiled_numbers(shape: torch.Size, side: int) -> int:
    """float32 numbers that either keeps of a matrix."""
    return sum(n * (2 * r * c + 2 * r * r + 2 * c * c) for _, _, n, r, c in _shapes(shape, side))


def _shapes(shape: torch.Size, side: int) -> Iterator[tuple[int, int, int, int, int]]:
    """First row, first column, tiles, and the extents of each: bands of tiles of `side` columns, and one of those that remain."""
    rows, columns = shape
    whole = columns - columns % side
    for first in range(0, rows, side):
        height = min(side, rows - first)
        if whole:
            yield first, 0, whole // side, height, side
        if columns > whole:
            yield first, whole, 1, height, columns - whole


def tiles_of(flat: torch.Tensor, shape: torch.Size, side: int) -> Iterator[Tiles]:
    used = 0
    for first_row, first_column, n, r, c in _shapes(shape, side):
        views = []
        for of_state in ((n, r, c), (n, r, c), (n, r, r), (n, c, c), (n, r, r), (n, c, c)):
            views.append(flat[used : used + math.prod(of_state)].view(of_state))
            used += math.prod(of_state)
        yield Tiles(first_row, first_column, *views)
