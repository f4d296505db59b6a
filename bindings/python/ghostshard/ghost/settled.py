"""A shared tensor that can be read in two ways, and a layer that must have one of them."""

from __future__ import annotations

from typing import Any

import torch

from .meetings import doubt
from .rules.layer import SURE_AFTER, Layer, Rule
from .shared import Shared, copied, shared
from .tensor_trees import refilled, tensors_in

_SMALL = 1 << 22  # elements that a whole reading may have, where the own one would have to be looked at


def settled(layer: Layer, number: int, value: Any, *, whole: bool) -> Any:
    """The layer's argument of this number: the units' own rows, or still a tensor that each unit has the whole of. whole: the layer takes the latter.

    It is the whole one if the extent was another number than that of the units in any batch before. Own rows are certain if their number has followed that
    of the units; before that the gradients of the batch are looked at.
    """
    if not isinstance(value, Shared):
        return value
    seen = layer.extents.setdefault((number, value.dim()), set())
    if not value.rows and value.dim() > 0 and value.shape[0] > 1:
        seen.add(0)
    if not value.rows or 0 in seen:
        return value
    seen.add(value.units)
    if len(seen) < SURE_AFTER:
        if whole and value.units * value.numel() <= _SMALL:
            return value
        doubt()
    return value.own(value.rows)


def of_all(layer: Layer, value: torch.Tensor) -> torch.Tensor:
    """Coordinates and distances that a model makes itself, of no extent that may be the units', as a tensor that all units share: each unit's gradient goes
    by its own loss alone. Once a layer had some, it has them also where there are as many as units."""
    engine = layer.engine
    if isinstance(value, Shared) or value.requires_grad or value.dim() == 0 or not value.is_floating_point():
        return value
    if layer.packed or not (engine.batch_first and engine.in_forward) or torch.compiler.is_compiling():
        return value
    units, before = layer.rows(), 0 in layer.extents.get((0, value.dim()), ())
    if units < 2 or units * value.numel() > _SMALL or layer.is_own(value) or layer.parts(value) > 1:
        return value
    apart = units not in value.shape and value.shape[0] % units > 0
    return shared(value.expand(units, *value.shape)) if apart or before else value


def settled_arguments(layer: Layer, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Each of them settled."""
    values = tensors_in((args, kwargs))
    if not any(isinstance(value, Shared) for value in values):
        return args, kwargs
    return refilled((args, kwargs), [settled(layer, number, value, whole=False) for number, value in enumerate(values)])


def is_copied(layer: Layer, value: Any) -> bool:
    """Whether a layer that acts on last extents acts on blocks that are copies of each other."""
    return isinstance(value, Shared) and value.copies and value.dim() > len(getattr(layer.module, "normalized_shape", (0,)))


def of_copies(layer: Layer, rule: Rule, value: Shared, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What is done to each of the copies is done to one."""
    found = rule(layer, layer.folded(value.own(value.rows), value.rows), *args, **kwargs)
    return copied(found if value.rows == 1 else found.flatten(0, 1), value.units, value.rows)


def as_output(value: torch.Tensor) -> torch.Tensor:
    """A row of the model's output is an example's."""
    of_units = isinstance(value, Shared) and (value.rows or value.shape[:1] == (value.units,))
    return value.own(value.rows or 1) if of_units else value


__all__ = ["as_output", "is_copied", "of_all", "of_copies", "settled", "settled_arguments"]
