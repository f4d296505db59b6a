"""Layers without a rule of their own: the gradients of that layer alone, one for each unit, by torch.func in backward,
while its weights are gathered."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import nn

from ..._native import load
from ..autocast import as_in, state_of
from ..layout import original_class
from ..provenance.opened import contents
from ..recording import ANCHOR, anchor
from ..shared import shared
from ..tensor_trees import constants_in, mapped, refilled, tensors_in
from .call import PLAIN, Call, Output
from .folds import outputs_of
from .layer import Layer, local, refuse_parts, same_output, time_first
from .one_by_one import Buffers, Coins, of_each_unit, outputs_of_each_unit
from .skeleton import no_way_back, skeleton

_OF_TORCH = frozenset(vars(nn.Module()))
_BY_ANOTHER_WAY = (
    "{} ({}) reads a parameter of its own by another way than an attribute of itself (a lambda or an object that holds the layer or the parameter, what torch.compile or torch.vmap made of a "
    "method), on which no example's own weight comes, so its examples' gradients would not hold that. Let its forward read self.weight, or call the method itself"
)
_LEFT_BESIDE = (
    "{} ({}) leaves a loss in its attribute {!r}: it is computed example by example, so what it leaves beside its output has no gradient. Let its forward return that too, one number for "
    "each example; or detach it, if nothing trains on it"
)
_WRITES = (
    "{} ({}) writes to an argument (x += …): it is computed again in backward, from what it was given. Let its forward make another tensor (x = x + …)"
)
_IN_OBJECTS = (
    "{} ({}) gives tensors within {}: per-example gradients by torch.func need tensors, or lists, tuples and dicts of them, as outputs, or all gradients from there on would be lost. Let its "
    "forward return those (and make the object of them in the model's forward)"
)


def per_example(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    """The rule of any layer, with its children, whose output for a unit follows from that unit's input alone. Arguments and outputs
    are trees of tensors and plain values; coins (dropout) are tossed unit by unit, and again in backward.

    ValueError for arguments that are neither of the batch's units nor shared, and for packed batches.
    """
    layer.refuse_packed("it has no rule, only torch.func's per-example gradients; register one (ghostshard.register_rule)")
    refuse_parts(layer)
    _refuse_offsets(layer, args, kwargs)
    call = Call(layer, args, kwargs)
    given: list = []  # the output, as the layer gives it, and whose each of its tensors is
    values = _PerExample.apply(anchor(), call, given, *call.inputs())
    output, outputs = given
    values = values if isinstance(values, tuple) else (values,)
    return refilled(output, [_handed_on(layer, value, each) for value, each in zip(values, outputs)])


def _refuse_offsets(layer: Layer, args: tuple, kwargs: dict) -> None:
    """ValueError for bags that lie end to end, of which no row is an example's."""
    ids = args[0] if args else kwargs.get("input")
    if isinstance(layer.module, nn.EmbeddingBag) and isinstance(ids, torch.Tensor) and ids.dim() == 1:
        raise ValueError(
            f"{layer.name} (EmbeddingBag): ids that lie end to end, with offsets, have no row for each example. Hand it [examples, ids], padded to one length: "
            "nn.EmbeddingBag(…, padding_idx=…) leaves padded places out of each example's sum or mean"
        )


def _handed_on(layer: Layer, value: torch.Tensor, output: Output) -> torch.Tensor:
    """Shared, with a value for each unit behind it, or the units' own rows, whose order the graph shows."""
    if output.of_all:
        return shared(value)
    return layer.in_order(value, output.parts) if value.requires_grad else value


class _PerExample(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _anchor, call: Call, tree: list, *inputs):
        layer = call.layer
        ctx.call, ctx.tape, ctx.owners, ctx.autocast = call, layer.session.tape, layer.owners(), state_of(inputs[0] if inputs else _anchor)
        for number in layer.numbers.values():
            layer.session.count_use(number)
        output, ctx.like, ctx.coins, ctx.buffers = _computed(call, list(inputs))
        outputs = tensors_in(output)
        tree += [output, ctx.like]
        compared = layer.compared and ctx.coins is None
        ctx.save_for_backward(*inputs)
        # Clones, because the model may write into its outputs; not saved, because checkpointing wants as many saved in its second forward.
        ctx.outputs = [] if compared else [value.clone() for value in outputs]
        given = tuple(
            value.unsqueeze(0).expand(call.units, *value.shape) if like.of_all else _fresh(value, inputs) for value, like in zip(outputs, ctx.like)
        )
        ctx.mark_non_differentiable(*(value for value in given if not value.is_floating_point()))
        ctx.set_materialize_grads(False)
        return given

    @staticmethod
    def backward(ctx, *gradients):
        call: Call = ctx.call
        layer = call.layer
        inputs, outputs, like = ctx.saved_tensors, ctx.outputs, ctx.like  # saved ones once: activation checkpointing gives them no second time
        wanted = [i for i, gradient in enumerate(gradients) if gradient is not None]
        nothing = (None, None, None, *([None] * len(inputs)))
        differentiable = [i for i in range(len(inputs)) if ctx.needs_input_grad[3 + i]]  # a speech model makes others leaves of its own
        parameters = {
            name: local(value).detach()
            for name, value in layer.module.named_parameters()
            if name in layer.wanted(ctx.tape)
        }
        if not wanted or call.units == 0 or not (differentiable or parameters):
            return nothing
        chosen = [like[i].units_first(gradients[i]) for i in wanted]
        with as_in(ctx.autocast):
            of_parameters, of_inputs, primal = of_each_unit(
                call, parameters, list(inputs), differentiable, [(i, like[i]) for i in wanted], chosen, ctx.coins, ctx.buffers
            )
        if outputs:
            _compare(layer, primal, [like[i].units_first(outputs[i]) for i in wanted])
        for name, value in of_parameters.items():
            shape = value.shape if value.dim() > 1 else (*value.shape, 1)
            layer.instantiated(ctx.tape, name, value.reshape(shape), ctx.owners)
        result: list = list(nothing)
        for i, value in zip(differentiable, of_inputs):
            result[3 + i] = value
        return tuple(result)


def _computed(call: Call, inputs: list[torch.Tensor]) -> tuple[Any, list[Output], Coins | None, Buffers]:
    """The layer's output, whose its tensors are, the coins before it if it tossed any (its forward then ran unit by unit), and what buffers held that it moved."""
    layer = call.layer
    args, kwargs = call.of(inputs)
    buffers, known, versions = Buffers(layer.module), {}, [each._version for each in inputs]
    coins = Coins(inputs[0].device if inputs else torch.device("cpu"))
    try:
        with torch.no_grad(), no_way_back(layer):
            output = call.kept.skeleton(known).forward(*args, **kwargs)
    except (TypeError, AttributeError, KeyError) as error:
        with torch.no_grad():
            layer.original(*args, **kwargs)  # raises an error that is the layer's own
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}) is computed as one layer, without the hooks of its children, and cannot be "
            f"({type(error).__name__}: {error}; backbones of Transformers hand their features on by hooks). If that is for parameters of its own beside its children, "
            "make each of them one of a small nn.Module that is called; or register a rule for the layer (ghostshard.register_rule)"
        ) from error
    if versions != [each._version for each in inputs]:
        raise RuntimeError(_WRITES.format(layer.name or "the model", original_class(layer.module).__name__))
    tossed = layer.module.training and bool(inputs) and coins.tossed()
    if not layer.compared:
        if tossed:
            coins.again()
        buffers.again()
        _refuse_others(layer, args, kwargs)
        coins.again()
        _compare_with_own(layer, tensors_in(output), args, kwargs, buffers)
        call.kept.again()
    _refuse_objects(layer, output)
    call.kept.take(known)
    buffers.moved()
    outputs = outputs_of(call, inputs, tensors_in(output), coins, buffers, tossed=tossed)
    if not tossed:
        return output, outputs, None, buffers
    coins.again()
    return refilled(output, outputs_of_each_unit(call, inputs, outputs, buffers)), outputs, coins, buffers


def _refuse_objects(layer: Layer, output: Any) -> None:
    """ValueError for outputs in which no gradient would come back. A cache has none."""
    strange = [each for each in constants_in(output) if not isinstance(each, PLAIN) and "Cache" not in type(each).__name__]
    strange = [each for each in strange if isinstance(each, (Iterator, Set)) or any(value.is_floating_point() for value in contents(each))]
    if strange:
        raise ValueError(_IN_OBJECTS.format(layer.name or "the model", original_class(layer.module).__name__, type(strange[0]).__name__))


def _fresh(value: torch.Tensor, inputs: tuple) -> torch.Tensor:
    """An output that is an input must be another tensor; any other is handed on as it is, because the model may write into it."""
    storages = {each.untyped_storage().data_ptr() for each in inputs}
    value = value.clone() if value._is_view() else value  # torch lets nobody write into a view that a function gave
    return value.view_as(value) if value.untyped_storage().data_ptr() in storages else value


def _refuse_others(layer: Layer, args: tuple, kwargs: dict) -> None:
    """At first use. RuntimeError if the output follows from a parameter that is not the layer's own, from its own by a way on which torch.func's do not come, or from what other
    layers gave without being an argument: no gradient of the layer alone would reach these. Or if the layer leaves a loss beside its output: a number, or one for each unit (states and maps of attention, which have
    more extents, are hardly trained on)."""
    own = {name: local(value).detach() for name, value in layer.module.named_parameters() if value.requires_grad}
    memory = {local(value).untyped_storage().data_ptr() for value in layer.module.parameters()}  # PEFT turns a weight as nn.Parameter(weight.T)
    lost = {id(value) for value in layer.module.parameters() if value.requires_grad}
    strange = lambda leaf: hasattr(leaf, ANCHOR) or id(leaf) in lost or (isinstance(leaf, nn.Parameter) and leaf.untyped_storage().data_ptr() not in memory)
    detached = lambda value: value.detach()
    known: dict[int, nn.Module] = {}
    bare = skeleton(layer.module, known)
    with torch.enable_grad():
        outputs = tensors_in(torch.func.functional_call(bare, own, mapped(detached, args), mapped(detached, kwargs)))
    for output in outputs:
        leaves = load("engine").leaves_of(output) if output.requires_grad else ()
        # Other leaves are the layer's own work, such as a view of its input. A layer of the engine has an anchor, or none to be seen.
        if output.requires_grad and (not leaves or any(map(strange, leaves))):
            if any(id(leaf) in lost for leaf in leaves):
                raise RuntimeError(_BY_ANOTHER_WAY.format(layer.name or "the model", original_class(layer.module).__name__))
            raise RuntimeError(
                f"{layer.name} ({original_class(layer.module).__name__}) uses a parameter or an output of another layer that is neither its own nor "
                "an argument (kept in a list, or in a closure), so its examples' gradients would not hold that. Make it an attribute of this layer and use "
                "that, or an argument of its forward"
            )
    graded = {name: value.requires_grad_() for name, value in own.items() if value.is_floating_point()}
    as_it_is = lambda value: value  # for activation checkpointing nothing is saved here
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is):
        torch.func.functional_call(bare, graded, mapped(detached, args), mapped(detached, kwargs))
    for module in layer.module.modules():
        before = vars(module)
        for name, value in vars(known.get(id(module), module)).items():
            if name not in _OF_TORCH and value is not before.get(name) and any(each.requires_grad and each.dim() < 2 for each in contents(value)):
                raise RuntimeError(_LEFT_BESIDE.format(layer.name or "the model", original_class(layer.module).__name__, name))


def _compare_with_own(layer: Layer, found: list[torch.Tensor], args: tuple, kwargs: dict, buffers: Buffers) -> None:
    """At first use. RuntimeError if the skeleton, which has no hooks, gives something else than the layer. Buffers move once: before
    the layer's own forward they are set back."""
    buffers.again()
    with torch.no_grad():
        own = tensors_in(layer.original(*args, **kwargs))
    floats = [(one, two) for one, two in zip(found, own) if two.is_floating_point()]
    if len(found) != len(own) or not all(same_output(one, two) for one, two in floats):
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}) gives another output than its own forward when it is computed "
            "without the hooks of its children: register a rule for it (ghostshard.register_rule). (If it tosses coins of NumPy or Python, as SpecAugment's masks of "
            "speech models, switch them off: model.config.apply_spec_augment = False, or layerdrop=0)"
        )


def _compare(layer: Layer, found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """At first use. RuntimeError if the layer gives one example alone another output than in its batch."""
    if not all(same_output(one, batch) for one, batch in zip(found, expected, strict=True)):
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}) gives an example alone another output than in its batch: it "
            "mixes examples, keeps a state, or takes a tensor that all share for one of the units. Register a rule for it "
            f"(ghostshard.register_rule){time_first(layer)}"
        )
    layer.compared = True


__all__ = ["per_example"]
