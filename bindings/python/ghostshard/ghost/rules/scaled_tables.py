"""Embeddings of a class of its own whose forward is the lookup, times one number. As layers without a rule they would be right, but a head could not be tied
to them: a parameter's norm over two layers is known of a lookup and a linear layer alone."""

from __future__ import annotations

import torch
from torch import nn

from ..layout import original_class, own_parameters
from .layer import Layer, Rule
from .layers import embedding
from .skeleton import skeleton

_ROWS = 5


def scaled_lookup(layer: Layer, input: torch.Tensor) -> torch.Tensor:
    """The number is asked for at each call, of a table that has nothing to do with the batch: it may be annealed."""
    with torch.no_grad():
        scale = _looked_up(layer.module, _table(layer.value("weight")))[0, 1, 0]
    return embedding(layer, input) * scale


def scaled_rule(module: nn.Module) -> Rule | None:
    """scaled_lookup, if outputs and gradients of a table of ours prove that it is what the class's forward does."""
    if not isinstance(module, nn.Embedding) or original_class(module) is nn.Embedding or module.max_norm is not None or module.scale_grad_by_freq:
        return None
    if [name for name, _ in own_parameters(module)] != ["weight"] or any(True for child in module.children() for _ in child.parameters()):
        return None
    device = module.weight.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        table = _table(module.weight).requires_grad_()
        try:
            found = _looked_up(module, table)
            (gradient,) = torch.autograd.grad(found.sum(), table)
        except Exception:  # it does something else
            return None
    return scaled_lookup if _is_scaled(table.detach(), found.detach(), gradient, module.padding_idx is not None) else None


def _ids(device: torch.device) -> torch.Tensor:
    """Each row at two places, of two texts."""
    order = torch.arange(_ROWS, device=device)
    return torch.stack([order, order.flip(0)])


def _table(weight: torch.Tensor) -> torch.Tensor:
    """Of rows of many sizes. [1, 0] is 1, so that its output is the scale."""
    sizes = torch.tensor([[0.5], [1.0], [16.0], [1 / 64], [0.25]], dtype=torch.float32, device="cpu")
    table = torch.randn(_ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu") * sizes
    table[1, 0] = 1
    return table.to(weight.device, weight.dtype)


def _looked_up(module: nn.Module, table: torch.Tensor) -> torch.Tensor:
    bare = skeleton(module)
    bare._parameters = {"weight": table}
    bare.__dict__["padding_idx"] = None if module.padding_idx is None else 0
    return bare.forward(_ids(table.device))


def _is_scaled(table: torch.Tensor, found: torch.Tensor, gradient: torch.Tensor, padded: bool) -> bool:
    if found.shape != (2, _ROWS, table.shape[1]) or found.dtype != table.dtype:
        return False
    scale = found[0, 1, 0]
    expected = table[_ids(table.device)] * scale
    counts = 2 * scale * torch.ones_like(gradient)
    if padded:
        counts[0] = 0
    near = 4 * torch.finfo(table.dtype).eps
    return bool(scale != 0) and torch.allclose(found, expected, rtol=near, atol=0) and torch.allclose(gradient, counts, rtol=near, atol=0)


__all__ = ["scaled_lookup", "scaled_rule"]
