"""Batches as loops have them: trees of mappings and sequences, and objects that hold tensors."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..tensor_trees import tensors_in


def opened(
    function: Callable[[torch.Tensor], torch.Tensor], value: Any, of: type = torch.Tensor, whole: Callable[[Any], Any] | None = None,
    closed: tuple[type, ...] = (),
) -> Any:
    """The tree, with function(tensor) in the place of every tensor of type `of`. What holds none stays the object that it is.
    whole(other): what stands in the place of anything else, or itself; it is asked before it is opened. closed: classes of objects that are not."""
    if isinstance(value, torch.Tensor):
        return function(value) if isinstance(value, of) else value
    if whole is not None and (found := whole(value)) is not value:
        return found
    if isinstance(value, Mapping):
        made = {name: opened(function, value[name], of, whole, closed) for name in value}
        changed = {name: each for name, each in made.items() if each is not value[name]}
        if not changed:
            return value
        found = copy.copy(value)
        for name, each in changed.items():
            found[name] = each  # type: ignore[index]
        return found
    if isinstance(value, (list, tuple, deque)):
        items = [opened(function, each, of, whole, closed) for each in value]
        if all(one is two for one, two in zip(items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    held = {} if isinstance(value, closed) else _held(value, of)
    if not held:
        return value
    if whole is not None:
        held.update((name, each) for name, each in vars(value).items() if isinstance(each, (int, float, np.generic)))
    found = copy.copy(value)
    for name, each in held.items():
        object.__setattr__(found, name, opened(function, each, of, whole, closed))
    return found


def _held(value: Any, of: type) -> dict[str, Any]:
    """Attributes with such tensors, of an object that is a batch and no module, function, or class."""
    if callable(value):
        return {}
    attributes = getattr(value, "__dict__", {})
    return {name: each for name, each in attributes.items() if any(isinstance(tensor, of) for tensor in tensors_in(each))}


def contents(value: Any) -> list[torch.Tensor]:
    """Every tensor in it."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    opened(keep, value)
    return found


def numbers_of(value: Any) -> np.ndarray | None:
    """A copy of an array or a list of numbers, which a loop may write to; None for anything else, and for none."""
    first = value
    while isinstance(first, (list, tuple, deque)) and first:
        first = first[0]
    bare = isinstance(value, np.ndarray) and value.ndim == 0
    if bare or not isinstance(first, (np.ndarray, np.generic, int, float)) or len(value) == 0:
        return None
    try:
        return np.array(value)
    except ValueError:  # rows of different lengths
        return None


def same_values(value: Any, version: int, tensor: torch.Tensor) -> bool:
    """Whether the tensor is what was handed out, up to its dtype and its device."""
    try:
        handed_out = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):  # texts
        return False
    if handed_out.shape != tensor.shape or handed_out.is_floating_point() < tensor.is_floating_point():
        return False
    if handed_out._version != version and isinstance(value, torch.Tensor):
        return False
    return torch.equal(handed_out.to(tensor.device, tensor.dtype), tensor)


__all__ = ["contents", "numbers_of", "opened", "same_values"]
