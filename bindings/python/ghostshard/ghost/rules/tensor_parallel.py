"""Layers whose weights `parallelize_module` has cut over a tensor-parallel axis (Megatron-LM, arXiv:1909.08053).

Such a layer is given DTensors and gives DTensors; PyTorch moves them between ranks. Here its inputs become this rank's
plain tensors, the layer's rule runs on them and on this rank's part of the weights, and the result becomes the DTensor that
it is a part of:

    weight cut by outputs    whole inputs        → outputs cut by columns; inputs' gradients are summed over the axis
    weight cut by inputs     inputs cut alike    → outputs to be summed; rank 0 of the axis adds the bias
    table cut by ids         whole ids           → zeros for rows that another rank holds; to be summed
    not cut                  whole inputs        → whole outputs, cut again as inputs were (sequence parallel norms)

A unit's squared norm is the sum over ranks of those of cut parameters, plus those of whole ones once (dp/mechanism/clipper.h).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..layout import original_class
from .layer import Layer, Rule


def forward(layer: Layer, rule: Rule, args: tuple, kwargs: dict) -> Any:
    """Runs in the place of rule(layer, …), for a model with a tensor-parallel axis. ValueError for a cut without a rule."""
    cut, cut_bias = layer.cut("weight"), layer.cut("bias")
    if not any(layer.cut(name) >= 0 for name in layer.numbers):
        return _whole(layer, rule, args, kwargs)
    looks_up = isinstance(layer.module, nn.Embedding)
    if not looks_up and (not isinstance(layer.module, nn.Linear) or (cut, cut_bias) not in ((0, 0), (0, -1), (1, -1))):
        raise ValueError(
            f"{layer.name} ({original_class(layer.module).__name__}): a weight cut along dimension {cut} with a bias cut along "
            f"{cut_bias} (-1: not) has no rule; Linear and Embedding may be cut, as ColwiseParallel and RowwiseParallel do"
        )
    x = args[0] if args else next(iter(kwargs.values()))
    if not isinstance(x, DTensor):
        raise ValueError(
            f"{layer.name}: its weight is cut over the tensor-parallel axis, so it must be called through the hooks of "
            f"parallelize_module, with a DTensor; got {type(x).__name__}"
        )
    mesh = x.device_mesh
    if looks_up:
        ids = x.redistribute(placements=[Replicate()]).to_local()
        if cut == 1:
            return _joined(rule(layer, _Plain.apply(ids)), mesh, Shard(-1))
        rows = layer.module.num_embeddings // mesh.size()
        ids = _Plain.apply(ids) - rows * mesh.get_local_rank()
        elsewhere = (ids < 0) | (ids >= rows)
        looked_up = rule(layer, ids.masked_fill(elsewhere, 0))
        return _joined(looked_up.masked_fill(elsewhere.unsqueeze(-1), 0), mesh, Partial())
    if cut == 0:
        whole = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return _joined(rule(layer, _Plain.apply(whole)), mesh, Shard(-1))
    part = x.redistribute(placements=[Shard(x.dim() - 1)]).to_local()
    return _joined(rule(layer, _Plain.apply(part)), mesh, Partial())


def _whole(layer: Layer, rule: Rule, args: tuple, kwargs: dict) -> Any:
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, DTensor)]

    def whole(value: Any) -> Any:
        if isinstance(value, DTensor):
            value = value.redistribute(placements=[Replicate()]).to_local()
        return _Plain.apply(value) if isinstance(value, torch.Tensor) else value

    y = rule(layer, *map(whole, args), **{name: whole(value) for name, value in kwargs.items()})
    if not given:
        return _Plain.apply(y) if isinstance(y, torch.Tensor) else y
    joined, (as_given,) = _joined(y, given[0].device_mesh, Replicate()), given[0].placements
    same_rows = isinstance(as_given, Shard) and as_given.dim < min(y.dim(), given[0].dim()) - 1
    return joined.redistribute(placements=[as_given]) if same_rows else joined


def _joined(y: torch.Tensor, mesh: Any, placement: Placement) -> DTensor:
    if isinstance(placement, Shard):
        placement = Shard(placement.dim % y.dim())
    return DTensor.from_local(_Plain.apply(y), mesh, [placement], run_check=False)


class _Plain(torch.autograd.Function):
    """The tensor itself, and its gradient; waits for the collective that either may still come from."""

    @staticmethod
    def forward(ctx, x):
        return x.trigger_wait() if isinstance(x, AsyncCollectiveTensor) else x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.trigger_wait() if isinstance(g, AsyncCollectiveTensor) else g


__all__ = ["forward"]
