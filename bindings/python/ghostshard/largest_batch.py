"""make_private(max_batch_size=…): what it needs, and the accountant that counts its steps as what they are."""

from __future__ import annotations

import warnings
from typing import Any

from .loaders import SamplingPlan

__all__ = ["settle"]


def settle(plan: SamplingPlan, accountant: Any, *, clipping: str, registered: bool) -> None:
    """From here on the accountant counts the plan's steps. ValueError for what truncated batches are not accounted with."""
    if not hasattr(accountant, "truncate"):
        if plan.cap is not None:
            raise ValueError(
                f"the accountant {accountant.mechanism()!r} cannot bound truncated batches: max_batch_size needs "
                'PrivacyEngine(accountant="contour")'
            )
        return
    if plan.cap is not None and clipping == "adaptive":
        raise ValueError("a clip norm that adapts is accounted for batches that are not truncated: leave max_batch_size out")
    if plan.cap is not None and registered:
        raise ValueError(
            "from Python a budget register counts steps without a largest batch: leave max_batch_size out, or attach_register()"
        )
    if plan.cap is not None and accountant.mechanism() == "prv":
        warnings.warn(
            'the accountant "prv" bounds truncated batches loosely, and perhaps not at all: PrivacyEngine(accountant="contour") does tightly',
            stacklevel=4,
        )
    accountant.truncate(plan.truncation)
