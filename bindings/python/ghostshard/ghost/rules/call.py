"""A call of a layer without a rule: which of its arguments and outputs are the units' own, and what one unit's are."""

from __future__ import annotations

from enum import Enum

import torch

from ..layout import original_class
from ..rows import of_places
from ..shared import Shared, plain
from ..tensor_trees import constants_in, mapped, refilled, tensors_in
from .caches import without_caches
from .kept import Kept
from .layer import Layer, time_first

# A layer may also get these, which no example is in.
PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, Enum, torch.dtype, torch.device, torch.layout)
_WITHOUT_CACHE = ", or call the model with use_cache=False and without a cache"


class Call:
    """One call of a layer: tensors of the batch's units apart from what all units share (tables, masks [1,...], numbers).

    A tensor of the units is [units, ...], or [units · rows, ...] if the order of its rows is certain (rows.py). ValueError for
    arguments that are neither, and for a shared tensor with a gradient, which would be nobody's.
    """

    def __init__(self, layer: Layer, args: tuple, kwargs: dict):
        self.layer = layer
        self.kept = Kept(layer.module)
        self._given = mapped(lambda value: value, without_caches(layer.module, args, kwargs))  # lists and dicts as they are now: the caller may add to them
        self._tensors = [plain(value) for value in tensors_in(self._given)]
        self._behind = {i: value.behind for i, value in enumerate(tensors_in(self._given)) if isinstance(value, Shared)}
        strange = [type(value).__name__ for value in constants_in(self._given) if not isinstance(value, PLAIN)]
        if strange:
            raise ValueError(
                f"{self.kind}: per-example gradients by torch.func need tensors and plain values as arguments, got {strange}; register a "
                f"rule for it (ghostshard.register_rule){_WITHOUT_CACHE * any('Cache' in each for each in strange)}"
            )
        if self._tensors and 0 not in self._behind:
            layer.units_first(self._tensors[0])
        self.units = layer.rows()
        self.rows = self._rows_of_each()  # of each unit, in tensors [units · rows, ...]; 0: there are none
        self.batched = [i for i, value in enumerate(self._tensors) if i in self._behind or (self.has_units(value) and not self._shared(i, value))]
        for i, value in enumerate(self._tensors):
            if i not in self.batched and value.dim() > 0 and (value.shape[0] > 1 or set(value.shape) == {1}):
                layer.shares[i] = value.dim()
            if i not in self.batched and value.requires_grad:
                raise ValueError(
                    f"{self.kind}: the first extent of every input must be that of the {self.units} units of this batch, got "
                    f"{tuple(value.shape)}; only a tensor without a gradient may be shared by all units{time_first(layer)}"
                )

    def _shared(self, i: int, value: torch.Tensor) -> bool:
        """Whether all units share a tensor [units, ...], as there are as many places by chance: it was one of other extents before, or is [units] or
        [units, units] and looks like one of places. What it does to outputs is compared again then."""
        square = value.dim() <= 2 and len(set(value.shape)) == 1
        before = self.layer.shares.get(i) == value.dim()
        beside = self.rows > 0 and not self.has_rows(value)  # windows' masks [windows, n, n], as many windows as units
        if value.requires_grad or not (beside or before or (square and of_places(value))) or self.layer.is_own(value):
            return False
        self.layer.compared = self.layer.compared and square and not beside
        return True

    @property
    def kind(self) -> str:
        return f"{self.layer.name} ({original_class(self.layer.module).__name__})"

    def _rows_of_each(self) -> int:
        layer = self.layer
        if not layer.engine.batch_first or layer.packed or any(self._first_is_units(value) and (value.requires_grad or layer.is_own(value)) for value in self._tensors):
            return 0
        return next((parts for value in self._tensors if (parts := layer.parts(value)) > 1), 0)

    def _first_is_units(self, value: torch.Tensor) -> bool:
        return value.dim() > 0 and value.shape[self.layer.units_at(value.dim())] == self.units

    def has_rows(self, value: torch.Tensor) -> bool:
        return self.rows > 0 and value.dim() > 0 and value.shape[0] == self.units * self.rows

    def has_units(self, value: torch.Tensor) -> bool:
        return self.has_rows(value) or self._first_is_units(value)

    def units_first(self, value: torch.Tensor) -> torch.Tensor:
        """[units, ...], or [units, rows, ...]."""
        return value.unflatten(0, (self.units, self.rows)) if self.has_rows(value) else self.layer.as_given(value)

    def as_given(self, value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The reverse of units_first(like)."""
        return value.flatten(0, 1) if self.has_rows(like) else self.layer.as_given(value)

    def inputs(self) -> list[torch.Tensor]:
        """Those of the units, units first."""
        return [self._behind[i] if i in self._behind else self.units_first(self._tensors[i]) for i in self.batched]

    def of(self, batched: list[torch.Tensor]) -> tuple[tuple, dict]:
        """The arguments with these in the place of inputs(), for all units: as the layer takes them."""
        given = zip(self.batched, batched, strict=True)
        return self._with([value[0] if i in self._behind else self.as_given(value, self._tensors[i]) for i, value in given])

    def of_one(self, batched: list[torch.Tensor]) -> tuple[tuple, dict]:
        """The same of one unit, whose values have no dimension of the units."""
        at = self.layer.units_at
        return self._with(
            [
                value if i in self._behind or self.has_rows(self._tensors[i]) else value.unsqueeze(at(value.dim() + 1))
                for i, value in zip(self.batched, batched, strict=True)
            ]
        )

    def _with(self, values: list[torch.Tensor]) -> tuple[tuple, dict]:
        tensors = [value.detach() for value in self._tensors]
        for i, value in zip(self.batched, values, strict=True):
            tensors[i] = value
        return refilled(self._given, tensors)


class Output:
    """One of a call's outputs. like: what the layer gives for all units at once; folds: each unit's rows stand together, as many as it has; shared: all
    units share it, and its first extent is theirs by chance."""

    def __init__(self, call: Call, like: torch.Tensor, *, folds: bool, shared: bool):
        self._call = call
        self.like = torch.empty(like.shape, device="meta")
        self._folds = folds or call.has_rows(like)
        self.of_units = bool(call.batched) and not shared and (self._folds or call.has_units(like))  # what all units share gives nothing else, however many rows it has
        self.of_all = like.is_floating_point() and not self.of_units
        self.parts = like.shape[0] // call.units if self.of_units and self._folds and call.units > 0 else 1

    def units_first(self, value: torch.Tensor) -> torch.Tensor:
        """[units, ...], or [units, rows, ...]; what all share as it is."""
        if not self.of_units:
            return value
        return value.unflatten(0, (self._call.units, -1)) if self._folds else self._call.layer.as_given(value)

    def as_given(self, values: torch.Tensor) -> torch.Tensor:
        """The reverse, of values for each unit."""
        if not self.of_units:
            return values[0]
        return values.flatten(0, 1) if self._folds else self._call.layer.as_given(values)

    def of_one(self, value: torch.Tensor) -> torch.Tensor:
        """What a layer gives for call.of_one(), without the dimension of the units."""
        return value if self._folds or not self.of_units else value.squeeze(self._call.layer.units_at(value.dim()))


__all__ = ["PLAIN", "Call", "Output"]
