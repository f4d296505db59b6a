"""What a private criterion says of the one that it runs, and how that is called again as a loop calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .tensor_trees import mapped

OTHER_REDUCTIONS = {
    "none": ". Leave it at 'mean': each example's own loss is formed anyway (loss.loss_per_sample has them), and a step takes the mean of all",
    "sum": ". For the sum of all losses give make_private() loss_reduction='sum', whose step is not divided by the expected batch",
    "mean": ". For the mean leave loss_reduction out",
}


def with_gradients(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call of a criterion whose outputs have a graph, as in a loop: some criterions keep their batch then alone."""

    def in_graph(value: torch.Tensor) -> torch.Tensor:
        return value.detach().requires_grad_().clone() if value.is_floating_point() else value

    with torch.enable_grad():
        losses = call(mapped(in_graph, args[0]), *args[1:], **kwargs) if args else call(**mapped(in_graph, kwargs))
    return mapped(torch.Tensor.detach, losses)


def _within_partials(criterion: Any) -> Any:
    while isinstance(criterion, functools.partial):
        criterion = criterion.func
    return criterion


def name_of(criterion: Any) -> str:
    """Of what functools.partial holds, that function's."""
    function = _within_partials(criterion)
    return getattr(function, "__name__", type(function).__name__)


def of_functions(criterion: Any) -> str:
    """The way out for those of torch.nn.functional, whose reduction is an argument."""
    name = name_of(criterion)
    function = _within_partials(criterion)
    return f": nn.CrossEntropyLoss() and its like, or functools.partial(F.{name}, reduction='none')" if getattr(nn.functional, name, None) is function else ""


__all__ = ["OTHER_REDUCTIONS", "name_of", "of_functions", "with_gradients"]
