"""What the private loader handed out of a draw, stamped with whose each row is."""

from __future__ import annotations

import itertools
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ...loaders.listed_examples import entry_at
from ..listed import KnownLists
from .constants import Constants, extents_of, of_batch
from .drawn import Drawn, Memory, Origin, drawn, of_rows, plain
from .opened import contents, numbers_of, opened, same_values

_WRITTEN_TO_THE_DATA = "the data set holds values of an earlier batch (pseudo-labels, statistics), and examples that were in that one would be in this one too"


class HandedOut:
    """batch_first: of make_private(), for tensors whose first two extents are both the number of examples."""

    def __init__(self, constants: Constants, *, batch_first: bool):
        self._constants, self._batch_first = constants, batch_first
        # Dimensions of the examples, by a tensor's number in the batch, or in an output and its extents, as other batches showed it; -1: none
        self._dims: dict[Any, int] = {}
        self._tensors: list[tuple[Any, int, Origin]] = []  # (plain tensor, array or list; version; origin)
        self._known_lists = KnownLists()
        self.lists: list[Any] = []  # with an entry for each unit, which holds no tensor
        self._told: dict[tuple, bool] = {}  # by where they are in a batch (loaders/listed_examples.py)

    def forget(self) -> None:
        """A new draw begins."""
        self._tensors.clear()
        self.lists.clear()

    def hand_out(self, piece: Any, batch: Any) -> Any:
        """The batch of one unit or more, with Drawn tensors in the place of its own."""
        self._told.update(piece.lists)
        if self._known_lists.is_batch_of_units(batch, piece.units, self._told.get(())):
            stamped = [self._stamped(each, _of_unit(piece, u)) for u, each in enumerate(batch)]
            return type(batch)(stamped) if not hasattr(batch, "_fields") else type(batch)(*stamped)
        stamped = self._stamped(batch, None, piece)
        self._constants.learn({axis.extent for axis in piece.padding}, {axis.extent for axis in piece.padding if axis.left})
        return self._constants.courses.hand_out(stamped)

    def dim_of(self, number: Any, value: torch.Tensor, units: int) -> int:
        """The dimension of the examples in the batch's tensor of this number; -1: it has other rows (crops, packed texts)."""
        fits = [d for d in range(min(value.dim(), 2)) if value.shape[d] == units]
        if units > 1 and len(fits) < 2 and self._dims.get(number) != -1:  # other rows have as many by chance at times
            self._dims[number] = fits[0] if fits else -1
        known = self._dims.get(number, 0 if self._batch_first else 1)
        return known if known in (*fits, -1) else fits[0] if fits else -1

    def _stamped(self, batch: Any, origin: Origin | None, piece: Any = None) -> Any:
        numbers = itertools.count()
        memories: dict[int, Memory] = {}
        told = self._told_in(batch) if origin is None else {}

        def stamp(value: torch.Tensor) -> torch.Tensor:
            strange = isinstance(value, Drawn) and not value.origin.vouched  # written to the data set, from a batch
            value = plain(value)
            self._constants.extents += tuple(value.shape[:3])
            if origin is None and value.dim() == 0:
                return drawn(value, of_rows(piece, piece.units).lost("it is one number of the batch", strangers=True))
            if origin is None:
                dim = self.dim_of(next(numbers), value, piece.units)
                own = of_rows(piece, value.shape[max(dim, 0)], max(dim, 0))
            else:
                own = origin.at(None, origin.ids)
            own = own.lost(_WRITTEN_TO_THE_DATA, strangers=True) if strange else own
            if value.layout is torch.strided and value.numel():  # columns of one tensor are written to together
                own = own.within(memories.setdefault(value.untyped_storage().data_ptr(), own.memory))
            self._tensors.append((value, value._version, own))
            return drawn(value, own)

        def whole(value: Any) -> Any:
            bare = isinstance(value, np.ndarray) or (isinstance(value, (list, deque)) and not contents(value))
            if bare and origin is None and (copied := numbers_of(value)) is not None:
                self._tensors.append((copied, 0, of_rows(piece, len(value))))
            if value is not batch and origin is None and self._known_lists.of_units(value, piece.units, told.get(id(value))):
                self._constants.take_list(value)
                if contents(value):
                    return type(value)(self._stamped(each, _of_unit(piece, u)) for u, each in enumerate(value))
                self.lists.append(type(value)(opened(stamp, each, torch.Tensor, whole) for each in value))
                return self.lists[-1]
            single = isinstance(value, (int, np.generic)) or (isinstance(value, np.ndarray) and value.ndim == 0)
            return of_batch(value, extents) if single else value

        extents = extents_of(batch, origin.rows if piece is None else piece.units)
        return opened(stamp, batch, torch.Tensor, whole)

    def _told_in(self, batch: Any) -> dict[int, bool]:
        """By the lists' own numbers."""
        found = {}
        for path, of_units in self._told.items():
            with suppress(LookupError, TypeError, AttributeError):
                found[id(entry_at(batch, path))] = of_units
        return found

    def origin_of(self, tensor: torch.Tensor) -> Origin | None:
        """Whose the tensor is, if the loader handed out the same values."""
        found = (origin for value, version, origin in self._tensors if not origin.memory.lost and same_values(value, version, tensor))
        return next(found, None)


def _of_unit(piece: Any, unit: int) -> Origin:
    return Origin(of_rows(piece, 2).memory, piece.units, None, torch.tensor(unit))


__all__ = ["HandedOut"]
