"""Layers without a rule of their own: the gradients of that layer alone, one for each unit, by torch.func in backward,
while its weights are gathered."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..autocast import as_in, state_of
from ..layout import original_class
from .layer import Layer, local


def instantiable(module: nn.Module) -> bool:
    """Whether torch.func can take this module and its children as one layer: they are gathered together, and one example's
    output does not follow from another's input."""
    unfit = (nn.RNNBase, nn.modules.batchnorm._BatchNorm)
    inside = list(module.modules())
    return not any(isinstance(each, unfit) or (each is not module and isinstance(each, FSDPModule)) for each in inside)


def skeleton(module: nn.Module) -> nn.Module:
    """The layer without hooks and patches, its parameters this rank's plain tensors: a forward for torch.func."""
    bare = object.__new__(original_class(module))
    bare.__dict__ = {key: value for key, value in module.__dict__.items() if key != "forward"}
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        bare.__dict__[hooks] = OrderedDict()
    bare._parameters = {name: local(value) for name, value in module._parameters.items()}
    bare._modules = {name: skeleton(child) for name, child in module._modules.items() if child is not None}
    return bare


def per_example(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    """The rule of any layer, with its children, whose output for a unit follows from that unit's input alone, without coins.

    ValueError for arguments that are not tensors of the batch's units, for dropout inside, and for packed batches.
    """
    if kwargs or not all(isinstance(value, torch.Tensor) for value in args):
        bad = sorted(kwargs) or [type(value).__name__ for value in args if not isinstance(value, torch.Tensor)]
        raise ValueError(
            f"{layer.name} ({original_class(layer.module).__name__}): per-example gradients by torch.func need tensors "
            f"as positional arguments, got {bad}; register a rule for it (ghostshard.register_rule)"
        )
    if any(isinstance(each, nn.modules.dropout._DropoutNd) and each.p > 0 and each.training for each in layer.module.modules()):
        raise ValueError(
            f"{layer.name} ({original_class(layer.module).__name__}) has parameters without a rule and dropout inside: its "
            "forward cannot be repeated example by example; set dropout to 0 or register a rule (ghostshard.register_rule)"
        )
    args = tuple(layer.units_first(value) for value in args)
    layer.refuse_packed("it has no rule, only torch.func's per-example gradients; register one (ghostshard.register_rule)")
    for value in args:
        if value.shape[0] != layer.session.units:
            raise ValueError(
                f"{layer.name}: the first extent of every input must be that of the {layer.session.units} units of "
                f"this batch, got {tuple(value.shape)}"
            )
    anchor = torch.zeros((), requires_grad=True)
    return layer.as_given(_PerExample.apply(anchor, layer, *args))


class _PerExample(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _anchor, layer: Layer, *inputs):
        ctx.layer = layer
        ctx.tape = layer.session.tape
        ctx.save_for_backward(*inputs)
        ctx.autocast = state_of(inputs[0])
        for number in layer.numbers.values():
            layer.session.count_use(number)
        bare = skeleton(layer.module)
        with torch.no_grad():
            return layer.units_first(bare.forward(*(layer.as_given(value) for value in inputs)))

    @staticmethod
    def backward(ctx, gradient):
        layer: Layer = ctx.layer
        inputs = ctx.saved_tensors
        bare = skeleton(layer.module)
        wanted = layer.wanted(ctx.tape)
        parameters = {
            name: local(value).detach() for name, value in layer.module.named_parameters() if name in wanted
        }
        differentiable = [i for i, value in enumerate(inputs) if value.is_floating_point()]

        def one(chosen, floats, whole, g):
            def forward(chosen, floats):
                now = dict(enumerate(whole)) | dict(zip(differentiable, floats))
                batch = tuple(value.unsqueeze(layer.units_at(value.dim() + 1)) for value in now.values())
                y = torch.func.functional_call(bare, chosen, batch)
                return y.squeeze(layer.units_at(y.dim()))

            _, pullback = torch.func.vjp(forward, chosen, floats)
            return pullback(g)

        floats = [inputs[i] for i in differentiable]
        if inputs[0].shape[0] == 0 or not (floats or parameters):
            return (None, None, *(torch.zeros_like(v) if v.is_floating_point() else None for v in inputs))
        with as_in(ctx.autocast):
            of_parameters, of_inputs = torch.func.vmap(one, in_dims=(None, 0, 0, 0), randomness="error")(
                parameters, floats, list(inputs), gradient
            )
        for name, value in of_parameters.items():
            shape = value.shape if value.dim() > 1 else (*value.shape, 1)
            layer.session.instantiated(ctx.tape, layer.numbers[name], value.reshape(shape))
        result: list = [None, None, *([None] * len(inputs))]
        for i, value in zip(differentiable, of_inputs):
            if ctx.needs_input_grad[2 + i]:
                result[2 + i] = value
        return tuple(result)


__all__ = ["instantiable", "per_example"]
