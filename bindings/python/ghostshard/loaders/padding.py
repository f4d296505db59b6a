"""How far a batch is padded follows from its longest example: how far would each of its examples be, alone?

A collate_fn is asked, of some batches (collate_check.py). The engine looks then whether outputs or losses follow from it
(ghost/checks/padding.py).
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from .coins import Coins


@dataclass(frozen=True)
class Axis:
    """An extent of a batch's tensors that follows from its examples."""

    extent: int
    alone: tuple[int, ...]  # [units]: what it would be for each unit alone, at most `extent`
    left: bool  # padding comes first
    fixed: frozenset[int] = frozenset()  # extents of the batch that do not follow from its examples
    place: tuple[int, int] = field(default=(0, 0), compare=False)  # a tensor of the batch, and its dimension: the same in other batches


class Told(NamedTuple):
    """What a loader's process sends. A tuple, so that DataLoader pins the batch in it."""

    batch: Any
    axes: tuple[Axis, ...] = ()
    lists: dict[tuple, bool] = {}  # whether those at these places have an entry for each example (listed_examples.py)
    entries: dict[tuple, Any] = {}  # of a batch without examples: what stands in those that have


def axes_of(collate: Callable[[list], Any], examples: list, before: Coins) -> tuple[Axis, ...]:
    """() if no extent varies, if collate_fn takes no example alone, or if rows of single examples are not found again in the batch: other coins, rows
    that were joined."""
    before.again()
    batch = _tensors(collate(copies_of(examples)))
    alone = []
    for each in examples:
        before.again()
        try:
            alone.append(_tensors(collate(copies_of([each]))))
        except Exception:  # of the user's code, which is asked what no draw has asked it yet
            return ()
    if any(len(each) != len(batch) for each in alone):
        return ()
    found: list[Axis] = []
    fixed: set[int] = set()
    order: list[int] | None = None  # the row of each example
    for number, whole in enumerate(batch):
        ones = [each[number] for each in alone]
        rows, ones = _rows_of(whole, ones)
        varied = [d for d in range(rows[0].dim() if rows else 0) if any(one.shape[d] < rows[0].shape[d] for one in ones)]
        fixed.update(rows[0].shape[d] for d in range(rows[0].dim() if rows else 0) if d not in varied)
        if not varied or any(one.shape[d] > rows[0].shape[d] for one in ones for d in range(one.dim())):
            continue
        for left in (False, True):
            if order is None:
                order = _order(rows, ones, left)
            if order is not None and all(_is_part(rows[row], one, left) for row, one in zip(order, ones)):
                break
        else:
            continue
        of_row = dict(zip(order, ones))
        for d in varied:
            axis = Axis(rows[0].shape[d], tuple(of_row[row].shape[d] for row in range(len(rows))), left, place=(number, d))
            found += [axis] if axis not in found else []  # both of a square
    extents = {axis.extent for axis in found} - fixed - {len(examples)}
    return tuple(replace(axis, fixed=frozenset(fixed)) for axis in found) if len(extents) == len(found) else ()  # two that are alike by chance: another batch shows which is which


def copies_of(examples: Iterable[Any]) -> list[Any]:
    """One of each, also of an example that is there twice: a collate_fn may take things out of its examples."""
    return [copy.deepcopy(each) for each in examples]


def _rows_of(whole: torch.Tensor, ones: list[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """Of the batch's tensor and of those of each example alone; nothing if it has no dimension of the examples."""
    if any(one.dim() != whole.dim() for one in ones):
        return (), []
    for d in range(min(whole.dim(), 2)):
        if whole.shape[d] == len(ones) and all(one.shape[d] == 1 for one in ones):
            return whole.unbind(d), [one.select(d, 0) for one in ones]
    return (), []


def _order(rows: tuple[torch.Tensor, ...], ones: list[torch.Tensor], left: bool) -> list[int] | None:
    """The row of each example, its own place if it fits there: a collate_fn may sort. None: some example has no row."""
    if all(_is_part(row, one, left) for row, one in zip(rows, ones)):
        return list(range(len(rows)))
    least = [min(one.shape[d] for one in ones) for d in range(rows[0].dim())]  # what every example has a part of
    free = collections.defaultdict(list)
    for place, row in enumerate(rows):
        free[_part(row, least, left).numpy().tobytes()].append(place)
    found = [-1] * len(ones)
    for place, one in sorted(enumerate(ones), key=lambda each: -each[1].numel()):  # a shorter one may be part of a longer one's row
        waiting = free[_part(one, least, left).numpy().tobytes()]
        row = next((each for each in waiting if _is_part(rows[each], one, left)), None)
        if row is None:
            return None
        waiting.remove(row)
        found[place] = row
    return found


def _part(value: torch.Tensor, extents: Sequence[int], left: bool) -> torch.Tensor:
    at = tuple(slice(whole - own, None) if left else slice(own) for own, whole in zip(extents, value.shape))
    return value[at].contiguous()


def _is_part(row: torch.Tensor, one: torch.Tensor, left: bool) -> bool:
    part = _part(row, one.shape, left)
    return part.dtype == one.dtype and (torch.allclose(part, one, rtol=1e-6, equal_nan=True) if one.is_floating_point() else torch.equal(part, one))


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, np.ndarray) and batch.dtype.kind not in "biufc":
        return []  # strings, objects
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        value = torch.as_tensor(batch)
        return [value.view(torch.int16) if value.dtype == torch.bfloat16 else value] if value.dim() and value.layout is torch.strided else []
    if isinstance(batch, Mapping):
        return [each for value in batch.values() for each in _tensors(value)]
    if isinstance(batch, (list, tuple)):
        return [each for value in batch for each in _tensors(value)]
    held = getattr(batch, "__dict__", None)
    return [] if held is None else _tensors(held)


__all__ = ["Axis", "Told", "axes_of", "copies_of"]
