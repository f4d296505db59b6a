"""The device of these tests (device_under_test.py), made ready. For scripts of their own process.

A device's maker gives PyTorch more than operations. For the emulated device (tests/emulation/device) the rest is here: the
module torch.emulated with streams and events (everything is done at once, so they do nothing), generators, and the
backend of torch.distributed ("staged", staged_backend.h). A default group that is made with this backend has no other, as with
NCCL.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from device_under_test import BACKEND, DEVICE, missing

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "ghost")]
BUILT = Path(os.environ.get("GHOSTSHARD_EMULATED", HERE.parents[2] / "build" / "release" / "python-emulated"))


def _module(name: str) -> Any:
    """One of the two modules in the file of the emulated engine."""
    file = next(BUILT.glob("engine.*.so"), None)
    if file is None:
        raise SystemExit(f"{BUILT} has no engine on the emulated device: `make build` builds it")
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stream(*_: Any, **__: Any) -> torch.Stream:
    """There is one, on which everything is done at once."""
    return torch.accelerator.current_stream()


def event(*_: Any, **__: Any) -> torch.Event:
    return torch.Event(DEVICE)


coins = torch.Generator().manual_seed(1)  # of layers that draw on the emulated device


def tossed(shape: torch.Size) -> torch.Tensor:
    """Uniform numbers of the device's own generator."""
    return torch.rand(shape, device=DEVICE) if DEVICE == "cuda" else torch.rand(shape, generator=coins).to(DEVICE)


class Cuda:
    """The part of a GPU that tests see."""

    @staticmethod
    def bytes_in_use() -> int:
        return torch.cuda.memory_allocated()


def take_cuda() -> type[Cuda]:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if why := missing(local_rank + 1):
        raise SystemExit(why)
    torch.cuda.set_device(local_rank)
    # A second pass must repeat the first (docs/cuda.md), and the oracle's tolerance is float32's.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return Cuda


def register_device() -> Any:
    """Returns the part of the device that tests see: the module emulated (emulated_module.cpp), or Cuda."""
    if DEVICE == "cuda":
        return take_cuda()
    emulated = _module("emulated")
    module = types.ModuleType(f"torch.{DEVICE}")
    module.__dict__.update(
        Stream=stream, Event=event, current_stream=stream, stream=contextlib.nullcontext, device=contextlib.nullcontext,
        is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False,
        device_count=lambda: 1, current_device=lambda: 0, set_device=lambda _: None, synchronize=lambda *_: None,
        get_rng_state=lambda *_: coins.get_state(), set_rng_state=lambda state, *_: coins.set_state(state),
        manual_seed_all=coins.manual_seed, get_amp_supported_dtype=lambda: [torch.bfloat16],
    )  # fmt: skip
    torch._register_device_module(DEVICE, module)
    # As for CUDA, a parameter stays the same object when its module is moved.
    torch.__future__.set_swap_module_params_on_conversion(True)

    def staged(store: dist.Store, rank: int, size: int, timeout: Any) -> Any:
        return emulated.staged_backend(dist.ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend(BACKEND, staged, devices=[DEVICE])
    return emulated


def take_engine() -> Any:
    """The engine that computes there, in the place of ghostshard's own, before that is loaded; for a GPU it is
    ghostshard's own, of the preset cuda."""
    if DEVICE == "cuda":
        return register_device()
    from ghostshard import _native

    name = "ghostshard._native.engine"
    assert name not in sys.modules
    sys.modules[name] = _native.engine = _module(name)
    return register_device()


def there(value: Any) -> Any:
    """The same on the device: tensors, and tuples, lists and dicts of them."""
    from ghostshard.ghost.tensor_trees import mapped

    return mapped(lambda tensor: tensor.to(DEVICE), value)


def here(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in found.items()}
