"""Layers under torch.autocast: values that it rounds are rounded before they are recorded, so that norms are of the values
that outputs and gradients come from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def dtype_of(x: torch.Tensor) -> torch.dtype | None:
    """What autocast rounds to where x is; None: it is off."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if x.is_floating_point() and torch.is_autocast_enabled(kind) else None


def in_lower_precision(x: torch.Tensor, *parameters: torch.Tensor | None) -> tuple:
    """x and parameters as autocast hands them to a linear layer or a convolution."""
    dtype = dtype_of(x)
    if dtype is None or x.dtype == torch.float64:
        return (x, *parameters)
    return (x.to(dtype), *(None if p is None else p.detach().to(dtype) for p in parameters))


def without_autocast(x: torch.Tensor) -> contextlib.AbstractContextManager:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else contextlib.nullcontext()


@contextlib.contextmanager
def as_in(state: tuple[str, torch.dtype, bool] | None) -> Iterator[None]:
    """Autocast as it was in a forward, for a computation in backward."""
    if state is None:
        yield
        return
    device, dtype, enabled = state
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False):
        yield


def state_of(x: torch.Tensor) -> tuple[str, torch.dtype, bool]:
    kind = x.device.type
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)


__all__ = ["as_in", "dtype_of", "in_lower_precision", "state_of", "without_autocast"]
