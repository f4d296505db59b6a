"""What a layer without a rule gives: which of its outputs' rows are whose.

A layer may flatten [units, n, ...] itself (a mixture's router gives [units·n, experts] of [units, n, d]). One unit alone then gives the n rows that it has
among all of them. That is seen at first use, in a unit's values, before an output is read so.
"""

from __future__ import annotations

import torch

from ..tensor_trees import tensors_in
from .call import Call, Output
from .layer import same_output
from .one_by_one import Buffers, Coins


def outputs_of(call: Call, inputs: list[torch.Tensor], values: list[torch.Tensor], coins: Coins, buffers: Buffers, *, tossed: bool) -> list[Output]:
    """values: what the layer gave for all units at once, after these coins and buffers."""
    maybe = [i for i, value in enumerate(values) if _may_fold(call, value)]
    known = call.layer.folds
    folding = {i for i in maybe if known[i]} if all(i in known for i in maybe) else _folding(call, inputs, values, maybe, coins, buffers, tossed=tossed)
    return [Output(call, value, folds=i in folding) for i, value in enumerate(values)]


def _may_fold(call: Call, value: torch.Tensor) -> bool:
    units = call.units
    if units < 2 or not (call.batched and call.layer.engine.batch_first) or value.dim() == 0 or call.has_units(value):
        return False
    return value.shape[0] > units and value.shape[0] % units == 0


def _folding(
    call: Call, inputs: list[torch.Tensor], values: list[torch.Tensor], maybe: list[int], coins: Coins, buffers: Buffers, *, tossed: bool
) -> set[int]:
    """Those of which the first and the last unit alone give the rows that are theirs. The layer remembers it, unless rows in another order would look
    the same. Where coins were tossed, the layer is looked at as in an evaluation."""

    def given(args: tuple, kwargs: dict) -> list[torch.Tensor]:
        buffers.again()
        bare = call.kept.skeleton()
        if tossed:
            bare.eval()
        return tensors_in(bare.forward(*args, **kwargs))

    try:
        with torch.no_grad(), coins.repeated(), buffers.repeated():
            values = given(*call.of(inputs)) if tossed else values
            alone = [(u, given(*call.of_one([value[u] for value in inputs]))) for u in (0, call.units - 1)]
            certain = not coins.tossed()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return set()
    alike = lambda one, two: same_output(one, two) if one.is_floating_point() else torch.equal(one, two)
    found = set()
    for i in maybe:
        rows = values[i].unflatten(0, (call.units, -1))
        folds = certain and all(len(each) == len(values) and each[i].shape == rows[u].shape and alike(each[i], rows[u]) for u, each in alone)
        turned = values[i].unflatten(0, (-1, call.units)).transpose(0, 1)
        if folds:
            found.add(i)
        if not (folds and alike(turned, rows)):
            call.layer.folds[i] = folds
    return found


__all__ = ["outputs_of"]
