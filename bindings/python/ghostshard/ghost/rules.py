"""Layers whose trainable parameters are recorded.

A rule takes the place of a layer's forward. It must give what the layer gives, keep every parameter out of autograd and
report each use to the session (dp/session.h), which forms norms and sums in backward. Parameters are read from the
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
from torch.nn import functional

from .layout import original_class, own_parameters

if TYPE_CHECKING:
    from .engine import GhostEngine


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

    def trainable(self) -> bool:
        entries = self.engine.layout.parameters
        return any(entries[number].parameter.requires_grad for number in self.numbers.values())

    def units_first(self, x: torch.Tensor) -> torch.Tensor:
        """x with the units in its first dimension; begins a microbatch where the layer is called on its own."""
        self.engine.units_of(x)
        return x if self.engine.batch_first or x.dim() < 2 else x.transpose(0, 1)

    def units_at(self, dims: int) -> int:
        """Where the units stand in a tensor of so many dimensions, as the layer itself takes it."""
        return 0 if self.engine.batch_first or dims < 2 else 1

    def as_given(self, y: torch.Tensor) -> torch.Tensor:
        return y if self.engine.batch_first or y.dim() < 2 else y.transpose(0, 1)


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
        return self.rule(layer, *args, **kwargs)

    def __deepcopy__(self, memo: dict) -> Callable[..., Any]:
        copied = memo[id(self.layer.module)]  # its state, and this in it, is being copied now
        return types.MethodType(original_class(self.layer.module).forward, copied)


# Autocast ------------------------------------------------------------------------------------------------------------
# What autocast rounds is rounded before it is recorded: norms are of the values that outputs and gradients come from.


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if x.is_floating_point() and torch.is_autocast_enabled(kind) else None


def _in_lower_precision(x: torch.Tensor, *parameters: torch.Tensor | None) -> tuple:
    """x and parameters as autocast hands them to a linear layer or a convolution."""
    dtype = _autocast_dtype(x)
    if dtype is None or x.dtype == torch.float64:
        return (x, *parameters)
    return (x.to(dtype), *(None if p is None else p.detach().to(dtype) for p in parameters))


def _without_autocast(x: torch.Tensor) -> contextlib.AbstractContextManager:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else contextlib.nullcontext()


@contextlib.contextmanager
def _as_in(state: tuple[str, torch.dtype, bool] | None) -> Iterator[None]:
    """Autocast as it was in a forward, for a computation in backward."""
    if state is None:
        yield
        return
    device, dtype, enabled = state
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False):
        yield


def _autocast_state(x: torch.Tensor) -> tuple[str, torch.dtype, bool]:
    kind = x.device.type
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)


# Affine layers ------------------------------------------------------------------------------------------------------


@register_rule(nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
def linear(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    return _linear(layer, input, stored_transposed=False)


@register_rule("Conv1D")  # transformers.pytorch_utils: y = x W + b
def conv1d_of_transformers(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return _linear(layer, x, stored_transposed=True)


def _linear(layer: Layer, x: torch.Tensor, *, stored_transposed: bool) -> torch.Tensor:
    x, weight, bias = _in_lower_precision(layer.units_first(x), layer.module.weight, layer.module.bias)
    with _without_autocast(x):
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
    padding = -1 if module.padding_idx is None else module.padding_idx
    return layer.as_given(layer.session.embedding(layer.number("weight"), ids, module.weight, padding))


@register_rule(nn.LayerNorm)
def layer_norm(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    module = layer.module
    x = layer.units_first(input)
    dims = len(module.normalized_shape)
    if dims == 1 and module.bias is not None:
        y = layer.session.layer_norm(
            layer.number("weight"), layer.number("bias"), x, module.eps, module.weight, module.bias
        )
        return layer.as_given(y)
    normalised = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    return layer.as_given(affine(layer, normalised, dims))


def affine(layer: Layer, normalised: torch.Tensor, dims: int = 1) -> torch.Tensor:
    """normalised ∘ weight + bias over the last `dims` dimensions; the module may lack either."""
    module = layer.module
    y = layer.session.affine(
        layer.number("weight"), layer.number("bias"), normalised.flatten(-dims), getattr(module, "weight", None),
        getattr(module, "bias", None),
    )  # fmt: skip
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
    y = layer.session.affine(layer.number("weight"), -1, normalised, 1.0 + module.weight.detach().float(), None)
    return layer.as_given(y.type_as(x))


@register_rule("GemmaTextScaledWordEmbedding", "Gemma2TextScaledWordEmbedding", "Gemma3TextScaledWordEmbedding")
def scaled_embedding(layer: Layer, input_ids: torch.Tensor) -> torch.Tensor:
    return embedding(layer, input_ids) * layer.module.embed_scale.to(layer.module.weight.dtype)


_MEETING = "places of several examples would meet in it"


@register_rule(nn.GroupNorm)
def group_norm(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    module = layer.module
    refuse_packed(layer, _MEETING)
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


# Convolutions -------------------------------------------------------------------------------------------------------

# Of one piece of the patches of a batch, when per-unit gradients are formed.
_PATCH_BYTES = 32 << 20


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    """A linear layer on patches: over few places (where the weight is larger than its rows) recorded as one, so that the
    session chooses; else the library's own convolution, and one product of patches for each unit in backward."""
    module, x, units = layer.module, input, layer.engine.units_of(input)
    refuse_packed(layer, _MEETING)
    dims = len(module.kernel_size)
    if x.dim() != dims + 2 or x.shape[0] != units:  # also where the rest of the model has units second
        raise ValueError(
            f"{layer.name}: a convolution's input must be [{units} units of this batch, channels, {dims} extents], got "
            f"{tuple(x.shape)}"
        )
    x, weight, bias = _in_lower_precision(x, module.weight, module.bias)
    if module.padding_mode != "zeros" or any(module._reversed_padding_repeated_twice):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = functional.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    if layer.by_rows is None:  # at the first call for good: two ways of recording one weight do not meet
        places = math.prod(_places(module, x))
        width = math.prod(module.weight.shape[1:])
        layer.by_rows = module.groups == 1 and 2 * places * (width + module.out_channels) < width * module.out_channels
    if not layer.by_rows:
        return _Convolution.apply(x, layer, torch.zeros((), requires_grad=True))
    extents = _places(module, x)
    rows = _patches(module, x).flatten(1, 1 + dims).flatten(2).transpose(1, 2)  # [units, places, c·k]
    with _without_autocast(x):
        y = layer.session.linear(layer.number("weight"), layer.number("bias"), False, rows, weight, bias)
    return y.transpose(1, 2).unflatten(2, extents)


def _places(module: Any, x: torch.Tensor) -> list[int]:
    """Output extents of an input that is padded already."""
    settings = zip(x.shape[2:], module.kernel_size, module.stride, module.dilation, strict=True)
    return [(extent - dilation * (size - 1) - 1) // stride + 1 for extent, size, stride, dilation in settings]


def _patches(module: Any, x: torch.Tensor) -> torch.Tensor:
    """x [N, C, extents], padded -> views [N, C, kernel..., places...]."""
    for i, (size, stride, dilation) in enumerate(zip(module.kernel_size, module.stride, module.dilation, strict=True)):
        x = x.unfold(2 + i, dilation * (size - 1) + 1, stride)[..., ::dilation]
    dims = len(module.kernel_size)
    return x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer: Layer, _anchor):
        module: Any = layer.module
        ctx.layer = layer
        ctx.tape = layer.session.tape
        ctx.save_for_backward(x)
        for number in layer.numbers.values():
            layer.session.count_use(number)
        zeros = [0] * len(module.kernel_size)
        x, weight, bias = _in_lower_precision(x, module.weight, module.bias)
        with _without_autocast(x):
            return torch.convolution(
                x, weight, bias, module.stride, zeros, module.dilation, False, zeros, module.groups
            )

    @staticmethod
    def backward(ctx, g):
        layer: Layer = ctx.layer
        module: Any = layer.module
        (x,) = ctx.saved_tensors
        entries = layer.engine.layout.parameters
        if module.bias is not None and entries[layer.number("bias")].parameter.requires_grad:
            layer.session.instantiated(ctx.tape, layer.number("bias"), g.flatten(2).float().sum(2))
        if entries[layer.number("weight")].parameter.requires_grad:
            layer.session.instantiated(ctx.tape, layer.number("weight"), _per_unit_kernels(module, x, g))
        of_x = None
        if ctx.needs_input_grad[0]:
            zeros = [0] * len(module.kernel_size)
            of_x, _, _ = torch.ops.aten.convolution_backward(
                g, x, module.weight.to(x.dtype), None, module.stride, zeros, module.dilation, False, zeros, module.groups,
                (True, False, False),
            )  # fmt: skip
        return of_x, None, None


def _per_unit_kernels(module: Any, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """[units, p, c/groups · k], float32: for each unit the product of its output gradients and its patches."""
    groups, width, places = module.groups, math.prod(module.weight.shape[1:]), math.prod(g.shape[2:])
    found = torch.empty(g.shape[0], g.shape[1], width, dtype=torch.float32)
    step = max(1, _PATCH_BYTES // max(4 * groups * width * places, 1))
    for first in range(0, g.shape[0], step):
        part = slice(first, first + step)
        rows = _patches(module, x[part]).float().reshape(-1, width, places)
        of_units = g[part].float().reshape(-1, g.shape[1] // groups, places)
        found[part] = torch.bmm(of_units, rows.transpose(1, 2)).view(-1, g.shape[1], width)
    return found


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
    bare._parameters = dict(module._parameters)
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
        ctx.autocast = _autocast_state(inputs[0])
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
        parameters = {
            name: value.detach()
            for name, value in layer.module.named_parameters()
            if layer.engine.layout.parameters[layer.numbers[name]].parameter.requires_grad
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
        if inputs[0].shape[0] == 0:
            return (None, None, *(torch.zeros_like(v) if v.is_floating_point() else None for v in inputs))
        with _as_in(ctx.autocast):
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
