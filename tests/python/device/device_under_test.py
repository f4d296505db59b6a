"""The device that the tests of this folder run on: the emulated one, or with GHOSTSHARD_TEST_DEVICE=cuda a GPU.

    make test-gpu
    GHOSTSHARD_TEST_DEVICE=cuda GHOSTSHARD_MODULES=build/cuda/python .venv/bin/python -m pytest tests/python/device
"""

from __future__ import annotations

import os

# By device: the backend of torch.distributed that moves its tensors.
BACKENDS = {"emulated": "staged", "cuda": "nccl"}
DEVICE = os.environ.get("GHOSTSHARD_TEST_DEVICE", "emulated")
if DEVICE not in BACKENDS:
    raise ValueError(f"GHOSTSHARD_TEST_DEVICE must be one of {', '.join(BACKENDS)}, got {DEVICE!r}")
BACKEND = BACKENDS[DEVICE]


def missing(ranks: int = 1) -> str:
    """Why a test of that many ranks cannot run here, or "". Each rank of NCCL needs a GPU of its own."""
    if DEVICE == "emulated":
        return ""
    import torch

    found = torch.cuda.device_count()
    if found >= ranks:
        return ""
    return f"{ranks} rank(s) on NCCL need as many CUDA devices, and this machine has {found}"
