"""Models that read an embedding's weight as a whole table: they look its rows up instead, so that the embedding's rule sees it."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

from ..layout import original_class

_ENCODERS = ("DebertaEncoder", "DebertaV2Encoder", "SEWDTransformerEncoder")


def look_up_tables(module: nn.Module) -> str | None:
    """Replaces a method of the instance; its name, to be deleted afterwards. None: this module reads none."""
    kind = original_class(module)
    if kind.__name__ not in _ENCODERS or not kind.__module__.startswith("transformers.") or "get_rel_embedding" in vars(module):
        return None
    module.get_rel_embedding = _Lookup(module)
    return "get_rel_embedding"


class _Lookup:
    """DeBERTa's table of relative places, and SEW-D's. A copy of the module gets its class's method back."""

    def __init__(self, encoder: Any):
        self._encoder = encoder

    def __call__(self) -> torch.Tensor | None:
        encoder = self._encoder
        if not encoder.relative_attention:
            return None
        table = encoder.rel_embeddings
        rows = table(torch.arange(table.num_embeddings, device=table.weight.device))
        return encoder.LayerNorm(rows) if "layer_norm" in getattr(encoder, "norm_rel_ebd", ()) else rows

    def __reduce__(self) -> tuple:
        return _own_method, (self._encoder,)


def _own_method(encoder: Any) -> Any:
    return types.MethodType(original_class(encoder).get_rel_embedding, encoder)


__all__ = ["look_up_tables"]
