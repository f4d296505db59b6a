"""What a layer without a rule gives: which of its outputs' rows are whose.

A layer may flatten [units, n, ...] itself (a mixture's router gives [units·n, experts] of [units, n, d]). One unit alone then gives the n rows that it has
among all of them. That is seen at first use, in a unit's values, before an output is read so. So is what all units share, such as a table's rows, in a
batch of as many units as places.
"""

from __future__ import annotations

import torch

from ..tensor_trees import tensors_in
from .call import Call, Output
from .layer import same_output
from .one_by_one import Buffers, Coins


def outputs_of(call: Call, inputs: list[torch.Tensor], values: list[torch.Tensor], coins: Coins, buffers: Buffers, *, tossed: bool) -> list[Output]:
    """values: what the layer gave for all units at once, after these coins and buffers."""
    layer = call.layer
    maybe = [i for i, value in enumerate(values) if _may_fold(call, value)]
    by_chance = [i for i, value in enumerate(values) if i not in layer.of_each and _may_be_shared(call, value)]
    folding, whole = {i for i in maybe if layer.folds.get(i)}, set()
    if by_chance or any(i not in layer.folds for i in maybe):
        alone = _alone(call, inputs, values, coins, buffers, tossed=tossed)
        folding, whole = _folding(call, alone, maybe), _shared(call, alone, by_chance)
    return [Output(call, value, folds=i in folding, shared=i in whole) for i, value in enumerate(values)]


def _may_fold(call: Call, value: torch.Tensor) -> bool:
    units = call.units
    if units < 2 or not (call.batched and call.layer.engine.batch_first) or value.dim() == 0 or call.has_units(value):
        return False
    return value.shape[0] > units and value.shape[0] % units == 0


def _may_be_shared(call: Call, value: torch.Tensor) -> bool:
    """It has the units' extent, perhaps because there are as many places: a table's first rows, as many as its argument is long."""
    return call.units > 1 and bool(call.batched) and value.is_floating_point() and value.dim() > 0 and call.has_units(value) and not call.has_rows(value)


class _Alone:
    """What the layer gives for all units, and for the first and the last of them alone. certain: no coins were tossed."""

    def __init__(self, values: list[torch.Tensor], units: list[tuple[int, list[torch.Tensor]]], *, certain: bool):
        self.values, self.units, self.certain = values, units, certain


def _alone(call: Call, inputs: list[torch.Tensor], values: list[torch.Tensor], coins: Coins, buffers: Buffers, *, tossed: bool) -> _Alone | None:
    """None: it cannot be called so. Where coins were tossed, the layer is looked at as in an evaluation."""

    def given(args: tuple, kwargs: dict) -> list[torch.Tensor]:
        buffers.again()
        bare = call.kept.skeleton()
        if tossed:
            bare.eval()
        return tensors_in(bare.forward(*args, **kwargs))

    try:
        with torch.no_grad(), coins.repeated(), buffers.repeated():
            values = given(*call.of(inputs)) if tossed else values
            units = [(u, given(*call.of_one([value[u] for value in inputs]))) for u in (0, call.units - 1)]
            return _Alone(values, units, certain=not coins.tossed())
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return None


def _alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    return same_output(one, two) if one.is_floating_point() else torch.equal(one, two)


def _folding(call: Call, alone: _Alone | None, maybe: list[int]) -> set[int]:
    """Those of which the first and the last unit alone give the rows that are theirs. The layer remembers it, unless rows in another order would look
    the same."""
    found = set()
    for i in maybe if alone is not None else ():
        rows = alone.values[i].unflatten(0, (call.units, -1))
        folds = alone.certain and all(
            len(each) == len(alone.values) and each[i].shape == rows[u].shape and _alike(each[i], rows[u]) for u, each in alone.units
        )
        turned = alone.values[i].unflatten(0, (-1, call.units)).transpose(0, 1)
        if folds:
            found.add(i)
        if not (folds and _alike(turned, rows)):
            call.layer.folds[i] = folds
    return found


def _shared(call: Call, alone: _Alone | None, by_chance: list[int]) -> set[int]:
    """Those of which a unit alone gives all that the units have together, not one row. The layer remembers the others."""
    found = set()
    for i in by_chance if alone is not None else ():
        whole = alone.values[i]
        if alone.certain and all(len(each) == len(alone.values) and each[i].shape == whole.shape and _alike(each[i], whole) for _, each in alone.units):
            found.add(i)
        elif all(len(each) > i and each[i].shape != whole.shape for _, each in alone.units):
            call.layer.of_each.add(i)
    return found


__all__ = ["outputs_of"]
