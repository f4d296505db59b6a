"""Cross-entropy with one buffer of the logits' size instead of PyTorch's three (dp/recording/cross_entropy.h).

With a vocabulary of tens of thousands these buffers are the largest things in memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .. import _native


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, *, ignore_index: int = -100) -> torch.Tensor:
    """The result of functional.cross_entropy(reduction="none"), in float32 if logits are narrower.

    logits [N, C] or [N, C, ...], targets [N] or [N, ...] of class indices. Any other form goes to PyTorch.
    """
    ours = (
        type(logits) is torch.Tensor
        and type(targets) is torch.Tensor
        and targets.dtype == torch.int64
        and logits.dim() >= 2
        and targets.shape == logits.shape[:1] + logits.shape[2:]
        and logits.is_floating_point()
        and logits.numel() > 0
    )
    if not ours:
        return functional.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="none")
    rows = logits.movedim(1, -1).flatten(0, -2)
    losses = _native.load("engine").cross_entropy(rows, targets.flatten(), ignore_index)
    return losses.view(targets.shape)


def is_plain(criterion: Any) -> bool:
    """The criterion is nn.CrossEntropyLoss itself, and cross_entropy() gives its value: no class weights, no smoothing, no hooks."""
    return (
        type(criterion) is nn.CrossEntropyLoss
        and criterion.weight is None
        and criterion.label_smoothing == 0
        and not criterion._forward_hooks
        and not criterion._forward_pre_hooks
    )
