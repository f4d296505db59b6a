"""The rules of ghostshard.optim in float64 on whole values, one step at a time, for test_optim.py and its ranks."""

from __future__ import annotations

import math

import torch


def gradient(parameter: torch.Tensor, number: int, step: int, scale: float = 0.1) -> torch.Tensor:
    """Whole, the same in every process."""
    generator = torch.Generator().manual_seed(1000 * number + step)
    return scale * torch.randn(parameter.shape, generator=generator)


def adamw_step(weights, gradient, first, second, known, *, step, lr, betas, eps, weight_decay, variance, least, subtract):
    """Moments as state_dict() has them: second is over what `known`, the average variance so far, explains. All float64."""
    first = betas[0] * first + (1 - betas[0]) * gradient
    second = betas[1] * second + (1 - betas[1]) * (gradient**2 - variance)
    corrected = second / (1 - betas[1] ** step) + (0 if subtract else known)
    corrected = corrected.clamp(min=least * known)
    moved = first / (1 - betas[0] ** step) / (corrected.sqrt() + eps)
    return weights * (1 - lr * weight_decay) - lr * moved, first, second


def average_variance(variances: list[float], beta2: float) -> float:
    """With the weights that a second moment gives to squares."""
    weights = [beta2 ** (len(variances) - 1 - i) for i in range(len(variances))]
    return sum(w * v for w, v in zip(weights, variances)) / sum(weights)


def orthogonalised(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """By singular values: the polynomial acts on each by itself."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / torch.linalg.vector_norm(s)
    for _ in range(iterations):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


def muon_step(weights, gradient, momentum, *, lr, weight_decay, share, nesterov=True, pieces=(0, 1)):
    """All float64."""
    momentum = share * momentum + (1 - share) * gradient
    direction = share * momentum + (1 - share) * gradient if nesterov else momentum
    steps = [0.2 * math.sqrt(max(each.shape)) * orthogonalised(each) for each in direction.chunk(pieces[1], pieces[0])]
    return weights * (1 - lr * weight_decay) - lr * torch.cat(steps, pieces[0]), momentum
