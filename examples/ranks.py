"""The start of each example: which device each rank trains on, and the group of all ranks."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ghostshard import _native


def add_device_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto",
        help="cuda: each rank takes the GPU of its number on its host; auto: the same if there is one for each and this "
        "build of ghostshard has kernels for it, otherwise the CPU",
    )  # fmt: skip


def device_of_this_rank(wanted: str) -> torch.device:
    """The CPU, or this rank's GPU. ValueError if GPUs are wanted, but this host has fewer than ranks, or no kernels for them."""
    if wanted == "cpu":
        return torch.device("cpu")
    ranks, found = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if found < ranks:
        if wanted == "auto":
            return torch.device("cpu")
        raise ValueError(
            f"--device cuda: each of the {ranks} rank(s) here needs a CUDA device of its own, this machine has {found}"
        )
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if not _native.load("engine").has_kernels(own):
        if wanted == "auto":
            return torch.device("cpu")
        raise ValueError("--device cuda: this build of ghostshard has no CUDA kernels (docs/cuda.md says how to get them)")
    return own


def meet(parser: argparse.ArgumentParser, wanted: str) -> tuple[torch.device, DeviceMesh]:
    """Starts the default group; returns this rank's device and the mesh of all ranks. Exits with a sentence if there is no such
    device."""
    try:
        device = device_of_this_rank(wanted)
    except ValueError as error:
        parser.error(str(error))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    # Explicit, because fully_shard by itself would take the GPU on a machine that has one.
    return device, init_device_mesh(device.type, (dist.get_world_size(),))
