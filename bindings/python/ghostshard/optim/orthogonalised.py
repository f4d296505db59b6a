"""The nearest matrix with orthogonal rows or columns, roughly (fsdp/optimizer/orthogonalised.h has the same in C++, and its derivation)."""

from __future__ import annotations

import torch

_SCALE = 1.005026932199671
_TERMS = ((0.007160781732628843, 1.0859059552656642e-05), (0.1667085608339056, 0.006898374965843688))  # weight, pole
_NO_NORM = 1e-30  # of a matrix that is zero for all purposes
_NO_SQUARE = 1e-10  # of the Gram matrix of zeros; others have a trace of 1
_BAND = 64  # rows
_BLOCK = 64  # rows that one Cholesky decomposition takes
_ALONE = 256  # rows from which on one matrix fills the cache


def orthogonalised(matrix: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """scale·U·Vᵀ of the singular value decomposition U·S·Vᵀ, with singular values between 0.82 and 1.18 in place of 1, from 0.0014 times
    (Σs_i⁴)^(1/4) on. matrix [p, d], or [n, p, d]: n matrices, each by itself; float32 or float64. A matrix of zeros stays one; NaN or
    infinity anywhere is NaN everywhere."""
    shorter, longer = sorted(matrix.shape[-2:])
    if matrix.dim() == 3 and matrix.device.type == "cpu" and shorter >= _ALONE:
        return torch.stack([orthogonalised(one, scale) for one in matrix])
    upright = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if upright else matrix
    x = x / _sum_of_squares(x).sqrt().clamp(min=_NO_NORM)
    factor = _factor(_gram(x), x.dtype) if longer >= 2 * shorter else None
    if factor is None:
        factor = _factor(_gram(x.double()), x.dtype)
    if factor is None:
        return torch.full_like(matrix, float("nan"))
    x = factor.mul_(scale) @ x
    return x.mT if upright else x


def _sum_of_squares(x: torch.Tensor) -> torch.Tensor:
    """By rows first: no number of threads changes its order."""
    return x.square().sum(-1, keepdim=True).sum(-2, keepdim=True)


def _gram(x: torch.Tensor) -> torch.Tensor:
    """x·xᵀ, its lower triangle, in bands of rows."""
    rows = x.shape[-2]
    gram = x.new_zeros(*x.shape[:-2], rows, rows)
    for first in range(0, rows, _BAND):
        end = min(first + _BAND, rows)
        torch.matmul(x[..., first:end, :], x[..., :end, :].mT, out=gram[..., first:end, :end])
    return gram.tril_()


def _factor(gram: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """What x, of this dtype, is multiplied by; None if a shifted Gram matrix is not positive definite."""
    norm = (2 * _sum_of_squares(gram) - _sum_of_squares(gram.diagonal(0, -2, -1).unsqueeze(-1))).sqrt().clamp(min=_NO_SQUARE)
    total = torch.zeros_like(gram, dtype=dtype)
    for (weight, pole), of_pole in zip(_TERMS, (gram.dtype, dtype), strict=True):
        shifted = gram.to(of_pole, copy=True)
        shifted.diagonal(0, -2, -1).add_(norm.squeeze(-1), alpha=pole)
        inverse = _inverse(shifted)
        if inverse is None:
            return None
        total.add_(inverse.mul_((norm * weight).to(of_pole)))
    total.diagonal(0, -2, -1).add_(1)
    return total.mul_((norm.rsqrt() * _SCALE).to(dtype))


def _inverse(symmetric: torch.Tensor) -> torch.Tensor | None:
    """Of symmetric positive definite matrices, whose lower triangles are read; None if one is not. By halves: with the blocks A, B (below
    A) and D, W = B·A⁻¹ and S = D − W·Bᵀ, the inverse has the blocks A⁻¹ + Wᵀ·S⁻¹·W, −S⁻¹·W and S⁻¹."""
    half = symmetric.shape[-1] // 2
    if symmetric.shape[-1] <= _BLOCK:
        factor, failed = torch.linalg.cholesky_ex(symmetric)
        return None if bool(failed.any()) else torch.cholesky_inverse(factor)
    first = _inverse(symmetric[..., :half, :half])
    if first is None:
        return None
    beside = symmetric[..., half:, :half]
    product = beside @ first
    second = _inverse(symmetric[..., half:, half:] - product @ beside.mT)
    if second is None:
        return None
    across = (second @ product).neg_()
    above = torch.cat([first - product.mT @ across, across.mT], -1)
    return torch.cat([above, torch.cat([across, second], -1)], -2)
