"""Batches that nobody follows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from ..tensor_trees import first_tensor
from .drawn import plain
from .findings import Finding, mark


class NoProvenance:
    """Of batches of the caller's own, which are charged as what they are at worst."""

    constants = None
    entries: dict = {}
    listed: frozenset = frozenset()
    own: tuple = ()
    _latest: Finding | None = None

    def __init__(self) -> None:
        self.lengths: set = set()

    def read(self, args: tuple, kwargs: dict, *, batch_first: bool, recording: bool, owning: Collection[str]) -> tuple[tuple, dict]:
        args, kwargs = plain(args), plain(kwargs)
        if recording:
            self._latest = Finding(examples=first_tensor(args, kwargs))
        return args, kwargs

    @property
    def latest(self) -> Finding | None:
        return self._latest

    def hand_in(self, own: tuple[torch.Tensor, ...]) -> None:
        pass

    def taken(self, tensors: list[torch.Tensor], read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        pass

    def read_layer(self, args: tuple, kwargs: dict, *, batch_first: bool) -> tuple[tuple, dict, Finding | None]:
        args, kwargs = plain(args), plain(kwargs)
        examples = first_tensor(args, kwargs)
        derived = examples is None or examples.grad_fn is not None
        return args, kwargs, None if derived else Finding(examples=examples)

    def targets(self, args: tuple, kwargs: dict, beside: dict[str, Any] | None = None) -> tuple[tuple, dict, Finding]:
        return *plain((args, kwargs)), Finding(forward=False)

    def met(self, name: str, *constants: Any) -> None:
        return None

    def losses(self, losses: torch.Tensor) -> torch.Tensor:
        return losses

    def mark(self, values: Any, finding: Finding | None = None) -> None:
        finding = finding or self._latest
        if finding is not None:
            mark(values, finding)

    def opened(self) -> bool:
        return False

    def give_back(self, output: Any, finding: Finding | None = None) -> Any:
        return output

    def gave(self, given: Any) -> None:
        pass

    def within_layer(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return plain(args), plain(kwargs)

    def formed(self, losses: torch.Tensor, found: Finding) -> tuple[torch.Tensor, Finding]:
        return plain(losses), found


__all__ = ["NoProvenance"]
