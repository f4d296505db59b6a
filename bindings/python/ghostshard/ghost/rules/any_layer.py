"""Layers without a rule of their own: the gradients of that layer alone, one for each unit, by torch.func in backward,
while its weights are gathered."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..autocast import as_in, state_of
from ..layout import original_class
from ..tensor_trees import constants_in, refilled, tensors_in
from .layer import Layer, local, same_output


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


# A layer may also get these, which no example is in.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, Enum, torch.dtype, torch.device, torch.layout)


class Call:
    """One call of a layer: tensors of the batch's units apart from what all units share (tables, masks [1,...], numbers).

    ValueError for arguments that are neither, and for a shared tensor with a gradient, which would be nobody's.
    """

    def __init__(self, layer: Layer, args: tuple, kwargs: dict):
        self.layer = layer
        self._given = (args, kwargs)
        self._tensors = tensors_in(self._given)
        kind = f"{layer.name} ({original_class(layer.module).__name__})"
        strange = [type(value).__name__ for value in constants_in(self._given) if not isinstance(value, _PLAIN)]
        if strange or not self._tensors:
            raise ValueError(
                f"{kind}: per-example gradients by torch.func need tensors and plain values as arguments, got "
                f"{strange or 'no tensor'}; register a rule for it (ghostshard.register_rule)"
            )
        layer.units_first(self._tensors[0])
        self.batched = [i for i, value in enumerate(self._tensors) if self.has_units(value)]
        for i, value in enumerate(self._tensors):
            if i not in self.batched and (value.requires_grad or not self.batched):
                raise ValueError(
                    f"{kind}: the first extent of every input must be that of the {layer.session.units} units of this batch, got "
                    f"{tuple(value.shape)}; only a tensor without a gradient may be shared by all units"
                )

    def has_units(self, value: torch.Tensor) -> bool:
        return value.dim() > 0 and value.shape[self.layer.units_at(value.dim())] == self.layer.session.units

    def inputs(self) -> list[torch.Tensor]:
        """Those of the units, [units, ...]."""
        return [self.layer.units_first(self._tensors[i]) for i in self.batched]

    def of(self, batched: list[torch.Tensor]) -> tuple[tuple, dict]:
        """The arguments with these in the place of inputs()."""
        values = [value.detach() for value in self._tensors]
        for i, value in zip(self.batched, batched, strict=True):
            values[i] = value
        return refilled(self._given, values)


def per_example(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    """The rule of any layer, with its children, whose output for a unit follows from that unit's input alone, without coins.
    Arguments and outputs are trees of tensors and plain values.

    ValueError for arguments that are neither of the batch's units nor shared, for dropout inside, and for packed batches.
    """
    if any(isinstance(each, nn.modules.dropout._DropoutNd) and each.p > 0 and each.training for each in layer.module.modules()):
        raise ValueError(
            f"{layer.name} ({original_class(layer.module).__name__}) has parameters without a rule and dropout inside: its "
            "forward cannot be repeated example by example; set dropout to 0 or register a rule (ghostshard.register_rule)"
        )
    layer.refuse_packed("it has no rule, only torch.func's per-example gradients; register one (ghostshard.register_rule)")
    call = Call(layer, args, kwargs)
    anchor = torch.zeros((), requires_grad=True)
    tree: list = []  # the output, as the layer gives it
    return _with_gradients(tree, _PerExample.apply(anchor, call, tree, *call.inputs()))


def _with_gradients(tree: list, values: Any) -> Any:
    return refilled(tree[0], values if isinstance(values, tuple) else (values,))


class _PerExample(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _anchor, call: Call, tree: list, *inputs):
        layer = call.layer
        ctx.call, ctx.tape, ctx.autocast = call, layer.session.tape, state_of(inputs[0])
        for number in layer.numbers.values():
            layer.session.count_use(number)
        args, kwargs = call.of([layer.as_given(value) for value in inputs])
        with torch.no_grad():
            tree.append(skeleton(layer.module).forward(*args, **kwargs))
        outputs = tensors_in(tree[0])
        ctx.of_units = [value.is_floating_point() and call.has_units(value) for value in outputs]
        ctx.save_for_backward(*inputs, *([] if layer.compared else outputs))
        given = tuple(value.view_as(value) for value in outputs)
        ctx.mark_non_differentiable(*(value for value in given if not value.is_floating_point()))
        ctx.set_materialize_grads(False)
        return given

    @staticmethod
    def backward(ctx, *gradients):
        call: Call = ctx.call
        layer = call.layer
        inputs, outputs = ctx.saved_tensors[: len(call.batched)], ctx.saved_tensors[len(call.batched) :]
        wanted = [i for i, gradient in enumerate(gradients) if gradient is not None]
        for i in wanted:
            if not ctx.of_units[i]:
                raise RuntimeError(
                    f"{layer.name} ({original_class(layer.module).__name__}) has an output of shape {tuple(gradients[i].shape)} in "
                    "the loss whose first extent is not that of the units: its gradient would be nobody's"
                )
        nothing = (None, None, None, *([None] * len(inputs)))
        differentiable = [i for i, value in enumerate(inputs) if value.is_floating_point()]
        parameters = {
            name: local(value).detach()
            for name, value in layer.module.named_parameters()
            if name in layer.wanted(ctx.tape)
        }
        if not wanted or inputs[0].shape[0] == 0 or not (differentiable or parameters):
            return nothing
        chosen = [layer.as_given(gradients[i]) for i in wanted]  # units first: it is its own reverse
        with as_in(ctx.autocast):
            of_parameters, of_inputs, primal = _vmapped(call, parameters, list(inputs), differentiable, wanted, chosen)
        if outputs and not layer.compared:
            _compare(layer, primal, [layer.as_given(outputs[i]) for i in wanted])
        for name, value in of_parameters.items():
            shape = value.shape if value.dim() > 1 else (*value.shape, 1)
            layer.session.instantiated(ctx.tape, layer.numbers[name], value.reshape(shape))
        result: list = list(nothing)
        for i, value in zip(differentiable, of_inputs):
            if ctx.needs_input_grad[3 + i]:
                result[3 + i] = value
        return tuple(result)


def _vmapped(call: Call, parameters: dict, inputs: list, differentiable: list[int], wanted: list[int], gradients: list) -> tuple:
    """([units, ...] gradients of the parameters by name, of the differentiable inputs, and the wanted outputs themselves)."""
    layer, bare = call.layer, skeleton(call.layer.module)

    def one(parameters, floats, whole, of_outputs):
        def forward(parameters, floats):
            now = dict(enumerate(whole)) | dict(zip(differentiable, floats))
            args, kwargs = call.of([value.unsqueeze(layer.units_at(value.dim() + 1)) for value in now.values()])
            found = tensors_in(torch.func.functional_call(bare, parameters, args, kwargs))
            return [found[i].squeeze(layer.units_at(found[i].dim())) for i in wanted]

        primal, pullback = torch.func.vjp(forward, parameters, floats)
        of_parameters, of_floats = pullback(of_outputs)
        return of_parameters, of_floats, primal

    floats = [inputs[i] for i in differentiable]
    return torch.func.vmap(one, in_dims=(None, 0, 0, 0), randomness="error")(parameters, floats, inputs, gradients)


def _compare(layer: Layer, found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """At first use. RuntimeError if the layer gives one example alone another output than in its batch."""
    if not all(same_output(one, batch) for one, batch in zip(found, expected, strict=True)):
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}) gives an example alone another output than in its batch: it "
            "mixes examples, keeps a state, or takes a tensor that all share for one of the units. Register a rule for it "
            "(ghostshard.register_rule)"
        )
    layer.compared = True


__all__ = ["instantiable", "per_example"]
