"""The nearest matrix with orthogonal rows or columns, roughly (fsdp/optimizer/newton_schulz.h has the same in C++)."""

from __future__ import annotations

import torch

_A, _B, _C = 3.4445, -4.7750, 2.0315
_NO_NORM = 1e-30  # of a matrix that is zero for all purposes


def orthogonalised(matrix: torch.Tensor, iterations: int) -> torch.Tensor:
    """U·Vᵀ of the singular value decomposition U·S·Vᵀ, with singular values between 0.7 and 1.2 in place of 1, by a quintic
    Newton-Schulz iteration on matrix/‖matrix‖ (Jordan et al., Muon, 2024). matrix [p, d], or [n, p, d]: n matrices, each by itself;
    float32 or float64. A matrix of zeros stays one."""
    upright = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if upright else matrix
    x = x / x.square().sum((-2, -1), keepdim=True).sqrt().clamp(min=_NO_NORM)
    for _ in range(iterations):
        gram = x @ x.mT
        x = (gram @ gram * _C + gram * _B) @ x + x * _A
    return x.mT if upright else x
