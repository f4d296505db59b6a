"""Layers without a rule of their own: the gradients of that layer alone, one for each unit, by torch.func in backward,
while its weights are gathered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ..autocast import as_in, state_of
from ..layout import original_class, own_parameters
from ..tensor_trees import constants_in, refilled, tensors_in
from .layer import Layer, local, same_output


_COMPUTING = (BasePruningMethod, SpectralNorm, WeightNorm)


def instantiable(module: nn.Module) -> bool:
    """Whether torch.func can take this module and its children as one layer: they are gathered together, and one example's
    output does not follow from another's input."""
    unfit = (nn.RNNBase, nn.modules.batchnorm._BatchNorm)
    inside = list(module.modules())
    return not any(isinstance(each, unfit) or (each is not module and isinstance(each, FSDPModule)) for each in inside)


def refuse_computed_weights(model: nn.Module) -> None:
    """ValueError for weights that a hook computes before the layer's forward, where no rule sees it."""
    for name, module in model.named_modules():
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values() if isinstance(hook, _COMPUTING)]
        if hooks and any(parameter.requires_grad for _, parameter in own_parameters(module)):
            raise ValueError(
                f"{name} ({original_class(module).__name__}): a hook ({hooks[0]}) computes its weight from other parameters, so their "
                "gradients would pass every rule. Use torch.nn.utils.parametrizations, or make it permanent (remove_spectral_norm, "
                "remove_weight_norm, prune.remove)"
            )


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def skeleton(module: nn.Module, known: dict[int, nn.Module] | None = None) -> nn.Module:
    """The layer without hooks and patches, its parameters this rank's plain tensors: a forward for torch.func. Children that
    stand in lists and dicts besides are the same there. known: by id of the module."""
    known = {} if known is None else known
    if id(module) in known:
        return known[id(module)]
    bare = known[id(module)] = object.__new__(original_class(module))
    state = bare.__dict__
    state.update((key, value) for key, value in module.__dict__.items() if key != "forward")
    state.update((hooks, OrderedDict()) for hooks in _HOOKS)
    state["_parameters"] = {name: local(value) for name, value in module._parameters.items()}
    state["_modules"] = {name: skeleton(child, known) for name, child in module._modules.items() if child is not None}
    for key, value in module.__dict__.items():
        if key not in ("_parameters", "_modules", "_buffers", *_HOOKS) and isinstance(value, (list, tuple, dict)):
            state[key] = _of_skeleton(module, value, known)
    return bare


def _of_skeleton(module: nn.Module, value: Any, known: dict[int, nn.Module]) -> Any:
    if isinstance(value, nn.Module):
        return skeleton(value, known)
    if isinstance(value, nn.Parameter):
        raise ValueError(
            f"{original_class(module).__name__} keeps parameters in a list or dict, where torch.func cannot put one example's: register a "
            "rule for it (ghostshard.register_rule)"
        )
    if type(value) in (list, tuple):
        return type(value)(_of_skeleton(module, each, known) for each in value)
    if type(value) is dict:
        return {key: _of_skeleton(module, each, known) for key, each in value.items()}
    return value


@contextmanager
def _no_way_back(layer: Layer) -> Iterator[None]:
    """RuntimeError if the skeleton calls the layer's own children, whose parameters torch.func does not see: all their gradients would
    be zero."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}) calls its children by another way than its attributes, lists or "
            "dicts, so torch.func cannot follow it: register a rule for it (ghostshard.register_rule)"
        )

    children = [each for each in layer.module.modules() if each is not layer.module and "forward" not in vars(each)]
    for child in children:
        child.__dict__["forward"] = refuse
    try:
        yield
    finally:
        for child in children:
            del child.__dict__["forward"]


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
        buffers = [(buffer, buffer.clone()) for buffer in layer.module.buffers()] if not layer.compared else []
        with torch.no_grad(), _no_way_back(layer):
            tree.append(skeleton(layer.module).forward(*args, **kwargs))
        outputs = tensors_in(tree[0])
        if not layer.compared:
            _compare_with_own(layer, outputs, args, kwargs, buffers)
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


def _compare_with_own(layer: Layer, found: list[torch.Tensor], args: tuple, kwargs: dict, buffers: list) -> None:
    """At first use. RuntimeError if the skeleton, which has no hooks, gives something else than the layer. Buffers move once: before
    the layer's own forward they are set back."""
    for buffer, before in buffers:
        if not torch.equal(buffer, before):
            buffer.copy_(before)
    with torch.no_grad():
        own = tensors_in(layer.original(*args, **kwargs))
    floats = [(one, two) for one, two in zip(found, own) if two.is_floating_point()]
    if len(found) != len(own) or not all(same_output(one, two) for one, two in floats):
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}) gives another output than its own forward when it is computed "
            "without the hooks of its children: register a rule for it (ghostshard.register_rule)"
        )


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
