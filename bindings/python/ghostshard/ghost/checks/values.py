"""Repeats the forward of a microbatch with the inputs of some units exchanged: do the others' outputs stay?

Gradients cannot show units that meet in frozen layers, before anything trains, or through values that pass no gradient on
(statistics that were detached). If rows of unit u follow from another unit's values, u's factor bounds the rows, but not the
change that the other unit makes to them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ..batch import Inputs
from ..listed import mapped_units, picked
from ..provenance.opened import opened
from ..rows import of_places
from ..tensor_trees import tensors_in
from .as_recorded import is_otherwise
from .by_gradients import NEARER, mixes_gradients
from .counted import counts
from .differences import Rows, as_fractions, differ, narrowed, nearest, rows_of
from .in_step import InStep
from .padding import is_padded
from .set_aside import with_others
from .state import MODELS_OWN, Attributes, State, alike

APART, KEPT, CARRIED, PADDED, MIXED, GRADED, UNKNOWN, OTHERWISE = range(8)  # what is found of a model or a criterion; the later ones are worse


@dataclass(frozen=True)
class Repeat:
    model: nn.Module
    forward: Callable[..., Any]  # the model's, which records nothing
    trace: Callable[[], Any]  # of the latest (dp/recording/operations.h)
    inputs: Inputs
    device: torch.device  # of the model
    communicates: bool = False  # a forward does
    unguarded: Callable[[], AbstractContextManager] = nullcontext  # takes gradients of parameters
    refusals: list[str] = field(default_factory=list)  # of the model, if it took no other inputs
    places: tuple[torch.Tensor, ...] = ()  # arguments that stay in every exchange, beside those that look like places
    own_loss: Any = None  # forms the losses that go backward (own_loss.py), if they are the model's own
    graded: bool = False  # the forward keeps gradients, as the recorded one did: some models keep their batch then alone
    in_step: InStep | None = None  # of a forward that communicates, within reaches_others()

    def reaches_others(self, chosen: torch.Tensor, highest: Callable[[list[int]], list[int]] = list) -> int:
        """MIXED if the inputs of the chosen units, or of the rest, or how many there are, move outputs of the others; KEPT if they move buffers; CARRIED if they move the
        outputs of the forward that follows; PADDED if how far the batch is padded does; UNKNOWN if the model takes no other inputs; OTHERWISE if the forward, made again,
        computes something else; GRADED if outputs may stay, but gradients do not. chosen: bool [units].

        Ten forwards without gradients (five more with them of a model that sets attributes), two more for each way in which a batch can be paired anew. If a
        forward communicates, a collective: highest() gives the largest of all ranks' numbers, so that all make as many. A rank whose model refuses one makes up for it.
        """
        if self.communicates and self.in_step is None:
            with InStep(self.model) as in_step:
                return replace(self, in_step=in_step).reaches_others(chosen, highest)
        now, kept = State(self.model, self.device), Attributes(self.model)
        # A first forward may have set buffers by its examples, once; and coins may have sent it a way that it seldom goes.
        state = now.before(None if self.inputs.ran is None else self.inputs.ran.coins, self.inputs.buffers)
        wrote = state.moves()
        try:
            with torch.no_grad():
                found = self.tried(lambda: self._among_others(chosen, (state, kept), wrote, mirrored=NEARER), 5)
                for longest_stays in (False, True):
                    if highest([found is None])[0] if self.communicates else found is None:
                        stays = self._longest(len(chosen)) if longest_stays else torch.zeros_like(chosen)
                        other = self.tried(lambda stays=stays: self._among_others(chosen, (state, kept), wrote, mirrored=0, stays=stays), 5)
                        found = other if found is None else found
                keeping = replace(self, graded=True) if found is not None and not found[2] and self.inputs.keeps and not self.communicates else self
                found = (keeping.tried(lambda: keeping._among_others(chosen, (state, kept), wrote, mirrored=NEARER), 5) if keeping.graded else None) or found
                unknown, moved, mixed, carried, packed = highest([found is None, *(found or (0, 0, 0)), self._packing is not None])
                if unknown:
                    return UNKNOWN
                if is_otherwise(self, (state, kept), highest):
                    return OTHERWISE
                if carried:  # a model that counts its calls, out of our sight, gives other outputs every time
                    carried = highest([bool(self.tried(lambda: keeping._carries(chosen, (state, kept)), 4))])[0]
                if mixed or (not packed and highest([counts(self, len(self._of_rows(chosen)), (state, kept), highest)])[0]):
                    return MIXED
                if highest([bool(self.inputs.set_aside)])[0] and highest([bool(self.tried(lambda: self._follows_what_was_set((state, kept)), 2))])[0]:
                    return CARRIED
                if self._looks_up_rows(chosen, (state, kept), highest):
                    return MIXED
                if highest([not self.communicates and bool(mixes_gradients(self, chosen, (state, kept)))])[0]:
                    return GRADED
                for number in range(highest([len(self.inputs.padding)])[0]):
                    if is_padded(self, (state, kept), highest, number):
                        return PADDED
        finally:
            now.again()
            kept.again()
        return CARRIED if carried else KEPT if moved else APART

    @property
    def _packing(self) -> Any:
        """Of texts laid end to end; None if each row is taken whole."""
        packing = self.inputs.packing
        return None if packing is None or packing.whole else packing

    def tried(self, what: Callable[[], Any], forwards: int) -> Any:
        """None if the model refused what it was given. what() makes so many forwards."""
        begun = 0 if self.in_step is None else self.in_step.begun
        try:
            return what()
        except MODELS_OWN as error:
            self.refusals.append(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
            if self.in_step is not None:  # the other ranks go on within this forward, and with those that follow
                self.in_step.make_up(error)
                while self.in_step.begun < begun + forwards:
                    self.once(*self.inputs.args, **self.inputs.kwargs)
            return None

    def once(self, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.graded), nullcontext() if self.inputs.again is None else self.inputs.again.as_it_was():
            return self.forward(*args, **kwargs) if self.in_step is None else self.in_step.forward(self.forward, *args, **kwargs)

    def _of_all(self, moved: torch.Tensor, state: State, *, mirrored: float = NEARER) -> list[Rows]:
        """Rows of the outputs for the batch in which the units that moved have other inputs."""
        state.again()
        args, kwargs = self.exchanged(moved, mirrored=mirrored)
        return self.rows_of_output(self.once(*args, **kwargs), len(self._of_rows(moved)), of_any=True)

    def _longest(self, units: int) -> torch.Tensor:
        """bool [units]: the one with most places, by masks or lengths among the arguments, or else by its examples. A model that takes its batch to be as
        long as that one refuses a batch without it."""
        given = [value for value in tensors_in((self.inputs.args, self.inputs.kwargs)) if not value.is_floating_point()]
        rows = [(value is self.inputs.examples, value.movedim(dim, 0)) for value in given if (dim := self.extent_of_units(value, units)) >= 0]
        found = torch.zeros(units, dtype=torch.bool)
        for _, value in sorted(rows, key=lambda each: each[0])[:1]:
            found[int(value.flatten(1).ne(0).sum(1).argmax() if value.dim() > 1 else value.to(torch.int64).argmax())] = True
        return found

    def _among_others(
        self, chosen: torch.Tensor, before: tuple[State, Attributes], wrote: bool, *, mirrored: float, stays: torch.Tensor | None = None
    ) -> tuple[bool, bool, bool]:
        """Whether buffers moved, outputs of others, and outputs of the forward that follows. wrote: the forward that was recorded wrote to buffers, and what
        does not write again follows from nothing that is seen here. stays: units that are not exchanged."""
        state, kept = before
        outputs, held, following, nobody = [], [], [], torch.zeros_like(chosen)
        for moved in (nobody, chosen, ~chosen) if stays is None else (nobody, chosen & ~stays, ~chosen & ~stays):
            kept.again()
            outputs.append(self._of_all(moved, state, mirrored=mirrored))
            held.append(state.held())
            wrote = wrote and not (moved is nobody and state.moves())
            if moved is not nobody:
                following.append(self._of_all(nobody, state))
        as_given, chosen_moved, others_moved = outputs
        if self.communicates:  # others are looked at behind a head of zeros, too (by_gradients.py)
            self.inputs.told = not as_given or differ(as_given, chosen_moved, self._of_rows(chosen)) or differ(as_given, others_moved, ~self._of_rows(chosen))
        mixed = differ(as_given, chosen_moved, ~self._of_rows(chosen)) or differ(as_given, others_moved, self._of_rows(chosen))
        return wrote or any(not alike(one, held[0]) for one in held[1:]), mixed, differ(*following, self._of_rows(torch.ones_like(chosen)))

    def _follows_what_was_set(self, before: tuple[State, Attributes]) -> bool:
        """Whether outputs follow from what other forwards set, of examples (set_aside.py)."""
        outputs = []
        for others in ([], self.inputs.set_aside):
            for each in before:
                each.again()
            with with_others(others):
                rows = self.inputs.units if self.inputs.packing is None else self.inputs.packing.rows
                outputs.append(self.rows_of_output(self.once(*self.inputs.args, **self.inputs.kwargs), rows))
        return differ(*outputs, torch.ones(rows, dtype=torch.bool))

    def _carries(self, chosen: torch.Tensor, before: tuple[State, Attributes]) -> bool:
        """Whether the outputs of a forward are the same again after the same forward before it, so that a difference is of its inputs."""
        (state, kept), following = before, []
        for _ in range(2):
            kept.again()
            self._of_all(chosen, state)
            following.append(self._of_all(torch.zeros_like(chosen), state))
        return not differ(*following, self._of_rows(torch.ones_like(chosen)))

    def _looks_up_rows(self, chosen: torch.Tensor, before: tuple[State, Attributes], highest: Callable[[list[int]], list[int]]) -> bool:
        """Whether outputs of the others move with the chosen units' inputs in a batch that pairs the arguments anew. Numbers, masks or a matrix
        among them may say whose rows of another argument a unit sees, and in the batch at hand that may be everybody's own. A model that keeps
        units apart does so for any pairs; one that takes none of these tells nothing."""
        for examples in (False, True):
            other = self._paired_anew(len(chosen), examples=examples)
            if highest([other is not None])[0]:  # a rank that has no other pairs goes along
                if highest([bool(self._looked_up(other or self, chosen, before))])[0]:
                    return True
        return False

    def _looked_up(self, paired: Repeat, chosen: torch.Tensor, before: tuple[State, Attributes]) -> Any:
        return self.tried(lambda: paired._moves_others(chosen, before), 2) if self.in_step is not None or paired is not self else None

    def _moves_others(self, chosen: torch.Tensor, before: tuple[State, Attributes]) -> bool:
        outputs = []
        for moved in (torch.zeros_like(chosen), chosen):
            before[1].again()
            outputs.append(self._of_all(moved, before[0]))
        return differ(*outputs, ~chosen)

    def _paired_anew(self, units: int, *, examples: bool) -> Repeat | None:
        """Each unit has the arguments of the one before it beside its examples, or its examples beside its arguments. None: that changes no pair."""
        if self._packing is not None or units < 2:
            return None
        changed, places, moved_examples = False, list(self.places), self.inputs.examples

        def new(value: torch.Tensor) -> torch.Tensor:
            nonlocal changed, moved_examples
            dim, is_examples = self.extent_of_units(value, units), value is self.inputs.examples
            if dim < 0:
                return value
            other = value.roll(1, dim)
            changed = changed or not (is_examples or torch.equal(other, value))
            if is_examples != examples:
                return value
            if is_examples:
                moved_examples = other
            elif self.dim_of_units(value, units) < 0:
                places.append(other)
            return other

        def roll(value: Any) -> Any:
            nonlocal changed
            changed = True
            return value if examples else picked(value, [units - 1, *range(units - 1)])

        args, kwargs = self.with_units(new, roll)
        inputs = replace(self.inputs, args=args, kwargs=kwargs, examples=moved_examples)
        return replace(self, inputs=inputs, places=tuple(places)) if changed else None

    def exchanged(self, moved: torch.Tensor, *, mirrored: float, of: torch.Tensor | None = None) -> tuple[tuple, dict]:
        """The arguments, with other values for the units that moved: in the examples mirrored ones, which differ most; in every other
        tensor with the units' extent those of the nearest that stays, which are valid (masks, lengths). mirrored: how far from the middle, for one that is as far now. 0: in the examples
        too, for models that take not every value. of: the units that come alone."""
        other = self._mirrored(moved, mirrored) if mirrored or self._packing is not None else None
        rows = self._of_rows(moved)
        source = nearest(rows)

        def new(value: torch.Tensor) -> torch.Tensor:
            dim, mirror = self.dim_of_units(value, len(rows)), other is not None and value is self.inputs.examples
            found = other if mirror else value
            take = of if mirror else source if of is None else source[of]
            return found if dim < 0 or take is None else found.index_select(dim, take.to(value.device))

        return self.with_units(new, lambda each: picked(each, (source if of is None else source[of]).tolist()))

    def with_units(self, of_tensor: Callable[[torch.Tensor], torch.Tensor], of_list: Callable[[Any], Any]) -> tuple[tuple, dict]:
        """The arguments, with others in the place of their tensors and of their lists of the units (listed.py)."""
        return mapped_units(of_tensor, of_list, (self.inputs.args, self.inputs.kwargs), self.inputs.listed)

    def dim_of_units(self, value: torch.Tensor, units: int) -> int:
        """-1: none. 0, 1, 2, … of the units' extent are taken for places, which all units share."""
        dim = self.extent_of_units(value, units)
        if any(value is each for each in self.inputs.own):
            return dim
        places = value.dim() == 1 and value.dtype != torch.bool and torch.equal(value, torch.arange(len(value), device=value.device, dtype=value.dtype))
        return -1 if places or of_places(value) or any(value is each for each in self.places) else dim

    def extent_of_units(self, value: torch.Tensor, units: int) -> int:
        packing = self.inputs.packing
        if self._packing is not None or value.dim() == 0 or isinstance(value, nn.Parameter):
            return -1
        if packing is not None and value.shape == packing.unit_of_row.shape and torch.equal(value.cpu(), packing.unit_of_row.to(value.dtype)):
            return -1  # whose each row is, which stays
        dim = self.inputs.dim if value.dim() > 1 else 0
        return dim if value.shape[dim] == units else -1

    def _mirrored(self, units: torch.Tensor, by: float) -> torch.Tensor:
        """The examples, with values of these units mirrored in the range of all values: token ids stay token ids. Fractions go by this factor, or
        the batch's range, and what is even about it, would stay as they are."""
        x = self.inputs.examples
        assert x is not None
        if not bool(units.any()) or x.is_complex():
            return x
        numbers = x[torch.isfinite(x)] if x.is_floating_point() else x
        if numbers.numel() == 0:
            return x
        other = ~x if x.dtype == torch.bool else numbers.min() + numbers.max() - x
        if x.is_floating_point() and bool((numbers != numbers.round()).any()):
            other = other + (1 - by) * (x - other) / 2
        mine = self._of_rows(units).to(x.device)
        shape = x.shape
        if self._packing is not None:
            return torch.where(mine[:, None], other.reshape(len(mine), -1), x.reshape(len(mine), -1)).view(shape)
        return torch.where(mine.view([-1 if i == self.inputs.dim else 1 for i in range(x.dim())]), other, x)

    def _of_rows(self, of_units: torch.Tensor) -> torch.Tensor:
        return of_units if self.inputs.packing is None else of_units[self.inputs.packing.unit_of_row]

    def rows_of_output(self, output: Any, units: int, *, of_any: bool = False) -> list[Rows]:
        """Every tensor of fractions of the output that has the batch's rows, narrowed to a few directions. of_any: of whole numbers and complex ones, too."""
        found: list[Rows] = []
        examples = self.inputs.examples
        extents = [] if examples is None else [extent for d, extent in enumerate(examples.shape) if d != self.inputs.dim]
        places = set(itertools.accumulate(extents, operator.mul)) - {1}

        def keep(value: torch.Tensor) -> torch.Tensor:
            given, value = value, as_fractions(value) if of_any else value
            if value.is_floating_point():
                if self._packing is not None:
                    n = self._packing.rows
                    for extents in (self._packing.extents, (n,), (1, n)):
                        if tuple(value.shape[: len(extents)]) == extents:
                            found.append((value.shape[-1], narrowed(value, len(extents)).reshape(n, -1)))
                            break
                    else:
                        found.extend(self._pooled(value, units))
                elif (rows := rows_of(value, self.inputs.dim, units, places)) is not None:
                    found.append(rows)
                else:
                    found.extend(self._pooled(value, units))
            return given

        if units:
            opened(keep, output)
        return found

    def _pooled(self, value: torch.Tensor, rows: int) -> list[Rows]:
        """Of an output with one row for each segment, or for each unit that units= joins: every row of the batch has that of its own."""
        packing = self.inputs.packing
        if packing is None or value.dim() == 0 or rows != packing.rows:
            return []
        for count, of_row in ((packing.segments, packing.segment_of_row), (packing.units, packing.unit_of_row)):
            if value.shape[0] == count:
                return [(value.shape[-1], narrowed(value, 1).reshape(count, -1).index_select(0, of_row.to(value.device)))]
        return []
