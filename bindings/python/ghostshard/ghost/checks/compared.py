"""Is a tensor what it was, or what nobody learns anything of beyond it?"""

from __future__ import annotations

import torch


def same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Bit by bit, up to a cast or another device; values that are no numbers equal each other."""
    if now.shape != before.shape:
        return False
    before = before.to(now)
    return bool(((now == before) | ((now != now) & (before != before))).all())


def post_processed(now: torch.Tensor, before: torch.Tensor, *, factor: bool = True) -> bool:
    """By one factor (unless that is left out), by bounds on all elements, or by rounding."""
    if now.shape != before.shape or not now.numel() or not now.is_floating_point():
        return False
    eps = torch.finfo(now.dtype).eps
    found, expected = now.double(), before.to(now).double()
    if torch.equal(found, expected.clamp(found.min(), found.max())) and found.min() < found.max():
        return True
    largest = expected.abs().max()
    at = expected.abs().argmax()
    # A product rounds once, and the factor read from the largest element once more: within 2 eps, twice that is taken.
    scaled = expected * (found[at] / expected[at])
    if factor and bool(((found - scaled).abs() <= 4 * eps * scaled.abs() + torch.finfo(now.dtype).tiny).all()) and now.numel() > 1:
        return True
    # Weights that are mixed and taken apart again round a few times. In half precision that is as large as a step, so it is not taken.
    return eps < 1e-6 and bool((found - expected).abs().max() <= 16 * eps * largest)


__all__ = ["post_processed", "same"]
