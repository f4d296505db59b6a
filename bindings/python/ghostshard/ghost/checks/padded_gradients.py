"""Does a backward bring gradients to places of outputs that are only there for other examples (padding.py)?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..provenance.opened import contents
from .differences import dim_of_rows
from .padding import PaddedOutput, last

_LEAST = 1e-6  # of the largest gradient


@dataclass(frozen=True)
class OutputNode:
    """Where an output of the model stands in the autograd graph."""

    node: Any
    number: int  # of the node's outputs
    place: int  # among the tensors of the model's output
    shape: torch.Size
    dim: int  # of the units in inputs, and in outputs that have places


def nodes_of(output: Any, dim: int, only: torch.Tensor | None = None) -> tuple[OutputNode, ...]:
    """As the loop gets them: what the model itself goes on with is looked at with its outputs."""
    tensors = [(place, each) for place, each in enumerate(contents(output)) if each.grad_fn is not None and (only is None or each is only)]
    return tuple(OutputNode(each.grad_fn, each.output_nr, place, each.shape, dim) for place, each in tensors)


class PaddedGradients:
    """Whether a backward brings gradients to places of outputs that are not their example's own. `found` after watched(). of: by an output's number."""

    def __init__(self, nodes: Sequence[OutputNode], of: Mapping[int, list[PaddedOutput]]):
        self._of = {place: found for place, every in of.items() if (found := [each for each in every if not each.zero])}
        self._nodes = [each for each in nodes if each.place in self._of]
        self.found = False

    @property
    def watches(self) -> bool:
        return bool(self._nodes)

    @contextmanager
    def watched(self) -> Iterator[None]:
        handles = [each.node.register_prehook(self._hook(each)) for each in self._nodes]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, of: OutputNode) -> Callable[[tuple], None]:
        def look(gradients: tuple) -> None:
            gradient = gradients[of.number]
            if gradient is not None and gradient.shape == of.shape:
                self.found = self.found or any(_beyond(gradient, of.dim, each) for each in self._of[of.place])

        return look


def _beyond(gradient: torch.Tensor, dim: int, of: PaddedOutput) -> bool:
    axis, units = of.axis, len(of.axis.alone)
    of_units = dim_of_rows(gradient, dim, units)
    rows = gradient if of_units is None else gradient.detach().abs().movedim(of_units, 0)
    if of_units is None or rows.shape[1:] != of.shape:
        return False  # training gives something else than evaluation does
    rows = rows.movedim(of.places.d, 1)
    flat = rows.reshape(units, rows.shape[1], -1).amax(2).cpu()
    missing = [math.floor((axis.extent - each) * of.places.rate) - of.places.margin for each in axis.alone]
    others = last(rows.shape[1], torch.tensor(missing), axis.left)
    return bool((torch.where(others, flat, 0) > _LEAST * torch.where(flat.isfinite(), flat, 0).max()).any())


__all__ = ["OutputNode", "PaddedGradients", "nodes_of"]
