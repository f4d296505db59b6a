"""Whose are the rows of a layer's input, if its first extent is not that of the units?

[units, T, d] that was flattened to [units·T, d] is in order as long as nothing has changed the order of the rows since. The
autograd graph says so: from the input back to the flattening there must be nothing but operations that keep each row in its
place. What has no graph must be an argument of the model's forward, in the same memory and the same order. This is asked at every
call, because a batch that is indexed (experts, masked places) may have as many rows by chance.
"""

from __future__ import annotations

from typing import Any

import torch

from .moved_rows import moved
from .tensor_trees import tensors_in

# Each row (along the first extent) of the output follows from the same row of every input.
_BY_ROWS = {
    f"{name}Backward{number}"
    for name in (
        "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Pow", "Exp", "Log", "Sqrt", "Rsqrt", "Reciprocal", "Erf", "Tanh", "Sigmoid",
        "Relu", "Gelu", "Silu", "Mish", "Elu", "LeakyRelu", "Hardtanh", "Hardswish", "Hardsigmoid", "Softplus", "Clamp", "ClampMin", "ToCopy",
        "Alias", "Clone", "NativeDropout", "MaskedFill", "Where", "Minimum", "Maximum", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Exp2", "Expm1", "Log1P", "Log2",
        "Log10", "LogSigmoid", "Threshold", "Hardshrink", "Softshrink", "Sgn", "Erfc", "Addcmul", "Addcdiv",
    )
    for number in (0, 1)
}  # fmt: skip
# The same, of tensors with more extents than one: the first is a batch's, or a channel's that is computed by itself.
_BY_MATRICES = {
    f"{name}Backward0"
    for name in (
        "NativeLayerNorm", "FusedRmsNorm", "Bmm", "Convolution", "NativeGroupNorm", "MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D",
        "AdaptiveMaxPool2D", "MaxPool3DWithIndices", "AvgPool3D", "UpsampleNearest1D", "UpsampleNearest2D", "UpsampleBilinear2D",
        "ScaledDotProductFlashAttention", "ScaledDotProductFlashAttentionForCpu", "ScaledDotProductEfficientAttention",
        "ScaledDotProductCudnnAttention",
    )
}  # fmt: skip
# The same, unless the first extent is among those that the node names.
_ALONG = {
    **dict.fromkeys(
        (
            "SoftmaxBackward0", "SafeSoftmaxBackward0", "LogSoftmaxBackward0", "SliceBackward0", "SplitBackward0", "SplitWithSizesBackward0", "TopkBackward0", "GatherBackward0",
            "SelectBackward0", "UnbindBackward0", "CatBackward0", "StackBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "GluBackward0",
            "CumsumBackward0", "SumBackward1", "MeanBackward1", "MaxBackward0", "MinBackward0", "AmaxBackward0", "AminBackward0",
            "LogsumexpBackward0", "StdBackward0", "VarBackward0", "LinalgVectorNormBackward0",
        ),
        ("_saved_dim",),
    ),
    "FlipBackward0": ("_saved_dims",),
    "RollBackward0": ("_saved_dims",),
    "TransposeBackward0": ("_saved_dim0", "_saved_dim1"),
}  # fmt: skip
_PRODUCTS = {"AddmmBackward0": 1, "MmBackward0": 0}  # number of the input whose rows they keep
_VIEWS = ("ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0")
_FURTHEST = 200

_Output = tuple[Any, int]  # a node of the autograd graph, and which of its outputs


def rows_of_each(x: torch.Tensor, units: int, *, turned: bool = False) -> int | None:
    """How many rows, one after another, each unit has in x [units · rows, ...]; None if that is not certain. turned: also if the first two extents of
    what was flattened were exchanged and are alike, so that only batches of other extents show which of them is the units'."""
    if units == 1 and x.dim() > 1 and x.shape[0] > 1:
        return x.shape[0]
    if x.dim() < 2 or units < 2 or x.shape[0] % units or x.shape[0] <= units or x.grad_fn is None:
        return None
    waiting: list[tuple[_Output, int]] = [((x.grad_fn, x.output_nr), 0)]  # and which of its dimensions has the rows
    seen = set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        output, dim = each
        before = None if dim else _before(output, units, turned)
        found = moved(*output, _shape_of(output), dim) if before is None else [(one, 0) for one in before]
        if found is None or len(seen) > _FURTHEST:
            return None
        waiting.extend(found)
    return x.shape[0] // units


class InOrder(torch.autograd.Function):
    """Rows [units, rows, ...] without a gradient get a place in the graph, and no gradient."""

    @staticmethod
    def forward(ctx, _anchor, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return None, None


def rows_in_arguments(x: torch.Tensor, units: int, arguments: Any) -> int | None:
    """The same of an x that is one of the arguments [units, ...] of the model's forward, flattened: choices of a question, pictures of
    a film."""
    if x.dim() < 2 or units < 2 or x.shape[0] % units or x.shape[0] <= units or x.grad_fn is not None or not x.is_contiguous():
        return None
    for value in tensors_in(arguments):
        same_memory = value.dim() > 0 and value.is_contiguous() and (value.data_ptr(), value.numel(), value.dtype) == (x.data_ptr(), x.numel(), x.dtype)
        if same_memory and value.shape[0] == units:
            return x.shape[0] // units
    return None


def keeps_rows(x: torch.Tensor, units: int) -> bool:
    """Whether each row of x [units · rows, ...] follows from the rows of the same unit alone, in the order of the units, back to the leaves of its graph
    that have the units. units: an extent that no other tensor has."""
    waiting: list[_Output] = [] if x.grad_fn is None else [(x.grad_fn, x.output_nr)]
    found, seen = bool(waiting), set()
    while waiting and found:
        output = waiting.pop()
        if output in seen:
            continue
        seen.add(output)
        node, shape = output[0], _shape_of(output)
        following = [each for each in node.next_functions if each[0] is not None]
        if not shape or shape[0] % units or len(seen) > _FURTHEST:
            return False
        if not following:  # AccumulateGrad
            continue
        if node.name() in _VIEWS:
            before = node._saved_self_sym_sizes
            found = bool(before) and before[0] % units == 0
            waiting += following
        else:
            before = _before(output, units, True)
            found = bool(before)
            waiting += before or []
    return found


def _before(output: _Output, units: int, turned: bool) -> list[_Output] | None:
    """The outputs from which the same rows come, so that each unit's stand together here if they do there; [] at a flattening of the units;
    None for anything else."""
    (node, _), shape = output, _shape_of(output)
    name, following = node.name(), [each for each in node.next_functions if each[0] is not None]
    if not shape or shape[0] % units or not following:
        return None
    if name in _VIEWS:
        before = node._saved_self_sym_sizes
        if not before or before[0] % units:
            return None
        return following if before[0] != units else [] if turned or not _may_be_turned(following[0], units) else None
    if name == "RegisterPostBackwardFunctionBackward":  # fully_shard's, of a block's arguments
        return [following[output[1]]] if output[1] < len(following) == len(node.next_functions) else None
    if name in _PRODUCTS:
        rows = node.next_functions[_PRODUCTS[name]]
        return None if rows[0] is None else [rows]
    if name == "ExpandBackward0":
        return following if _shape_of(following[0])[:1] == shape[:1] and len(_shape_of(following[0])) == len(shape) else None
    if name == "AsStridedBackward1":  # a mean over a picture, which keeps its channels last
        return following if following[0][0].name() == "MeanBackward1" and _shape_of(following[0]) == shape else None
    if name in _ALONG or name == "PermuteBackward0":
        return following if _keeps_first(output) else None
    if name in _BY_ROWS or (name in _BY_MATRICES and len(shape) > 1 + (name != "NativeLayerNormBackward0")):
        alike = all(len(_shape_of(each)) == len(shape) and _shape_of(each)[0] == shape[0] for each in following)
        return following if alike else None
    return None


def _shape_of(output: _Output) -> tuple[int, ...]:
    metadata = getattr(output[0], "_input_metadata", ())
    return tuple(metadata[output[1]].shape) if output[1] < len(metadata) else ()


def _keeps_first(output: _Output) -> bool:
    """It does not exchange the first extent for another one, or compute along it."""
    node, name = output[0], output[0].name()
    if name == "PermuteBackward0":
        return node._saved_dims[0] in (0, 2**64 - len(node._saved_dims))
    if name not in _ALONG:
        return True
    shapes = (_shape_of(output), *(_shape_of(each) for each in node.next_functions if each[0] is not None))
    firsts = {0, *(2**64 - len(shape) for shape in shapes)}  # a negative dimension is saved as 2^64 less
    named = (getattr(node, attribute) for attribute in _ALONG[name])
    return not any(dim in firsts for each in named for dim in (each if isinstance(each, tuple) else (each,)))


def _may_be_turned(output: _Output, units: int) -> bool:
    """Its first extent, which is as long as the units, was exchanged for another one that is as long, among functions that keep rows."""
    waiting, seen = [output], set()
    while waiting and len(seen) < _FURTHEST:
        output = waiting.pop()
        if output[0] is None or output in seen:
            continue
        seen.add(output)
        following = [each for each in output[0].next_functions if each[0] is not None and _shape_of(each)[:1] == (units,)]
        if not _keeps_first(output):
            if following:
                return True
            continue
        name = output[0].name()
        if name in _VIEWS or name in _BY_ROWS or name in _BY_MATRICES or name in _ALONG or name == "PermuteBackward0":
            waiting += following
    return False


def of_places(value: torch.Tensor) -> bool:
    """0, 1, 2, …, or [T,T] that follows from the distance of two places alone (a causal mask, a table of distances), and is not all the same: what T
    examples hardly look like, and all of them share."""
    if value.dim() == 1:
        return len(value) >= 4 and not torch.compiler.is_compiling() and not value.is_floating_point() and value.dtype != torch.bool and torch.equal(value, torch.arange(len(value), dtype=value.dtype, device=value.device))
    if value.dim() != 2 or value.shape[0] != value.shape[1] or len(value) < 2:
        return False
    return bool((value[1:, 1:] == value[:-1, :-1]).all()) and bool((value != value[0, 0]).any())


__all__ = ["InOrder", "keeps_rows", "of_places", "rows_in_arguments", "rows_of_each"]
