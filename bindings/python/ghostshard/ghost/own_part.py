"""This rank's part of a tensor, as it is: no copy, no node of autograd, and of a DTensor always the same object."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def own_part(value: torch.Tensor) -> torch.Tensor:
    """Asked of every parameter several times a step. Where gradients are recorded, `to_local()` would make a function of autograd of it, which costs
    as much as a small layer; loops over many tensors switch gradients off themselves."""
    if not isinstance(value, DTensor):
        return value.detach() if value.requires_grad else value
    if not torch.is_grad_enabled():
        return value.to_local()
    with torch.no_grad():
        return value.to_local()


def comparable(value: torch.Tensor) -> torch.Tensor:
    """The same values in a type that operations know: few do 8-bit floating-point numbers."""
    return value.float() if value.element_size() == 1 and value.is_floating_point() else value


__all__ = ["comparable", "own_part"]
