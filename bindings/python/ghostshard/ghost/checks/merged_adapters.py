"""Weights that LoRA's adapters were merged into and taken out of again (PEFT's merge_adapter(), unmerge_adapter()): sums in half precision do
not come back to what they were, but what they come to follows from the weights and the adapters alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .compared import same

_TIMES = 4  # as often between two steps


def merged_and_unmerged(model: nn.Module, parameter: nn.Parameter, places: torch.Tensor, now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a parameter that was `before` at these places is `now` what PEFT's own sums make of it. Its adapters are parameters of the
    run, which are looked at by themselves. Sharded ones are not asked: a rank that computed alone would wait for the others."""
    for layer in _layers_of(model, parameter):
        of_it = list(layer.parameters())
        if any(isinstance(each, DTensor) or each.is_meta for each in of_it):
            return False
        given = [each.data for each in of_it]  # in half precision PEFT puts other tensors in the place of its adapters
        with torch.no_grad():
            deltas = [layer.get_delta_weight(name).reshape(-1)[places].to("cpu") for name in layer.active_adapters if name in layer.lora_A]
        for each, data in zip(of_it, given, strict=True):
            if each.data_ptr() != data.data_ptr():
                each.data = data
        if deltas and any(_comes_to(now, before, deltas, safe) for safe in (False, True)):
            return True
    return False


def _comes_to(now: torch.Tensor, before: torch.Tensor, deltas: list[torch.Tensor], safe: bool) -> bool:
    """safe: as of merge_adapter(safe_merge=True), which rounds an adapter before it is added."""
    value = before.to(now.dtype).clone()
    for _ in range(_TIMES):
        for delta in deltas:
            value += delta.to(value.dtype) if safe else delta
        for delta in reversed(deltas):
            value -= delta.to(value.dtype)
        if same(now, value):
            return True
    return False


def _layers_of(model: nn.Module, parameter: nn.Parameter) -> Iterator[nn.Module]:
    """PEFT's own classes, as they are, without adapters of other kinds (DoRA)."""
    for layer in model.modules():
        if type(layer).__module__.startswith("peft.tuners.lora.") and "get_delta_weight" not in vars(layer) and not getattr(layer, "lora_variant", None):
            if getattr(layer.get_base_layer() if hasattr(layer, "get_base_layer") else None, "weight", None) is parameter:
                yield layer


__all__ = ["merged_and_unmerged"]
