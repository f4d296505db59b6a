"""Lengths that a model finds itself: an output is as long as the longest that its examples come to (durations of speech, a batch that the model cuts
to its longest text, pad_packed_sequence). It follows from one example how many places all others have.

The loader cannot tell of such an axis how far each example goes alone. So a few of them go through the model by themselves: what
has more places among all has them for others. A loss must bring no gradient to those (padded_gradients.py), and what the loop counts of them
is followed like any padding (provenance/padded.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..listed import picked
from ..provenance.opened import contents
from ..tensor_trees import tensors_in
from .differences import dim_of_rows
from .in_step import InStep
from .padding import last
from .state import Attributes, State
from .without_coins import without_coins

_ALONE = 4  # examples of a microbatch that go by themselves
_LOOKS = 8  # at further microbatches
_MOST_EXTENTS = 256


class VaryingLengths:
    """Whether inputs of the same extents gave outputs of other extents, so that these follow from values."""

    def __init__(self) -> None:
        self._of: dict[tuple, tuple] = {}  # extents of outputs by those of inputs
        self._vary, self._left = False, _LOOKS

    @property
    def look_anew(self) -> bool:
        """Few units go by themselves, and they may all be of the longest."""
        return self._vary and self._left > 0

    def looked(self) -> None:
        self._left -= self._vary

    def note(self, inputs: Any, output: Any) -> None:
        if self._vary or len(self._of) >= _MOST_EXTENTS:
            return

        def extents(tensors: list[torch.Tensor]) -> tuple:
            return tuple(tuple(extent for d, extent in enumerate(each.shape) if d != inputs.dim and extent != inputs.units) for each in tensors)

        given, gave = extents(tensors_in((inputs.args, inputs.kwargs))), extents(contents(output))
        before = self._of.setdefault(given, gave)
        # One that is as many as there are units is left out, and may be so by chance.
        self._vary = len(before) == len(gave) and any(len(one) == len(two) and one != two for one, two in zip(before, gave))


@dataclass(frozen=True)
class FoundLength:
    """A dimension of an output that has fewer places for a unit alone."""

    d: int  # with the units first
    unit: int
    extent: int  # how many it has alone
    units: int
    shape: torch.Size  # of all, without the units
    zero: bool  # beyond its own

    def others(self) -> torch.Tensor:
        """bool [units, places]: those that are not the unit's own."""
        missing = torch.zeros(self.units, dtype=torch.int64)
        missing[self.unit] = self.shape[self.d - 1] - self.extent
        return last(self.shape[self.d - 1], missing, False)


def find_lengths(repeat: Any, units: int, seed: int) -> None:
    """Notes them with the inputs of a Repeat (values.py). Five forwards without dropout and without gradients, four of them of one unit, which leave the model as it was; a collective if
    a forward communicates. seed: of which units."""
    if repeat.communicates and repeat.in_step is None:
        with InStep(repeat.model) as in_step:
            return find_lengths(replace(repeat, in_step=in_step), units, seed)
    apart = repeat.inputs.packing is None and units > 1 and units == repeat.inputs.units
    if not apart and repeat.in_step is None:
        return None
    states = State(repeat.model, repeat.device), Attributes(repeat.model)
    some = random.Random(seed).sample(range(units), min(_ALONE, units)) if apart else []
    try:
        with torch.no_grad(), without_coins(repeat.model):
            repeat.tried(lambda: _find(repeat, [*some, *[None] * (_ALONE - len(some))], states), _ALONE + 1)
    finally:
        for each in states:
            each.again()
    return None


def _find(repeat: Any, alone: Sequence[int | None], states: Any) -> None:
    """None: a rank that has no more units goes along."""
    inputs = repeat.inputs
    whole = _outputs(repeat, None, states)
    for unit in alone:
        by_itself = _outputs(repeat, unit, states)
        for place, of_all in whole.items() if unit is not None else ():
            its_own = by_itself.get(place)
            if its_own is None or its_own.dim() != of_all.dim():
                continue
            for d in range(1, of_all.dim()):
                extent, most = its_own.shape[d], of_all.shape[d]
                if extent < most and (most, extent) != (inputs.units, 1):  # pairs of examples are another matter
                    zero = not bool(of_all[unit].narrow(d - 1, extent, most - extent).any())
                    inputs.found_lengths.setdefault(place, []).append(FoundLength(d, unit, extent, inputs.units, of_all.shape[1:], zero))
                    inputs.known_lengths.add((place, of_all.dim(), d))


def _outputs(repeat: Any, unit: int | None, states: Any) -> dict[int, torch.Tensor]:
    """Of one unit, or of all, by their numbers in the output, with the units first."""
    for each in states:
        each.again()
    inputs = repeat.inputs

    def take(value: torch.Tensor) -> torch.Tensor:
        dim = -1 if unit is None else repeat.dim_of_units(value, inputs.units)
        return value if dim < 0 else value.narrow(dim, unit, 1)

    args, kwargs = repeat.with_units(take, lambda each: each if unit is None else picked(each, [unit]))
    units = inputs.units if unit is None else 1
    rows = [(place, each, dim_of_rows(each, inputs.dim, units)) for place, each in enumerate(contents(repeat.once(*args, **kwargs)))]
    return {place: each.movedim(dim, 0) for place, each, dim in rows if dim is not None and each.is_floating_point()}


__all__ = ["FoundLength", "VaryingLengths", "find_lengths"]
