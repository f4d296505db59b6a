"""Gradients that a loop asks autograd for within a private step."""

from __future__ import annotations

import torch

from ..tensor_trees import tensors_in
from .findings import under

IN_ITS_PLACE = (
    "For a penalty on gradients take a difference of two forwards in its place, which has a value of its own for each example: v = torch.randn_like(x), then "
    "((module(x + h * v) - outputs) / h).square().sum(1) with a small h (1e-2) is on average the squared norm of all derivatives by x. For a penalty on weights take the optimizer's "
    "weight_decay"
)


def refuse_penalties(args: tuple, kwargs: dict) -> None:
    """ValueError for torch.autograd.grad(*args, **kwargs) whose result would go into a private step's loss, or is of private parameters."""
    given = dict(zip(("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph"), args)) | kwargs
    outputs, inputs = tensors_in(given.get("outputs", ())), tensors_in(given.get("inputs", ()))
    if not any(each.forward for each in under(outputs)):
        return
    if given.get("create_graph"):
        raise ValueError(
            "a gradient with create_graph=True would go through the private model's layers a second time, and no example's part of that is formed: nothing "
            f"would be clipped. {IN_ITS_PLACE}"
        )
    if any(isinstance(each, torch.nn.Parameter) for each in inputs):
        raise ValueError(
            "autograd forms no gradient of a private model's parameters: each example's are formed, clipped and added up by loss.backward() alone, and .grad is what "
            f"optimizer.step() releases. {IN_ITS_PLACE}"
        )


__all__ = ["IN_ITS_PLACE", "refuse_penalties"]
