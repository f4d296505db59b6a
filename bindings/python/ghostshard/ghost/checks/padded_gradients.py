"""Does a backward bring gradients to places of outputs that are only there for other examples (padding.py)?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..graph import nodes_under
from ..provenance.opened import contents
from .differences import dim_of_rows
from .found_lengths import FoundLength
from .padding import PaddedOutput

_MARK = "ghostshard: outputs"
_LEAST = 1e-6  # of the largest gradient


@dataclass(frozen=True)
class OutputNode:
    """Where an output of the model stands in the autograd graph."""

    number: int  # of the node's outputs
    place: int  # among the tensors of the model's output
    shape: torch.Size
    dim: int  # of the units in inputs, and in outputs that have places


def mark_nodes(forward: object, output: Any, dim: int, only: torch.Tensor | None = None) -> None:
    """For outputs_under(). As the loop gets them: what the model itself goes on with is looked at with its outputs. The mark is in the graph, which nothing else holds.
    forward: which one."""
    tensors = contents(output)
    with torch._C.DisableTorchFunctionSubclass():  # a table that all units share says nothing of its graph (shared.py)
        for place, each in enumerate(tensors):
            if each.grad_fn is not None and (only is None or each is only):
                each.grad_fn.metadata.setdefault(_MARK, []).append((forward, OutputNode(each.output_nr, place, each.shape, dim)))


def outputs_under(losses: torch.Tensor) -> dict[object, list[tuple[Any, OutputNode]]]:
    """By forward: the nodes of outputs from which these follow."""
    found: dict[object, list[tuple[Any, OutputNode]]] = {}
    for node in nodes_under([losses]):
        for forward, of in node.metadata.get(_MARK, ()):
            found.setdefault(forward, []).append((node, of))
    return found


class PaddedGradients:
    """Whether a backward brings gradients to places of outputs that are not their example's own. `found` after watched(). of: by an output's number."""

    def __init__(self, nodes: Sequence[tuple[Any, OutputNode]], *of: Mapping[int, Sequence[PaddedOutput | FoundLength]]):
        self._of = {place: [one for each in of for one in each.get(place, ())] for each in of for place in each}
        self._nodes = [(node, each) for node, each in nodes if each.place in self._of]
        self.found = False

    @property
    def watches(self) -> bool:
        return bool(self._nodes)

    @contextmanager
    def watched(self) -> Iterator[None]:
        handles = [node.register_prehook(self._hook(each)) for node, each in self._nodes]
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


def _beyond(gradient: torch.Tensor, dim: int, of: PaddedOutput | FoundLength) -> bool:
    others = of.others()
    units = len(others)
    of_units = dim_of_rows(gradient, dim, units)
    if of_units is None:
        return False
    rows = gradient.detach().movedim(of_units, 0)
    if rows.shape[1:] != of.shape:
        return False  # training gives something else than evaluation does
    rows = rows.movedim(of.d, 1).reshape(units, others.shape[1], -1)
    least = _LEAST * torch.where(rows.isfinite(), rows, 0).abs().max()
    if of.zero and bool((rows - rows[:, :1]).abs().amax(1).le(least)[others.any(1).to(rows.device)].all()):
        return False  # a sum over all places, of which theirs add nothing
    return bool((torch.where(others.to(rows.device), rows.abs().amax(2), 0) > least).any())


__all__ = ["PaddedGradients", "mark_nodes", "outputs_under"]
