"""What a rank's loop sets beside the model, for ranks to compare at a backward: settings of its criterion since make_private(), which compared them then, and autocast of
its latest forward. Set otherwise on one rank they would have it clip gradients of another loss.

What a criterion sets itself when it is called (a counter, its latest loss) is a rank's own, and so are whole numbers, which may be extents of its batch.
"""

from __future__ import annotations

import hashlib
import types
from typing import Any

import torch
from torch import nn

from ...loaders.items_digest import content_digest

_PLAIN = (bool, float, str, types.NoneType)

Settings = dict[tuple[int, str], Any]
_NOTHING = object()


class SetAlike:
    """several: ranks, so that there is anything to compare."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._autocast: tuple[bool, str] | None = None
        self._criterions: list[CallsOfACriterion] = []
        self._digest, self._told = 0, ""

    def forward(self, device: torch.device) -> None:
        """One that is recorded begins."""
        if self._several:
            enabled = torch.is_autocast_enabled(device.type)
            self._autocast = enabled, str(torch.get_autocast_dtype(device.type)) if enabled else ""

    def follow(self, criterion: Any) -> CallsOfACriterion:
        found = CallsOfACriterion(criterion, watched=self._several)
        self._criterions.append(found)
        return found

    def digest(self) -> int:
        if not self._several:
            return 0
        told = repr((self._autocast, [each.set_otherwise for each in self._criterions]))
        if told != self._told:
            self._told, self._digest = told, int(hashlib.sha256(told.encode()).hexdigest()[:15], 16)
        return self._digest


class CallsOfACriterion:
    """Each call is made within `with` of this."""

    def __init__(self, criterion: Any, *, watched: bool):
        self._criterion, self._watched = criterion, watched
        self._first = self._now = self._settings()
        self._own: set[tuple[int, str]] = set()  # that it sets itself
        self.set_otherwise: list[tuple[tuple[int, str], str]] = []  # by the loop, than it was at first

    def __enter__(self) -> None:
        before, self._now = self._now, self._settings()
        if self._now != before and torch.is_grad_enabled():  # an evaluation's may be another
            changed = [(name, value) for name, value in self._now.items() if name not in self._own and self._first.get(name, _NOTHING) != value]
            self.set_otherwise = sorted((name, _told(value)) for name, value in changed)

    def __exit__(self, *_: Any) -> None:
        before, self._now = self._now, self._settings()
        if self._now != before:
            self._own |= {name for name in before.keys() | self._now.keys() if before.get(name, _NOTHING) != self._now.get(name, _NOTHING)}

    def _settings(self) -> Settings:
        return _settings_of(self._criterion) if self._watched else {}


def _settings_of(criterion: Any) -> Settings:
    """Plain ones; of torch's own criterions tensors too, by which they are."""
    found: Settings = {}
    parts = criterion.modules() if isinstance(criterion, nn.Module) else [criterion]
    for place, part in enumerate(parts):
        for name, value in getattr(part, "__dict__", {}).items():
            if type(value) in _PLAIN:
                found[place, name] = value
        if type(part).__module__.startswith("torch.nn."):
            found.update(((place, name), _Held(getattr(part, name))) for name in ("weight", "pos_weight") if isinstance(getattr(part, name, None), torch.Tensor))
    return found


class _Held:
    """A tensor, the same as long as nothing else stands in its place or was written to it."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor, self._version = tensor, tensor._version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.tensor is self.tensor and other._version == self._version

    __hash__ = object.__hash__


def _told(value: Any) -> str:
    return content_digest(value.tensor) if isinstance(value, _Held) else repr(value)


__all__ = ["SetAlike"]
