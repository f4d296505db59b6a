"""PyTorch Geometric's layers, of graphs laid end to end: a row is a node, and is the graph's that segment_ids name."""

from __future__ import annotations

from typing import Any

import torch

from .any_layer import per_example
from .layer import Layer, register_rule
from .layers import linear

register_rule("torch_geometric:Linear")(linear)  # a class of its own for x Wᵀ + b

_MEET_NODES = {"bias", "att_src", "att_dst", "eps"}  # element by element; any other may meet edges


@register_rule(*(f"torch_geometric:{name}Conv" for name in ("GCN", "GAT", "GIN", "TAG", "Cheb")))
def message_passing(layer: Layer, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The layer's own forward, with a copy of each of its vectors for each node. Its linear layers are recorded by themselves."""
    own = layer.module._parameters
    before = {name: value for name, value in own.items() if value is not None}
    if not (layer.packed and isinstance(x, torch.Tensor) and before.keys() <= _MEET_NODES):
        return per_example(layer, x, *args, **kwargs)
    try:
        own.update({name: _of_each_node(layer, name, value, x) for name, value in before.items()})
        return layer.original(x, *args, **kwargs)
    finally:
        own.update(before)


def _of_each_node(layer: Layer, name: str, value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[K] or [1, ...] as [nodes, K] or [nodes, ...]: a scale of ones, whose gradient is recorded row by row."""
    ones = value.new_ones(x.shape[0], value.numel())
    rows = layer.session.affine(layer.number(name), -1, ones, layer.value(name).flatten(), None)
    return rows.view(-1, *(value.shape[1:] if value.dim() > 1 else value.shape))
