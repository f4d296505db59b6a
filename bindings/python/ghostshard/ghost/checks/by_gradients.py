"""Repeats a forward and a backward of a few units with other inputs for some of them: do the others' gradients stay?

Outputs do not tell all. A straight-through estimate, saved values that are rounded by the batch's largest, a hook, or a backward that a program wrote itself may follow from
the batch where outputs do not. And a head, a gate or an adapter of zeros hides all that is below it, which trains from the second step on, or with the
head itself in the first: so parameters that are next to nothing have other values here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..provenance.opened import contents
from .differences import Rows, differ, dim_of_rows
from .padding import toss

NEARER, FARTHER = 0.7, 1.3  # than before: values that are mirrored about the middle of all
_COINS = 32
_OF_EACH = 2  # units of either half: a graph of the whole batch's would need as much memory as training does
_NOTHING = 1e-3  # the largest element of a parameter that hides what is behind it
_AMOUNT = 0.1  # of what stands in its place
_SAME, _CANCELLED = 1e-3, 1e-5  # shares of a parameter's largest gradient, and of all parameters', that are rounding


def broadcasts_buffers(model: nn.Module) -> bool:
    """Each forward of replicas is a collective then, so that no rank may make one alone."""
    return any(isinstance(each, nn.parallel.DistributedDataParallel) and each.broadcast_buffers and any(True for _ in each.buffers()) for each in model.modules())


def mixes_gradients(repeat: Any, chosen: torch.Tensor, before: Sequence[Any]) -> bool | None:
    """Whether outputs of some units, or the gradients that these give to parameters, are others if other units have other inputs, or are not there. repeat: a Repeat (values.py) of a
    forward that does not communicate: ranks do not make as many. chosen: bool [units]. before: states to begin from. Up to nine forwards of four units at most, each with two backwards. None: it cannot be told so."""
    some = torch.cat([chosen.nonzero().flatten()[:_OF_EACH], (~chosen).nonzero().flatten()[:_OF_EACH]]).sort().values
    mine = chosen[some]
    if repeat.inputs.packing is not None or broadcasts_buffers(repeat.model) or not bool(mine.any()) or bool(mine.all()):
        return None
    compute = functools.partial(_of_some, replace(repeat, graded=True), before)
    nobody = torch.zeros_like(chosen)
    with repeat.unguarded(), _nothing_is_hidden(repeat.model):
        for mirrored in (FARTHER, NEARER, 0.0):
            found = repeat.tried(lambda mirrored=mirrored: is_moved(lambda moved: compute(moved, some, mine, mirrored=mirrored), chosen, mine), 6)
            if found is not None:
                return found or bool(repeat.tried(lambda: is_counted(lambda units, coins: compute(nobody, some[units], mine[units], coins=coins), ~mine), 3))
    return None


class Computed:
    """rows: those of outputs, or of losses. given: outputs in their graph, with the units first. chosen: bool [units]."""

    def __init__(self, rows: list[Rows], given: list[torch.Tensor], chosen: torch.Tensor, leaves: Sequence[torch.Tensor]):
        self.rows = rows
        given = [each for each in given if each.requires_grad]
        self._extents = [each.shape[1:] for each in given]
        self.gradients = tuple(_gradients(given, units, leaves) for units in (~chosen, chosen))

    def is_other(self, other: Computed, units: torch.Tensor, which: int) -> bool:
        """units: bool, those that did not move."""
        return differ(self.rows, other.rows, units) or self.has_other_gradients(other, which)

    def has_other_gradients(self, other: Computed, which: int) -> bool:
        """Of outputs that are as long: what a model makes as long as its longest example has places of others, too (found_lengths.py)."""
        return self._extents == other._extents and _others(self.gradients[which], other.gradients[which])


def is_moved(compute: Callable[[torch.Tensor], Computed], chosen: torch.Tensor, mine: torch.Tensor) -> bool:
    """Whether what is of some is another one if the others move. compute(moved), of which mine are the chosen ones."""
    nobody = torch.zeros_like(chosen)
    as_given = compute(nobody)
    if not (as_given.is_other(compute(chosen), ~mine, 0) or as_given.is_other(compute(~chosen), mine, 1)):
        return False
    # What is another one each time tells nothing.
    again = [compute(nobody) for _ in range(3)]
    return not any(as_given.is_other(each, units, which) for each in again for which, units in enumerate((~mine, mine)))


def is_counted(compute: Callable[[torch.Tensor, int], Computed], others: torch.Tensor) -> bool:
    """Whether gradients of the units that are not chosen are others if they alone are there, where their rows are not (values.py looks at these). compute(units, coins), of bool; 0: the
    coins that there were."""
    everybody, alone = compute(torch.ones_like(others), 0), compute(others, 0)
    kept = [(last, *(rows[others.to(rows.device)] for rows in ways)) for last, *ways in everybody.rows]
    if len(kept) != len(alone.rows) or differ(kept, alone.rows, torch.ones(int(others.sum()), dtype=torch.bool)):
        return False
    if not everybody.has_other_gradients(alone, 0):
        return False
    # If other coins give other gradients (a label in ten that is left out), these tell nothing: those of fewer units fall otherwise.
    return not any(everybody.is_other(compute(torch.ones_like(others), coins), others, 0) for coins in range(1, _COINS))


def _of_some(repeat: Any, before: Sequence[Any], moved: torch.Tensor, some: torch.Tensor, mine: torch.Tensor, *, mirrored: float = 0.0, coins: int = 0) -> Computed:
    for each in before:
        each.again()
    if coins:
        toss(coins)
    args, kwargs = repeat.exchanged(moved, mirrored=mirrored, of=some)
    by_counts = {id(each.weight) for each in repeat.model.modules() if getattr(each, "scale_grad_by_freq", False)}  # within an example, by their rule
    parameters = [each for each in repeat.model.parameters() if each.requires_grad and id(each) not in by_counts]
    output = repeat.once(*args, **kwargs)
    certain = lambda each: each.dim() < 3 or each.shape[:2].count(len(some)) == 1  # a recurrent state of as many layers as units may be either
    with torch.enable_grad():
        outputs = [(each, dim_of_rows(each, repeat.inputs.dim, len(some))) for each in contents(output) if each.is_floating_point() and certain(each)]
        given = [each.movedim(dim, 0) for each, dim in outputs if dim is not None]
    return Computed(repeat.rows_of_output(output, len(some)), given, mine, parameters)


def _gradients(outputs: list[torch.Tensor], units: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a fixed product of these units' outputs."""
    chances = torch.Generator().manual_seed(0)
    if not outputs or not leaves:
        return []
    fixed = [torch.zeros_like(each) for each in outputs]  # logits are large: no more than a backward of these units needs
    for each in fixed:
        each[units.to(each.device)] = torch.randn(int(units.sum()), *each.shape[1:], generator=chances).to(each)
    return list(torch.autograd.grad(outputs, leaves, fixed, allow_unused=True, retain_graph=True))


def _others(one: list, two: list) -> bool:
    pairs = [(a, b) for a, b in zip(one, two) if a is not None and b is not None and a.numel() and bool(a.isfinite().all()) and bool(b.isfinite().all())]
    largest = [float(a.abs().max()) for a, _ in pairs]
    for (a, b), own in zip(pairs, largest):
        eps = 8 * torch.finfo(a.dtype).eps
        if bool(((a - b).abs() > max(max(_SAME, eps) * own, max(_CANCELLED, eps) * max(largest))).any()):
            return True
    return False


@contextmanager
def _nothing_is_hidden(model: nn.Module) -> Iterator[None]:
    """Parameters that are next to nothing have values from coins of their own, the same on each call. Graphs that hold them go on to hold what they were."""
    chances = torch.Generator().manual_seed(0)
    held = [(each, each.detach().clone()) for each in model.parameters() if each.is_floating_point() and each.numel() and float(each.detach().abs().max()) < _NOTHING]
    try:
        for parameter, _ in held:
            parameter.data.copy_(_AMOUNT * torch.randn(parameter.shape, generator=chances))
        yield
    finally:
        for parameter, before in held:
            parameter.data.copy_(before)


__all__ = ["Computed", "broadcasts_buffers", "is_counted", "is_moved", "mixes_gradients"]
