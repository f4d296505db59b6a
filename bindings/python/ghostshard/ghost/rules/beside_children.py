"""Parameters that a module uses in its own forward, beside children that FSDP2 gathers apart (the class token and the places of a
vision transformer whose blocks are sharded): torch.func cannot take such a module as one layer. Each parameter is a table that all
units share (shared.py), with a value for each unit behind it."""

from __future__ import annotations

from typing import Any

import torch

from ..layout import original_class
from ..recording import anchor
from ..shared import plain, shared
from ..tensor_trees import mapped, tensors_in
from ..traces import left_out
from .layer import Layer, local, same_output
from .one_by_one import Buffers, Coins


def beside_children(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    """The module's own forward; its children have rules of their own.

    ValueError for packed batches, and where the units are not in the first dimension.
    """
    layer.refuse_packed("a parameter of its own is shared by all texts of a row")
    if not layer.engine.batch_first:
        raise ValueError(
            f"{layer.name or 'the model'} ({original_class(layer.module).__name__}) uses a parameter of its own beside blocks that are sharded apart, which takes "
            "batches with the examples first: give the model batch_first=True, or make the parameter a layer (an nn.Module that is called)"
        )
    first = next(iter(tensors_in((args, kwargs))), None)
    units, device = layer.rows(first), torch.device("cpu") if first is None else first.device
    coins = Coins(device)
    own, places = layer.module._parameters, vars(layer.module)
    for name, number in layer.numbers.items():
        if own[name].requires_grad:
            layer.session.count_use(number)
            with left_out():
                places[name] = shared(_OfEachUnit.apply(anchor(), layer, name, units))  # found before the parameter of this name
    try:
        output = layer.original(*args, **kwargs)
    finally:
        for name in layer.numbers:
            places.pop(name, None)
    if not layer.compared:
        with left_out():
            _compare(layer, output, args, kwargs, device, tossed=coins.tossed())
    return output


def _compare(layer: Layer, output: Any, args: tuple, kwargs: dict, device: torch.device, *, tossed: bool) -> None:
    """At first use. RuntimeError if the parameters themselves give another output. All ranks make the forward, which communicates; where coins were
    tossed, outputs tell their shapes alone."""
    buffers, now = Buffers(layer.module), Coins(device)
    with torch.no_grad():
        own = tensors_in(layer.original(*mapped(plain, args), **mapped(plain, kwargs)))
    buffers.again()
    now.again()
    layer.compared = True
    found = tensors_in(output)
    alike = len(found) == len(own) and all(one.shape == two.shape for one, two in zip(found, own))
    if not alike or not (tossed or all(same_output(one, two) for one, two in zip(found, own) if two.is_floating_point())):
        raise RuntimeError(
            f"{layer.name or 'the model'} ({original_class(layer.module).__name__}) gives another output if each example has a value of its own of the parameters that it "
            "uses beside blocks that are sharded apart: make them layers (an nn.Module that is called), or shard this one as a whole"
        )


class _OfEachUnit(torch.autograd.Function):
    """The parameter, [units, ...]."""

    @staticmethod
    def forward(ctx, _anchor, layer: Layer, name: str, units: int) -> torch.Tensor:
        ctx.layer, ctx.name, ctx.tape, ctx.owners = layer, name, layer.session.tape, layer.owners()
        value = local(layer.module._parameters[name]).detach()
        return value.expand(units, *value.shape).clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple:
        layer = ctx.layer
        if ctx.name in layer.wanted(ctx.tape) and len(gradient):
            layer.instantiated(ctx.tape, ctx.name, gradient if gradient.dim() > 1 else gradient[:, None], ctx.owners)
        return None, None, None, None


__all__ = ["beside_children"]
