"""The rules of affine layers: linear layers, embeddings and the scales and shifts of norms."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ..autocast import in_lower_precision, without_autocast
from ..rows import of_places
from ..same_memory import is_of_buffers
from ..shared import read_both_ways, shared
from .layer import SURE_AFTER, Layer, register_rule


@register_rule(nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
def linear(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    return _linear(layer, input, stored_transposed=False)


@register_rule("transformers:Conv1D")  # y = x W + b
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
    places = _places_of_all(layer, input)
    if places is None and input.dim() == 1 and _may_be_of_all(layer, input):
        return _read_both_ways(layer, input)
    ids = layer.units_first(input) if places is None else places.flatten().expand(layer.rows(), -1)
    found = layer.session.embedding(layer.number("weight"), ids, layer.value("weight"), layer.padding_id())
    if places is None:
        return layer.as_given(found)
    if torch.compiler.is_compiling():
        return found.unflatten(1, places.shape)
    return shared(found.unflatten(1, places.shape), leading_one=input.shape != places.shape)


def _places_of_all(layer: Layer, ids: torch.Tensor) -> torch.Tensor | None:
    """Ids that all units share (nanoGPT's arange(T), T5's table of distances), without a leading extent of 1; None for ids of the
    units. Once an embedding has had them, it has them always: a batch of T units must not pass for one id of each."""
    engine = layer.engine
    if ids.dim() == 0 or layer.packed or not engine.batch_first or not engine.in_forward:
        return None
    if ids.dim() > 1 and ids.shape[0] == 1:
        return ids[0]
    if ids.shape[0] == layer.rows(ids) and layer.is_own(ids):
        return None  # 0, 1, 2, … by chance
    layer.takes_places = layer.takes_places or ids.shape[0] != layer.rows(ids) or of_places(ids) or is_of_buffers(ids, engine.model)
    return ids if layer.takes_places else None


def _may_be_of_all(layer: Layer, ids: torch.Tensor) -> bool:
    """Whether as many ids [units] as units may be places of all of them: not if their number has followed that of the units, nor in an argument."""
    engine, seen = layer.engine, layer.extents.setdefault((0, 1), set())
    if layer.packed or not engine.batch_first or not engine.in_forward or layer.owners() is not None or torch.compiler.is_compiling() or layer.is_own(ids):
        return False
    seen.add(layer.rows(ids))
    return 1 < layer.session.units == len(ids) and len(seen) < SURE_AFTER


def _read_both_ways(layer: Layer, ids: torch.Tensor) -> torch.Tensor:
    """Either one id of each unit, or all of them of all."""

    def rows_of(given: torch.Tensor) -> torch.Tensor:
        return layer.session.embedding(layer.number("weight"), given, layer.value("weight"), layer.padding_id())

    return read_both_ways(rows_of(ids), lambda: rows_of(ids.expand(len(ids), -1)), len(ids), 1)


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
    """normalised ∘ weight + bias over the last `dims` dimensions; the module may lack either parameter."""
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


@register_rule(
    *(f"transformers:{name}RMSNorm" for name in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Phi3"))
)  # fmt: skip
def llama_rms_norm(layer: Layer, hidden_states: torch.Tensor) -> torch.Tensor:
    module = layer.module
    x = layer.units_first(hidden_states)
    wide = x.to(torch.float32)
    normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    return layer.as_given(affine(layer, normalised.to(x.dtype)))


@register_rule(*(f"transformers:{name}RMSNorm" for name in ("Gemma", "Gemma2", "Gemma3")))
def gemma_rms_norm(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """x̂ ∘ (1 + weight), in float32: the weight's gradient is that of a scale 1 + weight."""
    module = layer.module
    x = layer.units_first(x)
    wide = x.float()
    normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.eps)
    y = layer.session.affine(layer.number("weight"), -1, normalised, 1.0 + layer.value("weight").detach().float(), None)
    return layer.as_given(y.type_as(x))


_SCALED = (
    "Bart", "BigBirdPegasus", "BioGpt", "Blenderbot", "GemmaText", "Gemma2Text", "Gemma3Text", "M2M100", "MBart", "NllbMoe", "PLBart",
    "PegasusX", "TrOCR", "XGLM",
)  # fmt: skip


@register_rule(*(f"transformers:{name}ScaledWordEmbedding" for name in _SCALED))
def scaled_embedding(layer: Layer, input_ids: torch.Tensor) -> torch.Tensor:
    scale = layer.module.embed_scale
    return embedding(layer, input_ids) * (scale.to(layer.module.weight.dtype) if isinstance(scale, torch.Tensor) else scale)


@register_rule(nn.GroupNorm)
def group_norm(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    module = layer.module
    layer.refuse_packed()
    layer.engine.units_of(input)  # the layer itself takes them first, even if the rest of the model has them second
    parts = layer.parts(input)
    normalised = functional.group_norm(input, module.num_groups, eps=module.eps).movedim(1, -1)  # a row is one place's channels
    y = affine(layer, layer.folded(normalised, parts))
    return (y if parts == 1 else y.flatten(0, 1)).movedim(-1, 1).contiguous()  # as the layer's own, of which models take views


# They act on the last extents of their first argument alone, or on each of its elements.
BY_ROWS = frozenset({linear, conv1d_of_transformers, layer_norm, rms_norm, llama_rms_norm, gemma_rms_norm, embedding, scaled_embedding})

__all__ = ["BY_ROWS", "affine"]
