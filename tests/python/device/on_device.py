"""The emulated device (tests/emulated_device) as PyTorch's: its name is "emulated". For scripts of their own process.

What a device's maker gives PyTorch beside its operations is here: the module torch.emulated with streams and events
(everything is done at once, so they do nothing), generators, and the backend of torch.distributed ("staged",
staged_backend.h), which is all that a default group has that is made with it, as with NCCL.
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

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "ghost")]
BUILT = Path(os.environ.get("GHOSTSHARD_EMULATED", HERE.parents[2] / "build" / "release" / "python-emulated"))
DEVICE = "emulated"


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


coins = torch.Generator().manual_seed(1)  # of layers that draw on the device


def register_device() -> Any:
    """Returns the module emulated (emulated_module.cpp)."""
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

    dist.Backend.register_backend("staged", staged, devices=[DEVICE])
    return emulated


def take_emulated_engine() -> Any:
    """The engine that computes there, in the place of ghostshard's own. Before that is loaded."""
    from ghostshard import _native

    name = "ghostshard._native.engine"
    assert name not in sys.modules
    sys.modules[name] = _native.engine = _module(name)
    return register_device()


def there(value: Any) -> Any:
    """The same on the device: tensors, and tuples, lists and dicts of them."""
    from ghostshard.ghost.nested import mapped

    return mapped(lambda tensor: tensor.to(DEVICE), value)


def here(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in found.items()}
