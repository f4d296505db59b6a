"""Is the loss of each example, formed here from logits and labels, the one that the model itself forms of them?

Transformers' models form a mean over the batch, which no example's clipping can use, so GhostShard forms each example's loss
by the kind that Transformers names. A model may form another: class weights, label smoothing, a router's loss,
`model.loss_function` replaced, a subclass. So at the first batch with labels the losses of all examples, reduced as
Transformers does, must give the model's own loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..batch import Inputs
from .state import State


@dataclass
class OwnLoss:
    """state: at the beginning of the forward. losses, counts: [units], of each example, and how many targets it has a mean
    over."""

    forward: Callable[..., Any]  # the model's, which records nothing
    inputs: Inputs
    state: State
    losses: torch.Tensor
    counts: torch.Tensor
    reduction: str

    def differs(self) -> bool | None:
        """Whether the model's own loss is another. None: this batch cannot tell. A collective if the forward communicates."""
        after = self.state.now()
        try:
            self.state.again()
            with torch.no_grad():
                kwargs = {name: value for name, value in self.inputs.kwargs.items() if name != "num_items_in_batch"}
                output = self.forward(*self.inputs.args, **kwargs, labels=self._labels())
        finally:
            after.again()
        own = getattr(output, "loss", None)
        targets = self.counts.sum()
        if own is None or self.inputs.units == 0 or targets == 0:
            return None
        weighted = self.losses.double() * (self.counts if self.reduction == "mean" else 1)
        ours, theirs = float(weighted.sum() / targets), float(own)
        if ours != ours or theirs != theirs:
            return None
        # Both are means in float32, of logits that two forwards rounded to the model's dtype.
        near = max(2e-5, 2 * torch.finfo(output.logits.dtype).eps)
        return abs(ours - theirs) > near * max(abs(ours), abs(theirs), 1e-6)

    def _labels(self) -> torch.Tensor:
        labels = self.inputs.labels
        assert labels is not None
        if self.inputs.empty_dim is None:
            return labels
        return labels.new_zeros([extent or 1 for extent in labels.shape])  # of the placeholder, whose loss is not looked at


__all__ = ["OwnLoss"]
