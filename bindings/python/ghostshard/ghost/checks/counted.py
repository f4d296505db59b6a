"""Does a forward divide by how many examples there are?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from ..listed import picked
from ..provenance.opened import contents
from .differences import Rows, differ


def counts(repeat: Any, units: int, before: Sequence[Any], highest: Callable[[list[int]], list[int]]) -> bool:
    """Whether outputs are others if the first unit is not in the batch: as in evaluation, and as in training, but without dropout, whose coins are others then."""
    training = [module for module in repeat.model.modules() if module.training]
    places = torch.arange(units)
    some = places[1:] if units > 1 else places  # all others come one place nearer
    extents: set[int] = set()

    def outputs(of: torch.Tensor) -> list[Rows]:
        take = lambda value: value if (dim := repeat.dim_of_units(value, units)) < 0 or len(of) == units else value.index_select(dim, of.to(value.device))
        args, kwargs = repeat.with_units(take, lambda each: picked(each, of.tolist()))
        output = repeat.once(*args, **kwargs)
        extents.update(extent for each in contents(output) for extent in each.shape[:2])
        return repeat.rows_of_output(output, len(of))

    def compared() -> tuple[list, bool]:
        nonlocal some
        for each in before:
            each.again()
        everybody = outputs(places)
        while len(some) > 1 and len(some) < units and len(some) in extents:
            some = some[1:]  # as many layers as examples would be taken for them
        for each in before:
            each.again()
        alone = outputs(some)
        chosens = [(last, *(rows.index_select(0, some.to(rows.device)) for rows in ways)) for last, *ways in everybody]
        return everybody, len(chosens) == len(alone) and differ(chosens, alone, torch.ones(len(some), dtype=torch.bool))

    def moved(mode: bool) -> bool:
        for module in training:
            module.training = mode and not isinstance(module, _DropoutNd)
        everybody, found = repeat.tried(compared, 2) or ([], False)
        if not highest([found])[0]:
            return False
        # A forward that tosses coins all the same tells nothing.
        again = repeat.tried(lambda: [outputs(places) for _ in range(4)], 4)
        return found and again is not None and not any(differ(everybody, each, torch.ones(units, dtype=torch.bool)) for each in again)

    try:
        if highest([moved(False)])[0]:  # the ranks make as many forwards
            return True
        return highest([any(not isinstance(module, _DropoutNd) for module in training)])[0] and moved(True)
    finally:
        for module in training:
            module.training = True


__all__ = ["counts"]
