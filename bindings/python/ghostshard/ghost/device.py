"""The device that a model computes on, and whether this build has kernels for it.

One rank computes on one device: weights, rows, norms, noise and gradients are on it. Values that ranks agree on (outcomes,
keys, checkpoints, the ledger) stay in host memory and go over Gloo.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .. import _native
from .layout import Layout


def device_of(layout: Layout) -> torch.device:
    """The device of all of the model's parameters. ValueError if they are on several devices, hold no values, or if this build
    has no kernels for the device."""
    first, device = layout.parameters[0], computed_on(layout.parameters[0].parameter)
    for entry in layout.parameters:
        here = computed_on(entry.parameter)
        if here.type == "meta":
            raise ValueError(
                f"parameter {entry.name!r} is on device meta, where it has no values: materialise the model (to_empty(), then "
                "initialise or load it) before make_private()"
            )
        if here != device:
            raise ValueError(
                f"all parameters of a model must be on one device, but {first.name!r} is on {device} and {entry.name!r} on {here}"
            )
    if device.type != "cpu" and not _native.load("engine").has_kernels(device):
        raise ValueError(
            f"the model is on {device}, but this build of ghostshard has no kernels for {device.type}: it was built without "
            "nvcc or for a PyTorch without CUDA. Build it with both (docs/cuda.md), or move the model to the CPU"
        )
    return device


def computed_on(parameter: nn.Parameter) -> torch.device:
    """The device on which layers find it. fully_shard may keep a rank's rows in host memory and gather them on its mesh's
    device."""
    if not isinstance(parameter, DTensor):
        return parameter.device
    own, kind = parameter.device, parameter.device_mesh.device_type
    if own.type in (kind, "meta"):
        return own
    return torch.device(kind, torch.get_device_module(kind).current_device())


def device_of_all(layout: Layout, control: Any) -> torch.device:
    """This rank's device_of(), of one kind on all ranks. A collective over control, which every rank reaches even if its own
    model is wrong: all ranks raise one rank's error."""
    device, wrong = None, None
    try:
        device = device_of(layout)
    except Exception as error:  # of whatever kind: the other ranks wait for this one's device
        wrong = error
    found: list = [None] * dist.get_world_size(control)
    dist.all_gather_object(found, (None if device is None else device.type, None if wrong is None else str(wrong)), group=control)
    if wrong is not None and not isinstance(wrong, (ValueError, ImportError)):
        raise wrong
    for rank, (_, sentence) in enumerate(found):
        if sentence is not None:
            raise ValueError(sentence if wrong is not None and sentence == str(wrong) else f"rank {rank}: {sentence}")
    kinds = [kind for kind, _ in found]
    if len(set(kinds)) > 1:
        other = next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
        raise ValueError(
            f"all ranks must compute on one kind of device, but rank 0 does on {kinds[0]} and rank {other} on {kinds[other]}"
        )
    assert device is not None
    return device


def backend_for(device: torch.device, mesh_ranks: int) -> str:
    """The backend that sums of gradients travel over: Gloo between CPUs, else the device's own (NCCL). ValueError if there is
    none, or if the default group would have to be split."""
    if device.type == "cpu":
        return "gloo"
    default = dist.group.WORLD
    bound = None if default is None else default.bound_device_id
    if bound is not None and mesh_ranks != dist.get_world_size():
        # Its communicator would be split, and all its ranks must call that, even those that have no part in the model.
        raise ValueError(
            f"the default group is bound to {bound} (init_process_group(device_id=...)), so groups of the model's "
            f"{mesh_ranks} ranks would be split from all {dist.get_world_size()}: leave device_id out, or shard over all ranks"
        )
    try:
        backend = dist.get_default_backend_for_device(device)
    except ValueError:
        backend = ""
    if not backend or not dist.is_backend_available(backend):
        raise ValueError(
            f"ranks on {device} need a backend of torch.distributed for {device.type} (NCCL for CUDA), and this PyTorch has "
            f"{backend + ' not built in' if backend else 'none'}"
        )
    return backend


__all__ = ["backend_for", "computed_on", "device_of", "device_of_all"]
