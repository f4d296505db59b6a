"""The directions of a matrix that stand out of known noise, all of one length. fsdp/optimizer.h derives edge and bias (MuonErrors)."""

from __future__ import annotations

import math

import torch


def orthogonalised_above(matrices: torch.Tensor, variance: float, *, corrected: bool) -> torch.Tensor:
    """matrices [n, p, d], whose elements are off by independent noise of this variance, > 0. Of each U·Vᵀ over the singular values above
    √variance·(√p + √d + 2); corrected: each direction times 1 + variance·b_i, at most 2."""
    p, d = matrices.shape[-2:]
    u, values, v = torch.linalg.svd(matrices, full_matrices=False)
    above = values > math.sqrt(variance) * (math.sqrt(p) + math.sqrt(d) + 2)
    lengths = above.to(values.dtype)
    if corrected:
        s = torch.where(above, values, torch.ones_like(values))  # no quotients by what is left out
        pairs = (s.unsqueeze(-1) + values.unsqueeze(-2)).pow(-2).sum(-1) - (2 * s).pow(-2)
        lengths = lengths * (1 + variance * (pairs + s.pow(-2) * (abs(d - p) / 2))).clamp(max=2)
    result: torch.Tensor = u * lengths.unsqueeze(-2) @ v
    return result
