"""Outputs of a model as the loop gets them: Drawn, like the batch, where it is certain which rows they have. Numbers beside them are known
again if they change (beside_outputs.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .beside_outputs import NumbersBesideOutputs
from .constants import Constants, place_of_loop
from .drawn import Memory, Origin, drawn, plain
from .findings import Finding
from .handed_out import HandedOut
from .opened import contents, opened

_CLOSED = (torch.distributions.Distribution,)  # samples itself by noise of which nobody knows whose rows it has


class GivenBack:
    """wrong_constant(name, tensor, alone=): why it is not known to be a constant."""

    def __init__(self, out: HandedOut, constants: Constants, wrong_constant: Callable[..., str]):
        self._out, self._constants, self._wrong_constant = out, constants, wrong_constant
        self._numbers = NumbersBesideOutputs()
        # Extents that are the longest that the model found: an output's number, its dimensions, and which of them with the units first
        self.lengths: set[tuple[int, int, int]] = set()

    def outputs(self, output: Any, of: Finding) -> Any:
        """Of a forward with what was found of it."""
        tensors, numbers, here, loop = itertools.count(), itertools.count(), of.rows if of.ids is None else of.ids.numel(), place_of_loop()
        self._learn_lengths(contents(output), here)
        extents = {here, *self._constants.extents, *(extent for each in contents(output) for extent in each.shape)}

        def stamp(value: torch.Tensor) -> torch.Tensor:
            key, value, memory = ("output", next(tensors), value.dim()), plain(value), Memory(of.piece)
            if type(value) is not torch.Tensor or value.layout is not torch.strided:
                return value
            if of.packed:  # tokens of several texts
                memory.lost, memory.loose = "the model gave it for texts laid end to end", value.requires_grad
                return drawn(value, Origin(memory, of.rows, None, None, True, True)) if value.requires_grad else value
            if of.rows == 1 and value.dim():
                return drawn(value, Origin(memory, 1, None, torch.tensor(0), True, value.requires_grad))
            dim = -1 if value.dim() == 0 else self._out.dim_of(key, value, here)
            if dim >= 0:
                return drawn(value, Origin(memory, of.rows, dim, of.ids, True, value.requires_grad))
            if not value.requires_grad and not self._wrong_constant("the model's output", value, alone=True):
                return value  # a table
            memory.lost, memory.loose = "the model gave it for all examples together", value.requires_grad
            return drawn(value, Origin(memory, of.rows, None, None, True, value.requires_grad))

        def number(value: Any) -> Any:
            return self._numbers.as_given((*loop, next(numbers)), value, extents) if isinstance(value, (int, float, np.generic)) else value

        return self._constants.courses.outputs(opened(stamp, output, torch.Tensor, number, _CLOSED), of.course, loop)

    def _learn_lengths(self, output: list[torch.Tensor], units: int) -> None:
        for place, dims, d in sorted(self.lengths):
            if place < len(output) and output[place].dim() == dims:
                own = (extent for k, extent in enumerate(output[place].shape) if k != max(self._out.dim_of(("output", place, dims), plain(output[place]), units), 0))
                found = next(itertools.islice(own, d - 1, None))
                self._constants.extents += (found,)
                self._constants.learn({found}, set())

    def losses(self, losses: torch.Tensor, of: Finding) -> torch.Tensor:
        """[units], one for all rows of each."""
        if not (of.joined or of.packed):
            found = self.outputs(losses, of)
            found.course = of.course  # wherever they are read
            return found
        memory = Memory(of.piece, "it is of rows that are joined")
        memory.loose = losses.requires_grad
        return drawn(losses, Origin(memory, max(of.rows, 1), None, None, True, losses.requires_grad))


__all__ = ["GivenBack"]
