"""Repeats the forward of a microbatch with the inputs of some units exchanged: do the others' outputs stay?

Gradients cannot show units that meet in frozen layers, before anything trains, or through values that pass no gradient on
(statistics that were detached). If rows of unit u follow from another unit's values, u's factor bounds the rows, but not the
change that the other unit makes to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..batch import Inputs
from ..tensor_trees import mapped

# Rows of a matrix product follow from their own inputs alone, bit for bit on most machines. On others they may differ by this
# share of the largest output.
_LEAST_CHANGE = 1e-4
_DIRECTIONS = 4


class Coins:
    """The states of the generators that a forward on this device draws from: the host's and the device's own."""

    def __init__(self, device: torch.device):
        self._device = device
        self._host = torch.get_rng_state()
        self._own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)

    def again(self) -> None:
        """Goes back to the states at construction: the next draws repeat all draws since."""
        torch.set_rng_state(self._host)
        if self._own is not None:
            torch.get_device_module(self._device).set_rng_state(self._own, self._device)


@dataclass(frozen=True)
class Repeat:
    forward: Callable[..., Any]
    inputs: Inputs
    device: torch.device  # of the model

    def reaches_others(self, chosen: torch.Tensor) -> bool:
        """Whether the inputs of the chosen units, or of the rest, move outputs of the others. chosen: bool [units].

        Three forwards without gradients, with the same coins; a collective if the forward communicates.
        """
        coins = Coins(self.device)
        outputs = []
        with torch.no_grad():
            for exchanged in (torch.zeros_like(chosen), chosen, torch.ones_like(chosen)):
                coins.again()
                new = self._exchanged(exchanged)
                args, kwargs = (
                    mapped(lambda t: new if t is self.inputs.examples else t, each)
                    for each in (self.inputs.args, self.inputs.kwargs)
                )
                outputs.append(self._rows_of_output(self.forward(*args, **kwargs), len(chosen)))
        coins.again()
        as_given, some, all_of_them = outputs
        return _differ(as_given, some, ~self._of_rows(chosen)) or _differ(some, all_of_them, self._of_rows(chosen))

    def _exchanged(self, units: torch.Tensor) -> torch.Tensor:
        """The examples, with values of these units mirrored in the range of all values: token ids stay token ids."""
        x = self.inputs.examples
        if not bool(units.any()) or x.is_complex():
            return x
        numbers = x[torch.isfinite(x)] if x.is_floating_point() else x
        if numbers.numel() == 0:
            return x
        other = ~x if x.dtype == torch.bool else numbers.min() + numbers.max() - x
        mine = self._of_rows(units).to(x.device)
        shape = x.shape
        if self.inputs.packing is not None:
            return torch.where(mine[:, None], other.reshape(len(mine), -1), x.reshape(len(mine), -1)).view(shape)
        return torch.where(mine.view([-1 if i == self.inputs.dim else 1 for i in range(x.dim())]), other, x)

    def _of_rows(self, of_units: torch.Tensor) -> torch.Tensor:
        return of_units if self.inputs.packing is None else of_units[self.inputs.packing.unit_of_row]

    def _rows_of_output(self, output: Any, units: int) -> list[torch.Tensor]:
        """Every floating tensor of the output that has the batch's rows, as [rows, ...], narrowed to a few directions."""
        found: list[torch.Tensor] = []

        def keep(value: torch.Tensor) -> torch.Tensor:
            if value.is_floating_point():
                if self.inputs.packing is not None:
                    n = self.inputs.packing.rows
                    for extents in (self.inputs.packing.extents, (n,), (1, n)):
                        if tuple(value.shape[: len(extents)]) == extents:
                            found.append(_narrowed(value, len(extents)).reshape(n, -1))
                            break
                elif value.dim() > self.inputs.dim and value.shape[self.inputs.dim] == units:
                    found.append(_narrowed(value, self.inputs.dim + 1).movedim(self.inputs.dim, 0).reshape(units, -1))
            return value

        if units:
            mapped(keep, output)
        return found


def _narrowed(value: torch.Tensor, rows: int) -> torch.Tensor:
    """The value with its last extent replaced by products with a few vectors, because logits are large; unchanged if the last
    extent is small or one of the first `rows` extents, which are the rows'."""
    if value.dim() <= rows or value.shape[-1] <= _DIRECTIONS:
        return value
    fixed = torch.Generator().manual_seed(0)
    return value @ torch.randn(value.shape[-1], _DIRECTIONS, generator=fixed).to(value.device, value.dtype)


def _differ(one: list[torch.Tensor], two: list[torch.Tensor], rows: torch.Tensor) -> bool:
    for a, b in zip(one, two):
        a, b = a[rows.to(a.device)], b[rows.to(b.device)]
        if a.numel() == 0:
            continue
        largest = torch.where(torch.isfinite(a), a, 0).abs().max().double()
        near = (a.double() - b.double()).abs() <= largest * max(_LEAST_CHANGE, 8 * torch.finfo(a.dtype).eps)
        if not bool((near | (a == b) | (a.isnan() & b.isnan())).all()):
            return True
    return False
