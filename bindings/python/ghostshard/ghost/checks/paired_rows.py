"""torch's criterions that compare element by element broadcast their arguments: of outputs [n, 1] and targets [n] they form [n, n] losses, each of
a pair of examples. Nothing mixes examples but these shapes, so they are looked at in every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..provenance import Drawn

_COMPARED = ("input", "target")
_BY_ELEMENT = {
    **dict.fromkeys((
        nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.BCELoss, nn.KLDivLoss, nn.MultiLabelSoftMarginLoss,
        nn.SoftMarginLoss, nn.PoissonNLLLoss, nn.HingeEmbeddingLoss, nn.GaussianNLLLoss), _COMPARED),
    nn.CosineEmbeddingLoss: ("input1", "input2"),
    nn.MarginRankingLoss: ("input1", "input2", "target"),
    nn.TripletMarginLoss: ("anchor", "positive", "negative"),
}  # fmt: skip


def refuse_pairs(criterion: Any, args: tuple, kwargs: dict, *, packed: bool, batch_first: bool) -> None:
    """ValueError where rows of one argument would meet all rows of another."""
    names = _BY_ELEMENT.get(type(criterion), ())
    named = {**dict(zip(names, args)), **kwargs}
    given = [value for name in names if isinstance(value := named.get(name), torch.Tensor) and value.dim() > 0]
    outputs = [each for each in given if each.requires_grad]
    if not outputs:
        return
    first, lead = outputs[0], 1 if batch_first and not packed else 2
    extents = {*first.shape[:lead]} - {1}
    for each in given:
        if not (each.requires_grad or isinstance(each, Drawn) or extents.intersection(each.shape)) or _side_by_side(first, each, lead):
            continue
        try:
            pairs = torch.broadcast_shapes(first.shape, each.shape)
        except RuntimeError:  # torch says so
            return
        shapes = f"shapes {tuple(first.shape)} and {tuple(each.shape)}"
        how = f"{shapes} broadcast to {tuple(pairs)}, where losses are of pairs of examples. Give both one shape: criterion(outputs.squeeze(-1), y), or criterion(outputs, y.unsqueeze(-1))"
        if first.shape == each.shape:
            how = f"of {shapes} the examples' rows lie along dimensions {_rows_of(first)} and {_rows_of(each)}. Turn one of them (y.T)"
        raise ValueError(
            f"an example's loss must not depend on other examples, but {type(criterion).__name__} would compare each example's row with those of all: {how}"
        )


def _side_by_side(one: torch.Tensor, two: torch.Tensor, lead: int) -> bool:
    """Whether row u of one meets row u of the other alone."""
    where = {_rows_of(each) for each in (one, two)} - {None}
    return one.dim() == two.dim() and one.shape[:lead] == two.shape[:lead] and len(where) < 2


def _rows_of(value: torch.Tensor) -> int | None:
    """The dimension of the examples' rows, as far as it is known."""
    return value.origin.dim if isinstance(value, Drawn) and not value.origin.memory.lost else None


__all__ = ["refuse_pairs"]
