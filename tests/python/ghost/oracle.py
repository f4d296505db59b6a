"""The slow, obviously right twin: one example at a time in float64, gradients by autograd, clipped, added up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import nn

Batch = tuple[torch.Tensor, ...]


def example(batch: Batch, i: int) -> Batch:
    return tuple(value[i : i + 1] for value in batch)


def double(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def clipped_sum(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], torch.Tensor],
    batches: Iterable[Batch],
    clip_norm: float,
    *,
    wide: bool = True,
) -> dict[str, torch.Tensor]:
    """loss(model, batch of one example) -> its loss. Returns the sum over all examples, by (first) name. wide: in float64."""
    twin = copy.deepcopy(model)
    if wide:
        twin = twin.double()
    trainable = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in trainable.items()}
    for batch in batches:
        for i in range(len(batch[0])):
            twin.zero_grad(set_to_none=True)
            loss(twin, tuple(double(value) if wide else value for value in example(batch, i))).sum().backward()
            gradients = {
                name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trainable.items()
            }
            norm = torch.sqrt(sum(g.square().sum() for g in gradients.values()))
            factor = min(1.0, clip_norm / float(norm)) if norm > 0 else 1.0
            for name, g in gradients.items():
                total[name] += factor * g
    return total


def worst_difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference, relative to the largest expected value of all."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    scale = max(float(value.abs().max()) for value in expected.values())
    return max(float((found[name].double() - expected[name]).abs().max()) for name in expected) / scale
