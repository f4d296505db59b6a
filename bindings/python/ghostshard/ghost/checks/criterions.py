"""Repeats the criterion of a loss with the rows of some units exchanged: do the others' losses stay?

A criterion of the caller's own may mix examples by values that pass no gradient: statistics of the batch that were detached,
targets that were centred, weights by how often a class is in the batch. So its call is left beside its losses in the autograd graph, and
is repeated when the model's forward is (values.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from ...loaders.padding import Axis
from ..listed import mapped_units, picked
from ..packing import Packing
from ..provenance import Drawn, Finding, as_units, plain
from ..tensor_trees import mapped, tensors_in
from ..traces import traced
from .by_gradients import Computed, is_counted, is_moved
from .differences import differ, nearest
from .padding import Cut, cuts_of, has_places_of, toss, without_extent
from .state import Attributes, Coins, State, alike
from .values import APART, CARRIED, GRADED, MIXED, MODELS_OWN, OTHERWISE, PADDED, UNKNOWN

_TOSSES = 32  # of a criterion's coins, which may be rare
# Each loss follows from its own place alone.
_OF_TORCH = {
    nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.BCELoss, nn.NLLLoss, nn.CrossEntropyLoss, nn.KLDivLoss,
    nn.MultiMarginLoss, nn.MultiLabelSoftMarginLoss, nn.SoftMarginLoss, nn.CosineEmbeddingLoss, nn.TripletMarginLoss, nn.PoissonNLLLoss,
}  # fmt: skip


class Call:
    """One call of a criterion."""

    def __init__(
        self, criterion: Any, unreduced: Callable[..., torch.Tensor], args: tuple, kwargs: dict, packing: Packing | None, batch_first: bool,
        reduced: Callable[..., torch.Tensor], found: Finding, trace: Any, losses: torch.Tensor, coins: Coins | None,
    ):  # fmt: skip
        self.criterion, self._unreduced, self._reduced = criterion, unreduced, reduced
        self._packing, self._batch_first, self._listed = packing, batch_first, found.listed if packing is None else frozenset()
        self._ids, self._order, self.trace, self._losses, self._coins = found.ids, found.order, trace, losses, coins
        given = tensors_in((args, kwargs))
        self._followed = [each.origin if isinstance(each, Drawn) else None for each in given]
        self._derived = [each.requires_grad for each in given]
        detach = lambda tensor: plain(tensor).detach()  # or the graph would hold itself
        self._args, self._kwargs = mapped(detach, args), mapped(detach, kwargs)
        self._numbers = {id(each): number for number, each in enumerate(tensors_in((self._args, self._kwargs)))}

    def reaches_others(
        self, chosen: torch.Tensor, device: torch.device, axes: Sequence[Axis] = (), *, pooled: bool = False, places: Collection[tuple[torch.Size, int]] = ()
    ) -> int:
        """MIXED if what belongs to the chosen units, or to the rest, moves losses of the others; CARRIED if it moves buffers, or the losses
        of the call that follows; PADDED if how far the batch is padded does; UNKNOWN if the criterion takes no other values; OTHERWISE if it computes something else when
        it is called again. chosen: bool [units]. pooled: the outputs have
        no places. places: of each output that has some its shape, without the units, and which extent that is."""
        cuts = [cut for both in cuts_of(axes) for cut in both] if self._packing is None else []
        if any(self._follows_padding(cut, len(axes[0].alone), device, pooled=pooled, places=places) for cut in cuts):
            return PADDED
        of_rows = chosen if self._packing is None else chosen[self._packing.unit_of_row]
        if len(of_rows) == 0 or is_of_torch(self.criterion):
            return APART
        now = State(self.criterion if isinstance(self.criterion, nn.Module) else nn.Module(), device)
        state = now.before(self._coins, {})
        kept, losses, held, following, less = Attributes(self.criterion), [], [], [], False

        def of_all(moved: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
            args, kwargs = self._exchanged(moved)
            return [(0, self._of_each(self._unreduced(*args, **kwargs), len(of_rows), len(chosen)))]

        nobody = torch.zeros_like(of_rows)
        try:
            with torch.no_grad():
                for moved in (nobody, of_rows, ~of_rows):
                    state.again()
                    kept.again()
                    with traced() as again:
                        losses.append(of_all(moved))
                    less = less or (moved is nobody and self.trace.more_than(again.of, of_units=False) != "")
                    held.append(state.held())
                    if moved is not nobody:
                        following.append(of_all(nobody))
        except MODELS_OWN:
            return UNKNOWN
        finally:
            now.again()
            kept.again()
        of_losses = of_rows if len(losses[0][0][1]) == len(of_rows) else chosen
        if less and differ([(0, self._of_each(self._losses, len(of_rows), len(chosen)))], losses[0], torch.ones_like(of_losses)):
            return OTHERWISE
        if differ(losses[0], losses[1], ~of_losses) or differ(losses[0], losses[2], of_losses):
            return MIXED
        if (self._packing is None or self._packing.whole) and self._counts(self._but_the_first(len(chosen)), losses[0], (state, kept), now):
            return MIXED
        if self._mixes_gradients(of_rows, of_losses, (state, kept), now):
            return GRADED
        carried = any(not alike(one, held[0]) for one in held[1:]) or differ(*following, torch.ones_like(of_losses))
        return CARRIED if carried else APART

    def _mixes_gradients(self, of_rows: torch.Tensor, of_losses: torch.Tensor, states: tuple[Any, Any], now: State) -> bool:
        """Whether what the losses of some units give to outputs is another one with other values for other units, or without these."""
        leaves = [each for each, derived in zip(tensors_in((self._args, self._kwargs)), self._derived) if derived and each.is_floating_point()]
        by_rows = len(of_rows) == len(of_losses)

        def compute(given: Callable[[], tuple[tuple, dict]], units: torch.Tensor, coins: int = 0) -> Computed:
            for each in states:
                each.again()
            if coins:
                toss(coins)
            with torch.enable_grad():
                args, kwargs = mapped(lambda value: value.clone() if value.requires_grad and value.is_leaf else value, given())
                losses = self._of_each(self._unreduced(*args, **kwargs), len(units), len(units))
            return Computed([(0, losses.detach())], [losses], units, leaves)

        def of_some(units: torch.Tensor, coins: int) -> Computed:
            return compute(lambda: self._taken(units.nonzero().flatten(), len(units)), of_losses[units], coins)

        if bool(of_rows.all()) or not bool(of_rows.any()):
            return False
        try:
            for each in leaves:
                each.requires_grad_()
            moved = is_moved(lambda moved: compute(lambda: self._exchanged(moved), of_losses), of_rows, of_losses)
            return moved or (by_rows and self._packing is None and is_counted(of_some, ~of_rows))
        except MODELS_OWN:
            return False
        finally:
            for each in leaves:
                each.requires_grad_(False)
            states[1].again()
            now.again()

    def _of_each(self, losses: torch.Tensor, rows: int, units: int, of: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, ...]; or [units] where rows are joined by units= and the criterion gives one loss for all rows of each (a pair's). of: the units that came
        alone."""
        if self._order is not None:
            order = self._order if of is None else self._order[torch.isin(self._order, of)]
            losses = as_units(losses, order) if len(losses) == len(order) else losses
        if self._packing is not None and self._packing.whole and tuple(losses.shape) == (units,):
            return losses.reshape(units, -1)
        return losses.reshape(rows, -1)

    def _but_the_first(self, units: int) -> torch.Tensor:
        """bool [rows]: those of all units but the first, so that all others come one place nearer."""
        others = torch.arange(units) > 0
        return others if self._packing is None else others[self._packing.unit_of_row]

    def _counts(self, chosen: torch.Tensor, as_given: list, states: tuple[Any, Any], now: State) -> bool:
        """Whether losses of the chosen rows are others if they alone are there, as those are that are divided by how many there are."""
        if not bool(chosen.any()) or bool(chosen.all()):
            return False
        places = torch.arange(len(chosen))
        of_units = chosen
        if self._packing is not None:
            of_units = torch.zeros(self._packing.units, dtype=torch.bool)
            of_units[self._packing.unit_of_row[chosen]] = True

        def losses(of: torch.Tensor) -> list:
            args, kwargs = self._taken(of, len(chosen))
            return [(0, self._of_each(self._unreduced(*args, **kwargs), len(of), int(of_units.sum()) if len(of) < len(chosen) else len(of_units), of))]

        try:
            with torch.no_grad():
                for each in states:
                    each.again()
                alone = losses(places[chosen])
                of_losses = chosen if len(as_given[0][1]) == len(chosen) else of_units
                kept = [(0, as_given[0][1][of_losses.to(as_given[0][1].device)])]
                everything = torch.ones(len(kept[0][1]), dtype=torch.bool)
                # If other coins give other losses, these tell nothing.
                return differ(kept, alone, everything) and not any(differ(as_given, losses(places), torch.ones_like(of_losses)) for _ in range(_TOSSES))
        except MODELS_OWN:
            return False
        finally:
            states[1].again()
            now.again()

    def _follows_padding(self, cut: Cut | None, units: int, device: torch.device, *, pooled: bool, places: Collection[tuple[torch.Size, int]]) -> bool:
        """Whether losses of the shorter units are others if these are padded as far as they would be by themselves."""
        rows = [self._dim_of(number, value, units) for number, value in enumerate(tensors_in((self._args, self._kwargs)))]
        if cut is None or all(dim is None for dim in rows):
            return False

        def unflattened(value: torch.Tensor, dim: int) -> torch.Tensor:
            each, odd = divmod(value.shape[dim], units)
            return value if odd or each < 2 else value.unflatten(dim, (units, each))

        def fit() -> tuple[int, int] | None:
            if pooled:
                targets = (value for value, dim, derived in zip(tensors_in((self._args, self._kwargs)), rows, self._derived) if dim is not None and not derived)
                return (1, 0) if any(cut.axes[0].of in value.shape[1:] for value in targets) else None
            of_places = self._unreduced(*self._args, **self._kwargs)  # [units, ...] or [units · places, ...]
            found = cut.fit(unflattened(of_places, 0).shape[1:], scaled=True)
            if found is not None:
                return found
            # One loss for each, of outputs and targets that have places, or of what was pooled before.
            given = [
                (without_extent(unflattened(value, dim), dim), derived)
                for value, dim, derived in zip(tensors_in((self._args, self._kwargs)), rows, self._derived) if dim is not None
            ]  # fmt: skip
            targets = [extents for extents, derived in given if not derived]
            found = None
            if any(targets) or not targets:  # where all have one number for each (lengths, a class), classes of outputs could be taken for places
                found = cut.fit(set.intersection(*(set(extents) for extents, derived in given if extents or derived)), scaled=True)
            of_outputs = {extent for shape, extent in places if any(derived and has_places_of(extents, tuple(shape), extent) for extents, derived in given)}
            return found or cut.fit(of_outputs, scaled=True)

        def losses(*, shorter: bool = False, outputs_too: bool = True, coins: int = 0) -> list[torch.Tensor]:
            def take(value: torch.Tensor) -> torch.Tensor:
                number = self._numbers[id(value)]
                dim = rows[number]
                if dim is None:
                    return value
                apart = unflattened(value, dim)
                found = apart.index_select(dim, cut.units.to(value.device))
                if shorter and (outputs_too or not self._derived[number]):
                    found = cut.shortened(found, fits, but=dim, once=True)
                return found if apart.dim() == value.dim() else found.flatten(dim, dim + 1)

            args, kwargs = self._with_units(take, lambda each: picked(each, cut.units.tolist()))
            for state in states:
                state.again()
            if coins:
                toss(coins)
            return [self._reduced(len(cut.units), *args, **kwargs).reshape(len(cut.units))]

        states = (State(self.criterion if isinstance(self.criterion, nn.Module) else nn.Module(), device), Attributes(self.criterion))
        try:
            with torch.no_grad():
                fits = fit()
                if fits is None:
                    return False
                as_given, moved = losses(), []
                # What the loop cut to the targets' extent has places too; a number of classes that is alike has none.
                for outputs_too in (True, False) if pooled else (True,):
                    with suppress(*MODELS_OWN):
                        moved.append(cut.differs(as_given, losses(shorter=True, outputs_too=outputs_too)))
                follows = bool(moved) and all(moved)
                return follows and not any(cut.differs(as_given, losses(coins=coins)) for coins in range(1, _TOSSES))
        except MODELS_OWN:
            return False
        finally:
            for state in states:
                state.again()

    def _exchanged(self, moved: torch.Tensor) -> tuple[tuple, dict]:
        """Rows that moved have the values of the nearest ones that stay. One alone has its outputs with the other sign."""
        if len(moved) == 1 and bool(moved.all()):
            derived = iter(self._derived)
            mirrored = lambda value: -value if next(derived) and value.is_floating_point() else value
            return mapped(mirrored, self._args), mapped(mirrored, self._kwargs)
        if not bool(moved.any()) or bool(moved.all()):
            return self._args, self._kwargs
        return self._taken(nearest(moved), len(moved))

    def _taken(self, source: torch.Tensor, units: int) -> tuple[tuple, dict]:
        """Rows of these units, in the place of those of all."""

        def new(value: torch.Tensor) -> torch.Tensor:
            number = self._numbers[id(value)]
            if (placed := self._units_of_rows(number, units)) is not None:
                return value.index_select(placed[0], _rows_from(placed[1], source, units).to(value.device))
            dim = self._dim_of(number, value, units)
            if dim is None:
                return value
            if self._packing is not None and value.dim() > 1 and tuple(value.shape[:2]) == tuple(self._packing.extents):
                return value.flatten(0, 1).index_select(0, source.to(value.device)).view(value.shape)
            if self._packing is not None and value.shape[dim] == self._packing.units < units:  # chosen and rejected, apart
                return value.index_select(dim, self._units_of(source).to(value.device))
            each, odd = divmod(value.shape[dim], units)
            rows = (source[:, None] * each + torch.arange(each)).flatten()
            return value if odd or not each else value.index_select(dim, rows.to(value.device))

        return self._with_units(new, lambda each: picked(each, source.tolist()))

    def _units_of(self, rows: torch.Tensor) -> torch.Tensor:
        """The units in the place of all, if these rows come in the place of all; or the units that some rows are of."""
        owners = self._packing.unit_of_row
        if len(rows) < len(owners):
            return owners[rows].unique()
        first = torch.stack([(owners == unit).nonzero()[0, 0] for unit in range(self._packing.units)])
        return owners[rows[first]]

    def _with_units(self, of_tensor: Callable[[torch.Tensor], torch.Tensor], of_list: Callable[[Any], Any]) -> tuple[tuple, dict]:
        """The arguments, with others in the place of their tensors and of their lists of the units (listed.py)."""
        return mapped_units(of_tensor, of_list, (self._args, self._kwargs), self._listed)

    def _units_of_rows(self, number: int, units: int) -> tuple[int, torch.Tensor] | None:
        """The dimension of a tensor's rows, and the unit of each, if each unit has as many and they do not stand together (outputs of several forwards that were
        joined)."""
        origin = self._followed[number]
        if origin is None or origin.memory.lost or origin.dim is None or self._packing is not None or self._ids is None:
            return None
        of_unit = {int(each): unit for unit, each in enumerate(self._ids.tolist())}
        found = torch.tensor([of_unit.get(each, -1) for each in origin.numbers().tolist()], dtype=torch.int64)
        each, odd = divmod(len(found), units)
        if odd or len(of_unit) != units or bool((found < 0).any()) or torch.equal(found, torch.arange(units).repeat_interleave(each)):
            return None
        return (origin.dim, found) if bool((torch.bincount(found, minlength=units) == each).all()) else None

    def _dim_of(self, number: int, value: torch.Tensor, units: int) -> int | None:
        """The dimension of a tensor's rows, each unit's together; None: it has none. If the loader's tensors are followed, all others
        without a gradient are constants."""
        origin = self._followed[number]
        if origin is not None and not origin.memory.lost:
            ids = origin.numbers()
            together = origin.dim is not None and len(ids.unique_consecutive()) == len(ids.unique()) == units
            return origin.dim if together or self._packing is not None else None
        constant = any(each is not None for each in self._followed)
        if value.dim() == 0 or (constant and not self._derived[number]):
            return None
        fits = [d for d in range(min(value.dim(), 2)) if value.shape[d] == units]
        if len(fits) == 1:
            return fits[0]
        return 0 if self._batch_first or value.dim() == 1 else 1


def _rows_from(of_rows: torch.Tensor, source: torch.Tensor, units: int) -> torch.Tensor:
    """Which rows come in the place of all if units [source] come in the place of all units, each row from the one in its turn; or those of some units alone.
    of_rows: the unit of each."""
    if len(source) < units:
        return torch.isin(of_rows, source).nonzero().flatten()
    by_unit = of_rows.argsort(stable=True).view(units, -1)
    turn = torch.empty_like(of_rows)
    turn[by_unit] = torch.arange(by_unit.shape[1]).expand(units, -1)
    return by_unit[source[of_rows], turn]


def is_of_torch(criterion: Any) -> bool:
    """And as it is."""
    return type(criterion) in _OF_TORCH and not ("forward" in vars(criterion) or criterion._forward_hooks or criterion._forward_pre_hooks)


__all__ = ["Call", "is_of_torch"]
