"""Convolutions: linear layers on patches.

Over few places (the weight is larger than its rows) a convolution is recorded as a linear layer, so that the session
chooses how. Otherwise the library's own convolution runs, and in backward each unit's kernel gradient is one product of its
patches.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..autocast import in_lower_precision, without_autocast
from ..recording import anchor
from .layer import ROWS_OF_UNITS, Layer, register_rule

# Largest piece of a batch's patches, when per-unit gradients are formed.
_PATCH_BYTES = 32 << 20


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    module, x = layer.module, input
    layer.refuse_packed()
    units, parts = layer.rows(input), layer.parts(input)
    dims = len(module.kernel_size)
    if x.dim() != dims + 2 or x.shape[0] != units * parts:  # even if the rest of the model has units second
        raise ValueError(
            f"{layer.name}: a convolution's input must be [{units} units of this batch, channels, {dims} extents], got "
            f"{tuple(x.shape)}. {ROWS_OF_UNITS}"
        )
    x, weight, bias = in_lower_precision(x, layer.value("weight"), layer.value("bias"))
    if module.padding_mode != "zeros" or any(_padding(module)):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = functional.pad(x, _padding(module), mode=mode)
    if layer.by_rows is None:  # at the first call for good: two ways of recording one weight do not meet
        places = math.prod(_places(module, x))
        width = math.prod(module.weight.shape[1:])
        layer.by_rows = module.groups == 1 and 2 * places * (width + module.out_channels) < width * module.out_channels
    if not layer.by_rows:
        return layer.in_order(_Convolution.apply(x, layer, parts, anchor()), parts)
    extents = _places(module, x)
    rows = _patches(module, x).flatten(1, 1 + dims).flatten(2).transpose(1, 2)  # [units, places, c·k]
    with without_autocast(x):
        y = layer.session.linear(layer.number("weight"), layer.number("bias"), False, layer.folded(rows, parts), weight, bias)
    return (y if parts == 1 else y.flatten(0, 1)).transpose(1, 2).contiguous().unflatten(2, extents)


def _padding(module: Any) -> list[int]:
    """Before and after each extent, the last one first, as the layer's own forward has it: from its settings as they are now (DeepLab's backbones are given
    others once they are built)."""
    if module.padding_mode != "zeros":
        return module._reversed_padding_repeated_twice
    if module.padding == "valid":
        return [0, 0] * len(module.kernel_size)
    if module.padding == "same":
        sums = [dilation * (size - 1) for size, dilation in zip(module.kernel_size, module.dilation)]
        return [part for each in reversed(sums) for part in (each // 2, each - each // 2)]
    return [each for each in reversed(module.padding) for _ in range(2)]


def _places(module: Any, x: torch.Tensor) -> list[int]:
    """Output extents, for an input that is padded already."""
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
    def forward(ctx, x, layer: Layer, parts: int, _anchor):
        module: Any = layer.module
        ctx.layer = layer
        ctx.tape, ctx.owners = layer.session.tape, layer.owners(parts)
        ctx.save_for_backward(x)
        for number in layer.numbers.values():
            layer.session.count_use(number)
        zeros = [0] * len(module.kernel_size)
        x, weight, bias = in_lower_precision(x, layer.value("weight"), layer.value("bias"))
        with without_autocast(x):
            return torch.convolution(
                x, weight, bias, module.stride, zeros, module.dilation, False, zeros, module.groups
            )

    @staticmethod
    def backward(ctx, g):
        layer: Layer = ctx.layer
        module: Any = layer.module
        (x,) = ctx.saved_tensors
        wanted = layer.wanted(ctx.tape)
        if "bias" in wanted:
            layer.instantiated(ctx.tape, "bias", g.flatten(2).float().sum(2), ctx.owners)
        if "weight" in wanted:
            layer.instantiated(ctx.tape, "weight", _per_unit_kernels(module, x, g), ctx.owners)
        of_x = None
        if ctx.needs_input_grad[0]:
            zeros = [0] * len(module.kernel_size)
            of_x, _, _ = torch.ops.aten.convolution_backward(
                g, x, layer.value("weight").to(x.dtype), None, module.stride, zeros, module.dilation, False, zeros, module.groups,
                (True, False, False),
            )  # fmt: skip
        return of_x, None, None, None


def _per_unit_kernels(module: Any, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """[units, p, c/groups · k], float32: for each unit the product of its output gradients and its patches."""
    groups, width, places = module.groups, math.prod(module.weight.shape[1:]), math.prod(g.shape[2:])
    found = torch.empty(g.shape[0], g.shape[1], width, dtype=torch.float32, device=g.device)
    step = max(1, _PATCH_BYTES // max(4 * groups * width * places, 1))
    for first in range(0, g.shape[0], step):
        part = slice(first, first + step)
        rows = _patches(module, x[part]).float().reshape(-1, width, places)
        of_units = g[part].float().reshape(-1, g.shape[1] // groups, places)
        found[part] = torch.bmm(of_units, rows.transpose(1, 2)).view(-1, g.shape[1], width)
    return found
