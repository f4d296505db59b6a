"""The losses that Transformers names, of each example, formed of logits and labels (own_loss.py says when they are taken)."""

from __future__ import annotations

from typing import Any

import torch

from .batch import loss_kind
from .cross_entropy import cross_entropy
from .loss import reduce_units
from .packing import Packing, shifted

_TOKENS = ("ForCausalLM", "ForMaskedLM", "ForTokenClassification")
_WITHOUT_LOGITS = (
    "{} gives no logits, so no example's own loss can be formed (TRL's trainers compute the loss past the model's head). In a subclass of SFTTrainer "
    "let compute_loss be that of transformers.Trainer. Preference pairs (DPO) take a loop of their own, with units= in the model's call (docs/python.md). Any other loss: "
    "pass logits and targets to the criterion that make_private returned, without labels"
)


def token_losses(
    logits: torch.Tensor, labels: torch.Tensor, *, shift: bool, reduction: str, packing: Packing | None = None
) -> torch.Tensor:
    """Cross-entropy of each unit's own tokens, [units]: logits [units, T, V], labels [units, T], -100 ignored.

    shift: logits at t are for the label at t + 1 (a causal language model). packing: whose the tokens are, if units are not
    rows; the labels are then those of segments (Packing.labels_of_segments).
    """
    labels = labels.to(logits.device)
    if shift:
        labels = shifted(labels)
    losses = cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)).view(labels.shape)
    if packing is None:
        return reduce_units(losses, labels != -100, reduction)
    return packing.reduce(losses, labels != -100, reduction)


def per_example_form(model: Any, labels: torch.Tensor, packing: Packing | None) -> bool:
    """Whether loss_of_transformers() knows a form of this model's loss (which may be another: own_loss.py)."""
    kind = loss_kind(model)
    classes = kind == "ForSequenceClassification" and packing is None and labels.dim() == 1 and not labels.is_floating_point()
    return kind in _TOKENS or (classes and model.config.num_labels > 1)


def logits_of(output: Any) -> Any:
    """Those that it names so; None: no such."""
    return output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)


def loss_of_transformers(
    model: Any, output: Any, labels: torch.Tensor, reduction: str, packing: Packing | None = None
) -> torch.Tensor:
    """A Hugging Face model's own loss, for each unit, of a kind that has a form (per_example_form)."""
    logits = logits_of(output)
    if logits is None:
        raise ValueError(_WITHOUT_LOGITS.format(type(model).__name__))
    kind = loss_kind(model)
    if kind in _TOKENS:
        return token_losses(logits, labels, shift=kind == "ForCausalLM", reduction=reduction, packing=packing)
    return cross_entropy(logits, labels.to(logits.device))


def targets_of_transformers(model: Any, labels: torch.Tensor, losses: torch.Tensor, packing: Packing | None) -> torch.Tensor:
    """How many targets each of loss_of_transformers()'s [units] losses is over."""
    kind = loss_kind(model)
    if labels.dim() == 1 or losses.shape[0] == 0:
        return torch.ones_like(losses)
    labels = (shifted(labels) if kind == "ForCausalLM" else labels).to(losses.device)
    valid = labels != -100
    ones = torch.ones(labels.shape, dtype=torch.float32, device=losses.device)
    if packing is None:
        return reduce_units(ones, valid, "sum")
    return packing.reduce(ones, valid, "sum")


__all__ = ["logits_of", "loss_of_transformers", "per_example_form", "targets_of_transformers", "token_losses"]
