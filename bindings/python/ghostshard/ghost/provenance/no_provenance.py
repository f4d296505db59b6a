"""Batches that nobody follows."""

from __future__ import annotations

from typing import Any

import torch

from .drawn import plain
from .findings import Finding


class NoProvenance:
    """Of batches of the caller's own, which are charged as what they are at worst."""

    constants = None

    def read(self, args: tuple, kwargs: dict, *, batch_first: bool, recording: bool) -> tuple[tuple, dict]:
        return plain(args), plain(kwargs)

    def taken(self, tensors: list[torch.Tensor], read: list[torch.Tensor]) -> None:
        pass

    def read_layer(self, args: tuple, kwargs: dict, *, batch_first: bool) -> tuple[tuple, dict, None]:
        return plain(args), plain(kwargs), None

    def targets(self, args: tuple, kwargs: dict, beside: dict[str, Any] | None = None) -> tuple[tuple, dict, Finding]:
        return *plain((args, kwargs)), Finding(forward=False)

    def met(self, name: str, constant: Any) -> None:
        return None

    def losses(self, losses: torch.Tensor) -> torch.Tensor:
        return losses

    def mark(self, values: Any, finding: Finding | None = None) -> None:
        pass

    def give_back(self, output: Any, finding: Finding | None = None) -> Any:
        return output


__all__ = ["NoProvenance"]
