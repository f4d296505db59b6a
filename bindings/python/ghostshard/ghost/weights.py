"""A digest of a model's weights: a report names by it the model that a run began with, and the one that it released."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .device import computed_on

_WRAPPERS = ("module.", "_module.", "_orig_mod.")  # DistributedDataParallel's, Opacus' and ours, torch.compile's


def digest_of_weights(model: nn.Module | Iterable[tuple[str, nn.Parameter]]) -> str:
    """"sha256:" and 64 hexadecimal digits, of the names, types, shapes and values of all parameters, in the order of their names: the
    same on every number of ranks and every mesh, and for a model that was saved and loaded. Buffers are no part of it.

    A collective if the model is sharded (FSDP2, tensor parallelism): it gathers one parameter at a time.
    """
    named = dict(model.named_parameters() if isinstance(model, nn.Module) else model)
    named = _without_wrappers(named)
    digest = hashlib.sha256()
    for name in sorted(named):
        whole = _whole(named[name])
        for text in (name, str(whole.dtype), *map(str, whole.shape)):
            digest.update(f"{len(text)}:{text}".encode())
        if whole.numel():
            digest.update(whole.reshape(-1).view(torch.uint8).numpy())
    return f"sha256:{digest.hexdigest()}"


def _without_wrappers(named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    for wrapper in _WRAPPERS:
        if named and all(name.startswith(wrapper) for name in named):
            return _without_wrappers({name.removeprefix(wrapper): parameter for name, parameter in named.items()})
    return named


def _whole(parameter: nn.Parameter) -> torch.Tensor:
    """In host memory."""
    own = parameter.detach()
    if isinstance(own, DTensor):
        device = computed_on(parameter)
        if own.device != device:  # fully_shard offloads, and its mesh gathers on its own device
            own = DTensor.from_local(
                own.to_local().to(device), own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
            )
        own = own.full_tensor()
    return own.cpu().contiguous()


__all__ = ["digest_of_weights"]
