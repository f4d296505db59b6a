"""Whether a function takes a first extent row by row, and where its output has it: asked with another extent than the batch's.

A table of 5 frames may meet a draw of 5 examples, so an extent says nothing of whose rows it counts. The function is done on the meta device, with an
extent that nothing else has in the place of the one that may be the units'. If it still fits, and the autograd graph shows that each row follows
from the same row alone, the output can be read in both ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .rows import keeps_rows
from .tensor_trees import refilled, tensors_in

_SIZED = {torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.expand, torch.reshape}
_MOST = 3  # tensors whose first extent may or may not be the units'


@dataclass
class Output:
    """One of a function's: shape, which of its extents is the units', and how many rows each unit has there."""

    shape: tuple[int, ...]
    dim: int
    rows: int


def outputs_along(func: Any, given: Any, units: int, along: set[int], *, by_rows: bool) -> tuple[Any, list[Output]] | None:
    """What func gives if the first extents of the tensors of these numbers are the units', and no other extent is, as a tree and as a list;
    None if it does not fit, or (by_rows) if a row of the output does not follow from the same rows alone."""
    tensors = tensors_in(given)
    other = _extent_of_nothing([units, *(extent for value in tensors for extent in value.shape)])
    for renamed in (True, False):
        changed = _renamed(func, given, units, other) if renamed else given
        if changed is None:
            continue
        args, kwargs = _on_meta(changed, units, other, along)
        try:
            with torch.enable_grad():
                tree = func(*args, **kwargs)
        except Exception:  # of whatever kind: it does not fit
            continue
        found = tensors_in(tree)
        outputs = [_output(value, units, other) for value in found]
        if outputs and all(outputs) and (not by_rows or all(each.dim == 0 and keeps_rows(value, other) for each, value in zip(outputs, found))):
            return tree, outputs
    return None


def sets_of(numbers: list[int], *, largest_first: bool) -> Iterator[set[int]]:
    """Of those that may be the units', those that are."""
    sizes = range(len(numbers) + 1) if len(numbers) <= _MOST else (0, len(numbers))
    for size in sorted(sizes, reverse=largest_first):
        yield from map(set, itertools.combinations(numbers, size))


def _on_meta(given: Any, units: int, other: int, along: set[int]) -> Any:
    def leaf(number: int, value: torch.Tensor) -> torch.Tensor:
        shape = (value.shape[0] // units * other, *value.shape[1:]) if number in along else value.shape
        made = torch.empty(shape, dtype=value.dtype, device="meta")
        # A product is no leaf, so that the function may write into it.
        return made.requires_grad_() * 1 if number in along and value.is_floating_point() else made

    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        return refilled(given, [leaf(number, value) for number, value in enumerate(tensors_in(given))])


def _renamed(func: Any, given: Any, units: int, other: int) -> Any:
    """A size that is a multiple of the units, as that multiple of the other extent; None if there is none."""
    args, kwargs = given
    if func not in _SIZED or len(args) < 2:
        return None
    listed = not isinstance(args[1], int)
    sizes = list(args[1]) if listed else list(args[1:])
    if not sizes or sizes[0] <= 0 or sizes[0] % units:
        return None
    sizes[0] = sizes[0] // units * other
    return (args[0], sizes) if listed else (args[0], *sizes), kwargs


def _output(value: torch.Tensor, units: int, other: int) -> Output | None:
    dims = [dim for dim, extent in enumerate(value.shape) if extent > 0 and extent % other == 0]
    if len(dims) != 1:
        return None
    shape, rows = list(value.shape), value.shape[dims[0]] // other
    shape[dims[0]] = units * rows
    return Output(tuple(shape), dims[0], rows)


def _extent_of_nothing(extents: list[int]) -> int:
    """A prime above all of them, which divides no product of theirs."""
    found = max(extents) + 1
    while any(found % divisor == 0 for divisor in range(2, int(found**0.5) + 1)):
        found += 1
    return found


__all__ = ["Output", "outputs_along", "sets_of"]
