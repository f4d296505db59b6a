"""units= of a forward: whose each row of the batch is."""

from __future__ import annotations

from typing import Any

import torch


def owners_given(units: Any) -> Any:
    """units= as a tensor, also of a list of numbers, or of one with the tensor in it. ValueError for anything else."""
    if isinstance(units, (list, tuple)) and len(units) == 1 and isinstance(units[0], torch.Tensor) and units[0].dim() > 0:
        units = units[0]
    if isinstance(units, torch.Tensor):
        return units
    try:
        return torch.as_tensor(units)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"units= must be a tensor, or a list, with one whole number for each row of the batch: whose the row is (units=torch.arange(n).repeat(2) if "
            f"the rows of n examples come twice, one after another), got a {type(units).__name__} that is none"
        ) from error


__all__ = ["owners_given"]
