"""Layers whose trainable parameters are recorded.

A rule takes the place of a layer's forward. It must give what the layer gives, keep every parameter out of autograd and
report each use to the session (dp/run/session.h), which forms norms and sums in backward. Parameters are read from the
module at each call: under FSDP2 they are whole only then.

Layers without a rule of their own go through `per_example`: the gradients of that layer alone, one for each unit, by
torch.func in backward, while its weights are gathered.
"""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional

from . import tensor_parallel
from ..autocast import as_in, in_lower_precision, state_of, without_autocast
from ..layout import original_class, own_parameters

if TYPE_CHECKING:
    from ..engine import GhostEngine


Rule = Callable[..., Any]  # rule(layer, *args, **kwargs) of the layer's forward


class Layer:
    """What a rule is given: the module, its own forward, and the engine it reports to."""

    def __init__(self, engine: GhostEngine, name: str, module: nn.Module, rule: Rule):
        self.engine = engine
        self.name = name
        self.module = module
        self.original: Callable[..., Any] = module.forward
        self.by_rows: bool | None = None  # how a convolution is recorded, once known
        # By name within the module. A layer that is taken whole answers for its children's parameters too.
        self.numbers: dict[str, int] = {}
        for name, _ in module.named_parameters() if rule is per_example else own_parameters(module):
            path, _, attribute = name.rpartition(".")
            self.numbers[name] = engine.layout.index(module.get_submodule(path), attribute)

    @property
    def session(self) -> Any:
        return self.engine.session

    def number(self, attribute: str) -> int:
        """The parameter's number in the engine; -1 where the layer has none."""
        return self.numbers.get(attribute, -1)

    def value(self, attribute: str) -> Any:
        """What the layer computes with on this rank: the parameter, gathered; under tensor parallelism its part; None where
        the layer has none."""
        value = _local(getattr(self.module, attribute, None))
        summed_up = attribute == "bias" and isinstance(self.module, nn.Linear) and self.cut("weight") == 1
        if value is not None and summed_up and self.engine.ranks.model_rank > 0:
            return torch.zeros_like(value)  # the ranks' outputs are summed: the first adds the bias, all record it
        return value

    def cut(self, attribute: str) -> int:
        """The parameter's dimension that is cut over the tensor-parallel axis; -1: none."""
        number = self.number(attribute)
        return -1 if number < 0 else self.engine.layout.parameters[number].cut

    def padding_id(self) -> int:
        """An embedding's, as a row of the table on this rank; -1: none."""
        padding = self.module.padding_idx
        if padding is None or self.cut("weight") != 0:
            return -1 if padding is None else padding
        rows = self.value("weight").shape[0]
        padding -= rows * self.engine.ranks.model_rank
        return padding if 0 <= padding < rows else -1

    def trainable(self) -> bool:
        entries = self.engine.layout.parameters
        return any(entries[number].parameter.requires_grad for number in self.numbers.values())

    def wanted(self, tape: Any) -> set[str]:
        """Of which parameters a backward must give per-unit gradients: of the trainable ones; in a second pass of none,
        theirs are added already."""
        entries = self.engine.layout.parameters
        if tape.in_second_pass:
            return set()
        return {name for name, number in self.numbers.items() if entries[number].parameter.requires_grad}

    def units_first(self, x: torch.Tensor) -> torch.Tensor:
        """x with the units in its first dimension; begins a microbatch where the layer is called on its own."""
        self.engine.units_of(x)
        return x if self.engine.batch_first or x.dim() < 2 else x.transpose(0, 1)

    def units_at(self, dims: int) -> int:
        """Where the units stand in a tensor of so many dimensions, as the layer itself takes it."""
        return 0 if self.engine.batch_first or dims < 2 else 1

    def as_given(self, y: torch.Tensor) -> torch.Tensor:
        return y if self.engine.batch_first or y.dim() < 2 else y.transpose(0, 1)


def _local(value: Any) -> Any:
    return value.detach().to_local() if isinstance(value, DTensor) else value


_RULES: dict[type, Rule] = {}
_BY_NAME: dict[str, Rule] = {}


def register_rule(*layers: type | str) -> Callable[[Rule], Rule]:
    """Registers a rule for module classes, or for classes of these names (of packages that need not be installed).

    rule(layer, *args, **kwargs) is called in place of the layer's forward while a private step records; it must report
    every trainable parameter of the layer to `layer.session`.
    """

    def register(rule: Rule) -> Rule:
        for layer in layers:
            if isinstance(layer, str):
                _BY_NAME[layer] = rule
            else:
                _RULES[layer] = rule
        return rule

    return register


def rule_for(module: nn.Module) -> Rule | None:
    """By the module's exact class, as it was before FSDP2 swapped in one of its own."""
    kind = original_class(module)
    return _RULES.get(kind) or _BY_NAME.get(kind.__name__)


class PatchedForward:
    """Takes the place of a module's forward. A copy of the module gets its own class's forward back."""

    def __init__(self, engine: GhostEngine, name: str, module: nn.Module, rule: Rule):
        self.layer = Layer(engine, name, module, rule)
        self.rule = rule
        functools.update_wrapper(self, self.layer.original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self.layer
        if not layer.engine.recording or not layer.trainable():
            return layer.original(*args, **kwargs)
        if layer.engine.ranks.model_ranks > 1:
            return tensor_parallel.forward(layer, self.rule, args, kwargs)
        return self.rule(layer, *args, **kwargs)

    def __deepcopy__(self, memo: dict) -> Callable[..., Any]:
        copied = memo[id(self.layer.module)]  # its state, and this in it, is being copied now
        return types.MethodType(original_class(self.layer.module).forward, copied)


# Affine layers ------------------------------------------------------------------------------------------------------


@register_rule(nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
def linear(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    return _linear(layer, input, stored_transposed=False)


@register_rule("Conv1D")  # transformers.pytorch_utils: y = x W + b
def conv1d_of_transformers(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return _linear(layer, x, stored_transposed=True)


def _linear(layer: Layer, x: torch.Tensor, *, stored_transposed: bool) -> torch.Tensor:
    x, weight, bias = in_lower_precision(layer.units_first(x), layer.value("weight"), layer.value("bias"))
    with without_autocast(x):
        y = layer.session.linear(layer.number("weight"), layer.number("bias"), stored_transposed, x, weight, bias)
    return layer.as_given(y)


@register_rule(nn.Embedding)
def embedding(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    module = layer.module
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise ValueError(
            f"{layer.name}: max_norm rewrites rows in forward and scale_grad_by_freq divides by counts over the whole "
            "batch; both let one example change another's gradient, so they have no per-example rule"
        )
    ids = layer.units_first(input)
    return layer.as_given(
        layer.session.embedding(layer.number("weight"), ids, layer.value("weight"), layer.padding_id())
    )


@register_rule(nn.LayerNorm)
def layer_norm(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    module = layer.module
    x = layer.units_first(input)
    dims = len(module.normalized_shape)
    if dims == 1 and module.bias is not None:
        y = layer.session.layer_norm(
            layer.number("weight"), layer.number("bias"), x, module.eps, layer.value("weight"), layer.value("bias")
        )
        return layer.as_given(y)
    normalised = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    return layer.as_given(affine(layer, normalised, dims))


def affine(layer: Layer, normalised: torch.Tensor, dims: int = 1) -> torch.Tensor:
    """normalised ∘ weight + bias over the last `dims` dimensions; the module may lack either."""
    y = layer.session.affine(
        layer.number("weight"), layer.number("bias"), normalised.flatten(-dims), layer.value("weight"), layer.value("bias")
    )
    return y.view(normalised.shape)


@register_rule(nn.RMSNorm)
def rms_norm(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    module = layer.module
    x = layer.units_first(x)
    dims = len(module.normalized_shape)
    normalised = functional.rms_norm(x, module.normalized_shape, eps=module.eps)
    return layer.as_given(affine(layer, normalised, dims))


@register_rule("LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Phi3RMSNorm")
def llama_rms_norm(layer: Layer, hidden_states: torch.Tensor) -> torch.Tensor:
    module = layer.module
    x = layer.units_first(hidden_states)
    wide = x.to(torch.float32)
    normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    return layer.as_given(affine(layer, normalised.to(x.dtype)))


@register_rule("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm")
def gemma_rms_norm(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """x̂ ∘ (1 + weight), in float32: the weight's gradient is that of a scale 1 + weight."""
    module = layer.module
    x = layer.units_first(x)
    wide = x.float()
    normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.eps)
    y = layer.session.affine(layer.number("weight"), -1, normalised, 1.0 + layer.value("weight").detach().float(), None)
    return layer.as_given(y.type_as(x))


@register_rule("GemmaTextScaledWordEmbedding", "Gemma2TextScaledWordEmbedding", "Gemma3TextScaledWordEmbedding")
def scaled_embedding(layer: Layer, input_ids: torch.Tensor) -> torch.Tensor:
    return embedding(layer, input_ids) * layer.module.embed_scale.to(layer.module.weight.dtype)


MEETING = "places of several examples would meet in it"


@register_rule(nn.GroupNorm)
def group_norm(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    module = layer.module
    refuse_packed(layer, MEETING)
    layer.engine.units_of(input)  # they come first, as it takes them, also where the rest of the model has them second
    normalised = functional.group_norm(input, module.num_groups, eps=module.eps)
    if input.dim() > 2:  # channels last, so that a row is one place's channels
        return affine(layer, normalised.movedim(1, -1)).movedim(-1, 1)
    return affine(layer, normalised)


def refuse_packed(layer: Layer, reason: str) -> None:
    """For a layer that takes one example to a row: in a packed batch places of several may meet in it."""
    if layer.engine.packing is not None:
        raise ValueError(
            f"{layer.name} ({original_class(layer.module).__name__}) needs a batch with one example to a row, this one is "
            f"packed: {reason}"
        )


# Every other layer --------------------------------------------------------------------------------------------------


def instantiable(module: nn.Module) -> bool:
    """torch.func can take this module and its children as one layer: they are gathered together, and one example's output
    does not follow from another's input."""
    unfit = (nn.RNNBase, nn.modules.batchnorm._BatchNorm)
    inside = list(module.modules())
    return not any(isinstance(each, unfit) or (each is not module and isinstance(each, FSDPModule)) for each in inside)


def skeleton(module: nn.Module) -> nn.Module:
    """The layer without hooks, patches and parameters' values: a plain forward for torch.func."""
    bare = object.__new__(original_class(module))
    bare.__dict__ = {key: value for key, value in module.__dict__.items() if key != "forward"}
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        bare.__dict__[hooks] = OrderedDict()
    bare._parameters = {name: _local(value) for name, value in module._parameters.items()}
    bare._modules = {name: skeleton(child) for name, child in module._modules.items() if child is not None}
    return bare


def per_example(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    """Any layer, with its children, whose output for a unit follows from that unit's input alone, without coins."""
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
    refuse_packed(layer, "it has no rule, only torch.func's per-example gradients; register one (ghostshard.register_rule)")
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
            name: _local(value).detach() for name, value in layer.module.named_parameters() if name in wanted
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


__all__ = ["Layer", "affine", "per_example", "register_rule", "rule_for"]
