"""What is left beside losses in the autograd graph: the call of the criterion that gave them (criterions.py), or that a model formed them itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..graph import nodes_under
from ..packing import Packing
from ..provenance import Finding
from .criterions import Call, is_of_torch
from .state import Coins

_MARK, _OWN_LOSSES = "ghostshard: criterion", "ghostshard: own losses"


def leave_call_beside(
    losses: torch.Tensor, criterion: Any, unreduced: Callable[..., torch.Tensor], args: tuple, kwargs: dict, *, packing: Packing | None,
    batch_first: bool, reduced: Callable[..., torch.Tensor], padded: bool, found: Finding, trace: Any, coins: Coins | None,
) -> None:  # fmt: skip
    """For criterions_under(). unreduced(*args, **kwargs) gave losses [units, ...] or [units · rows, ...], reduced(units, *args, **kwargs) gives [units].
    padded: how far the batch is padded may move them, also those of torch's own criterions. found: of the arguments. trace, coins: of the call, and before it."""
    if losses.grad_fn is not None and (padded or not is_of_torch(criterion)):
        losses.grad_fn.metadata[_MARK] = Call(criterion, unreduced, args, kwargs, packing, batch_first, reduced, found, trace, losses.detach(), coins)


def criterions_under(losses: torch.Tensor, goes_on: Callable[[Any], bool] = lambda node: True) -> list[Call]:
    """Calls whose losses these follow from. goes_on: of nodes_under()."""
    return _under(losses, _MARK, goes_on)


def leave_own_losses_beside(losses: torch.Tensor) -> Any:
    """For own_losses_under(), which gives this again: these are losses that a model formed of labels (own_loss.py)."""
    token = object()
    if losses.grad_fn is not None:
        losses.grad_fn.metadata[_OWN_LOSSES] = token
    return token


def own_losses_under(losses: torch.Tensor) -> list[Any]:
    return _under(losses, _OWN_LOSSES)


def _under(losses: torch.Tensor, mark: str, goes_on: Callable[[Any], bool] = lambda node: True) -> list[Any]:
    """What was left beside those that these follow from."""
    left = (node.metadata.get(mark) for node in nodes_under([losses], lambda node: node.metadata.get(mark) is None and goes_on(node)))
    return [each for each in left if each is not None]


__all__ = ["criterions_under", "leave_call_beside", "leave_own_losses_beside", "own_losses_under"]
