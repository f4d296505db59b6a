"""Weights that LoRA's adapters were merged into and taken out of again (PEFT's merge_adapter(), unmerge_adapter()): sums in half precision do
not come back to what they were, but what they come to follows from the weights and the adapters alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .compared import same

_TIMES = 4  # as often between two steps
_MOST = 4  # adapters of which some may have been merged, in any order


class _Delta(NamedTuple):
    """What PEFT adds for one adapter, and takes away."""

    value: torch.Tensor
    rounded: bool  # to the weights' precision before it is taken away, and before it is added by merge_adapter(safe_merge=True)


def merged_and_unmerged(model: nn.Module, parameter: nn.Parameter, places: torch.Tensor, now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a parameter that was `before` at these places is `now` what PEFT's own sums make of it. Its adapters are parameters of the
    run, which are looked at by themselves. Sharded ones are not asked: a rank that computed alone would wait for the others."""
    found: list[dict[str, _Delta]] = []  # of each layer that has the parameter, in the order of PEFT
    for layer, attribute in _layers_of(model, parameter):
        of_it = list(layer.parameters())
        if any(isinstance(each, DTensor) or each.is_meta for each in of_it):
            return False
        given = [each.data for each in of_it]  # in half precision PEFT puts other tensors in the place of its adapters
        with torch.no_grad():
            found.append({name: _delta(layer, name, attribute, places) for name in _adapters_of(layer, attribute)})
        for each, data in zip(of_it, given, strict=True):
            if each.data_ptr() != data.data_ptr():
                each.data = data
    return any(_comes_to(now, before, deltas, safe) for deltas in _merged(found) for safe in (False, True))


def has_adapters(model: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether it is a weight or bias under LoRA's adapters, which may be merged into it."""
    return any(True for _ in _layers_of(model, parameter))


def _merged(found: list[dict[str, _Delta]]) -> Iterator[list[list[_Delta]]]:
    """The active adapters, or those that merge_adapter(adapter_names=...) may have named."""
    names = list(dict.fromkeys(name for of_layer in found for name in of_layer))
    some = [names] if len(names) > _MOST else [each for count in range(len(names), 0, -1) for each in permutations(names, count)]
    for each in some:
        yield [[of_layer[name] for name in each if name in of_layer] for of_layer in found]


def _comes_to(now: torch.Tensor, before: torch.Tensor, deltas: list[list[_Delta]], safe: bool) -> bool:
    value = before.to(now.dtype).clone()
    for _ in range(_TIMES):
        for delta in (delta for of_layer in deltas for delta in of_layer):
            value += delta.value.to(value.dtype) if safe and delta.rounded else delta.value
        for delta in (delta for of_layer in deltas for delta in reversed(of_layer)):
            value -= delta.value.to(value.dtype) if delta.rounded else delta.value
        if same(now, value):
            return True
    return False


def _layers_of(model: nn.Module, parameter: nn.Parameter) -> Iterator[tuple[nn.Module, str]]:
    """PEFT's own classes, as they are, without adapters of other kinds (DoRA), and whether the parameter is their base layer's weight or bias."""
    for layer in model.modules():
        if type(layer).__module__.startswith("peft.tuners.lora.") and "get_delta_weight" not in vars(layer) and not getattr(layer, "lora_variant", None):
            base = layer.get_base_layer() if hasattr(layer, "get_base_layer") else None
            for attribute in ("weight", "bias"):
                if getattr(base, attribute, None) is parameter:
                    yield layer, attribute


def _adapters_of(layer: nn.Module, attribute: str) -> Iterable[str]:
    """The active ones first."""
    of_weight = [*getattr(layer, "lora_A", ()), *getattr(layer, "lora_embedding_A", ())]
    having = of_weight if attribute == "weight" else [name for name in of_weight if layer.lora_bias.get(name)]
    return sorted(having, key=lambda name: layer.active_adapters.index(name) if name in layer.active_adapters else len(having))


def _delta(layer: nn.Module, name: str, attribute: str, places: torch.Tensor) -> _Delta:
    if attribute == "weight":
        return _Delta(layer.get_delta_weight(name).reshape(-1)[places].to("cpu"), rounded=True)
    return _Delta((layer.lora_B[name].bias * layer.scaling[name])[places].to("cpu"), rounded=False)


__all__ = ["has_adapters", "merged_and_unmerged"]
