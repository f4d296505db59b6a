"""Caches of keys, values and states that Transformers' models make in a forward, to go on from in the next one.

A layer that is computed unit by unit cannot fill one, and computes the same without one as with one that has nothing of it yet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def without_caches(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """A layer's arguments, with None in the place of caches that have nothing for it."""
    place = next((inside.layer_idx for inside in module.modules() if hasattr(inside, "layer_idx")), None)
    empty = lambda value: _is_cache(value) and not _holds(value, place)
    return tuple(None if empty(each) else each for each in args), {name: None if empty(each) else each for name, each in kwargs.items()}


def _is_cache(value: Any) -> bool:
    return any(kind.__module__ == "transformers.cache_utils" for kind in type(value).__mro__)


def _holds(cache: Any, place: int | None) -> bool:
    """Whether it has tensors at a layer's place; None: anywhere."""
    parts = [part for part in vars(cache).values() if _is_cache(part)]  # of an encoder and of a decoder
    layers = list(getattr(cache, "layers", ()))
    if place is not None:
        layers = layers[place : place + 1]
    return any(_holds(part, place) for part in parts) or any(_is_state(each) for layer in layers for each in vars(layer).values())


def _is_state(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 1  # else a number that the cache's own code needs


__all__ = ["without_caches"]
