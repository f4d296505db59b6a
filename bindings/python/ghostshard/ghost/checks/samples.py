"""A few elements of each of many tensors, kept side by side: to compare them all is one wait for a device, not one for each tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from ..own_part import comparable

_MOST = 64  # elements of a tensor, side by side


class Samples:
    """A copy, made without a wait. named: (key, tensor that no gradient follows); keys are unlike each other."""

    @torch.no_grad()
    def __init__(self, named: Iterable[tuple[Any, torch.Tensor]]):
        parts: dict[tuple[torch.device, torch.dtype], list[tuple[Any, torch.Tensor]]] = {}
        self._kinds = {}  # as the caller orders them
        for key, value in named:
            kind = (value.device, value.dtype)
            parts.setdefault(kind, []).append((key, _some_of(value)))
            self._kinds[key] = kind
        self._counts = {kind: [(key, part.numel()) for key, part in of_kind] for kind, of_kind in parts.items()}
        self._values = {kind: torch.cat([part for _, part in of_kind]) for kind, of_kind in parts.items()}

    @property
    def empty(self) -> bool:
        return not self._kinds

    def same_as(self, other: Samples) -> bool:
        """The same keys, types, devices and values; False where a value is no number."""
        return self._counts == other._counts and all(torch.equal(values, other._values[kind]) for kind, values in self._values.items())

    def of_each(self) -> dict[Any, torch.Tensor]:
        """On the host."""
        found = {}
        for kind, counts in self._counts.items():
            parts = self._values[kind].cpu().split([count for _, count in counts])
            found |= {key: part for (key, _), part in zip(counts, parts, strict=True)}
        return {key: found[key] for key in self._kinds}

    def digest(self) -> bytes:
        """Of keys and values, in the caller's order."""
        found = hashlib.blake2b(digest_size=16)
        for key, value in self.of_each().items():
            found.update(repr(key).encode())
            found.update(value.contiguous().view(torch.uint8).numpy())
        return found.digest()


def _some_of(value: torch.Tensor) -> torch.Tensor:
    """At places that follow from the extent alone. A view, of a tensor without gaps."""
    size = value.numel()
    first = size // 3 if size > 2 * _MOST else 0
    return comparable(value.reshape(-1).narrow(0, first, min(_MOST, size - first)))


__all__ = ["Samples"]
