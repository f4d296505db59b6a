"""A few elements of each of many tensors, kept side by side: to compare them all is one wait for a device, not one for each tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

from ..own_part import comparable

_MOST = 64  # elements of a tensor, side by side


class Views:
    """Views of some elements of many tensors, made once: a tensor that stands where it stood costs a look at its address. (A view keeps the memory, so that
    no other tensor comes to stand there.) some_of: gives a view, of a tensor without gaps, or a copy, of other ones."""

    def __init__(self, some_of: Callable[[torch.Tensor], torch.Tensor]):
        self._some_of = some_of
        self._made: dict[Hashable, tuple[int, torch.Size, torch.dtype, torch.Tensor]] = {}  # with the address, 0 for a copy

    @torch.no_grad()
    def of(self, named: Iterable[tuple[Any, torch.Tensor]]) -> list[tuple[Any, torch.Tensor]]:
        """Of each tensor, which no gradient follows; keys are unlike each other. Views of others are dropped."""
        found, before = {}, self._made
        for key, value in named:
            made = before.get(key)
            address = value.data_ptr() if value.is_contiguous() else 0  # the same memory may be read in other strides
            if made is None or address == 0 or made[:3] != (address, value.shape, value.dtype):
                made = (address, value.shape, value.dtype, self._some_of(value))
            found[key] = made
        self._made = found
        return [(key, made[3]) for key, made in found.items()]


class Samples:
    """A copy, made without a wait. views: some elements of each tensor, by a key of its own."""

    @torch.no_grad()
    def __init__(self, views: Iterable[tuple[Any, torch.Tensor]]):
        parts: dict[tuple[torch.device, torch.dtype], list[tuple[Any, torch.Tensor]]] = {}
        self._kinds = {}  # as the caller orders them
        for key, view in views:
            kind = (view.device, view.dtype)
            parts.setdefault(kind, []).append((key, comparable(view)))
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


def side_by_side(value: torch.Tensor) -> torch.Tensor:
    """For Samples, at places that follow from the extent alone."""
    size = value.numel()
    first = size // 3 if size > 2 * _MOST else 0
    return value.reshape(-1).narrow(0, first, min(_MOST, size - first))


__all__ = ["Samples", "Views", "side_by_side"]
