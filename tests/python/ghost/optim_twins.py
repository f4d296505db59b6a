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


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """By singular values: the rational function acts on each by itself."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    x = s / torch.linalg.vector_norm(s, ord=4, dim=-1, keepdim=True)
    x = 1.005026932199671 * x * (1 + 0.007160781732628843 / (x**2 + 1.0859059552656642e-05) + 0.1667085608339056 / (x**2 + 0.006898374965843688))
    return (u * x.unsqueeze(-2)) @ v


def muon_step(weights, gradient, momentum, *, lr, weight_decay, share, nesterov=True, pieces=(0, 1)):
    """All float64."""
    momentum = share * momentum + (1 - share) * gradient
    direction = share * momentum + (1 - share) * gradient if nesterov else momentum
    steps = [0.2 * math.sqrt(max(each.shape)) * orthogonalised(each) for each in direction.chunk(pieces[1], pieces[0])]
    return weights * (1 - lr * weight_decay) - lr * torch.cat(steps, pieces[0]), momentum


class Tile:
    """Shampoo and SOAP for one tile, in float64, from the formulas of ghostshard/optim/shampoo.py."""

    def __init__(self, shape, *, betas=(0.9, 0.99), eps=1e-8, factor_beta=0.9, refresh_every=2, noise_floor=0.1):
        self.options = betas, eps, factor_beta, refresh_every, noise_floor
        self.gradients: list[torch.Tensor] = []
        self.variances: list[float] = []
        self.second = torch.zeros(shape, dtype=torch.float64)
        self.roots = self.bases = None

    def average(self, values: list[torch.Tensor], beta: float) -> torch.Tensor:
        """From the beginning, with weights that add up to 1."""
        weights = [beta ** (len(values) - 1 - i) for i in range(len(values))]
        return sum(w * v for w, v in zip(weights, values)) / sum(weights)

    def factors(self) -> list[tuple[torch.Tensor, float, float, float]]:
        """Of both sides: the factor, and the mean, the lower and the upper edge of what noise alone would give it."""
        beta, found = self.options[2], []
        weights = [beta**i for i in range(len(self.gradients))]
        steps = sum(weights) ** 2 / sum(w * w for w in weights)
        for turned in (lambda g: g, lambda g: g.T):
            side, other = turned(self.gradients[0]).shape
            factor = self.average([turned(g) @ turned(g).T for g in self.gradients], beta)
            mean, spread = other * average_variance(self.variances, beta), math.sqrt(side / (other * steps))
            found.append((factor, mean, mean * max(0, 1 - spread) ** 2, mean * (1 + spread) ** 2))
        return found

    def shampoo(self, gradient: torch.Tensor, variance: float) -> torch.Tensor:
        (beta1, beta2), eps, _, every, floor = self.options
        self.gradients.append(gradient)
        self.variances.append(variance)
        if (len(self.gradients) - 1) % every == 0:
            self.roots = []
            for factor, mean, _, upper in self.factors():
                values, vectors = torch.linalg.eigh(factor - mean * torch.eye(len(factor)))
                least = max(floor * mean, upper - mean, 1e-6 * values.max().item())
                self.roots.append(vectors @ torch.diag(values.clamp(min=least) ** -0.25) @ vectors.T)
        momentum = self.average(self.gradients, beta1)
        adamw = momentum / (self.average([g**2 for g in self.gradients], beta2).sqrt() + eps)
        whitened = self.roots[0] @ momentum @ self.roots[1]
        return whitened * adamw.norm() / whitened.norm()

    def soap(self, gradient: torch.Tensor, variance: float) -> torch.Tensor:
        (beta1, beta2), eps, _, every, _ = self.options
        self.gradients.append(gradient)
        self.variances.append(variance)
        number, turned = len(self.gradients), lambda x: self.bases[0].T @ x @ self.bases[1]
        if number == 1:
            step = gradient / (gradient.abs() + eps)
            self.bases = [torch.linalg.eigh(factor)[1].flip(-1) for factor, *_ in self.factors()]
            self.second = (1 - beta2) * turned(gradient) ** 2
            return step
        self.second = beta2 * self.second + (1 - beta2) * turned(gradient) ** 2
        moved = turned(self.average(self.gradients, beta1)) / ((self.second / (1 - beta2**number)).sqrt() + eps)
        step = self.bases[0] @ moved @ self.bases[1].T
        if (number - 1) % every == 0:
            cleared = [factor - lower * torch.eye(len(factor)) for factor, _, lower, _ in self.factors()]
            self.bases = [torch.linalg.qr(each @ basis)[0] for each, basis in zip(cleared, self.bases)]
        return step
