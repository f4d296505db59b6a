"""Tensors in a model's arguments and outputs: nested tuples, lists, dicts and dataclasses of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

# Names under which models take a batch's content, the usual ones first.
_BATCH_NAMES = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")


def first_tensor(args: tuple, kwargs: dict) -> torch.Tensor | None:
    for value in (*(kwargs[name] for name in _BATCH_NAMES if name in kwargs), *args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return value
        if isinstance(value, (list, tuple)):
            found = first_tensor(tuple(value), {})
            if found is not None:
                return found
        if isinstance(value, dict):
            found = first_tensor((), value)
            if found is not None:
                return found
    return None


def mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The value, with function(tensor) in the place of every tensor in it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):  # Hugging Face outputs are dicts, too
        changed = copy.copy(value)
        for name, each in value.items():
            changed[name] = mapped(function, each)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(function, each) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(function, each) for each in value)
    return _with_fields(value, {name: mapped(function, each) for name, each in _fields_of(value)})


def _fields_of(value: Any) -> list[tuple[str, Any]]:
    """Of an object of a dataclass, as layers give beside their outputs; none of any other."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else ()
    return [(each.name, getattr(value, each.name)) for each in fields if hasattr(value, each.name)]


def _with_fields(value: Any, fields: dict[str, Any]) -> Any:
    """The object itself if it has these."""
    if all(each is getattr(value, name) for name, each in fields.items()):
        return value
    changed = copy.copy(value)
    for name, each in fields.items():
        object.__setattr__(changed, name, each)  # it may be frozen
    return changed


def filled(value: Any, whole: int = 1) -> Any:
    """Extents of 0 become 1, filled with zeros. Masks are filled with True and whole numbers with 1, because attention without anything to look at gives
    no number, and a text of padding alone has no length."""

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() > 0:
            return tensor
        zeros = tensor.is_floating_point() or tensor.is_complex()
        return tensor.new_full([extent or 1 for extent in tensor.shape], 0 if zeros else True if tensor.dtype == torch.bool else whole)

    return mapped(fill, value)


def without_rows(value: Any, dim: int) -> Any:
    """The value, with extent 0 at dim in every tensor that has extent 1 there, or at the first dimension if it has 1 there alone."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        at = next((d for d in (dim, 0) if tensor.dim() > d and tensor.shape[d] == 1), None)
        return tensor if at is None else tensor.narrow(at, 0, 0)

    return mapped(empty, value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in it, in the order in which refilled() takes them."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    mapped(keep, value)
    return found


def refilled(value: Any, tensors: Iterable[torch.Tensor]) -> Any:
    """The value, with these in the place of its tensors."""
    following = iter(tensors)
    return mapped(lambda _: next(following), value)


def constants_in(value: Any) -> list[Any]:
    """Everything in it that is no tensor."""
    if isinstance(value, torch.Tensor):
        return []
    if isinstance(value, (dict, list, tuple)):
        return [each for one in (value.values() if isinstance(value, dict) else value) for each in constants_in(one)]
    fields = _fields_of(value)
    return [each for _, one in fields for each in constants_in(one)] if fields else [value]
