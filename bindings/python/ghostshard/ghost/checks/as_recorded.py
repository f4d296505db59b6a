"""Does a forward that is made again compute what the recorded one computed?

If not, a check looks at something else than what the losses were formed of: something was so for the time of the forward alone, wherever the program keeps it
(`with mixing(): outputs = model(x)`). Two signs together tell. The outputs are others, from the same coins; and the recorded forward ran an operation more often than
its repeat. Outputs alone do not, because a rule may toss its coins in another order than the layer; nor do operations, because a first forward may set up tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..provenance.opened import contents
from ..shared import Shared, plain
from .differences import differ
from .state import Coins


@dataclass
class Ran:
    """A recorded forward."""

    coins: Coins  # before it
    made: int  # tensors that all units share, before it
    trace: Any = None  # which operations it ran (dp/recording/operations.h)
    outputs: list[torch.Tensor] | None = None  # if it is to be compared

    @classmethod
    def begun(cls, device: torch.device) -> Ran:
        return cls(Coins(device), Shared.made)

    def ended(self, trace: Any) -> None:
        self.trace, self.made = trace, Shared.made - self.made

    def keep(self, output: Any) -> None:
        """They are in its graph as it is."""
        self.outputs = [plain(each).detach() for each in contents(output)]


def is_otherwise(repeat: Any, before: Sequence[Any], highest: Callable[[list[int]], list[int]]) -> bool:
    """Whether a forward of a Repeat (values.py), made again, computes something else on any rank. before: states to begin from, with the coins that it had. One forward, and if it is
    otherwise, one with gradients, as the recorded one was."""
    if not highest([_is_kept(repeat.inputs.ran)])[0]:
        return False
    for graded in (False,) if repeat.communicates else (False, True):
        other = replace(repeat, graded=graded)
        found = other.tried(lambda other=other: _computes_less(other, before), 1)
        if not highest([bool(found)])[0]:
            return False
    return True


def _is_kept(ran: Ran | None) -> bool:
    return ran is not None and ran.outputs is not None


def _computes_less(repeat: Any, before: Sequence[Any]) -> bool:
    """A rank that kept no outputs goes along."""
    ran, units = repeat.inputs.ran, repeat.inputs.units
    for each in before:
        each.again()
    outputs = [each.detach() for each in contents(repeat.once(*repeat.inputs.args, **repeat.inputs.kwargs))]
    if not _is_kept(ran) or not ran.trace.more_than(repeat.trace(), of_units=ran.made > 0):
        return False
    rows = units if repeat.inputs.packing is None else repeat.inputs.packing.rows
    recorded, again = (repeat.rows_of_output(each, rows) for each in (ran.outputs, outputs))
    return len(recorded) != len(again) or differ(recorded, again, torch.ones(rows, dtype=torch.bool))


__all__ = ["Ran", "is_otherwise"]
