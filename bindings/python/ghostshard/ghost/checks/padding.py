"""How far a batch is padded follows from its longest example. Do outputs or losses of the others follow from that?

They do if a model averages over padded places, takes the last place or attends to them, and if a loss counts them: then one example moves
the losses of all, by no gradient, and no clip norm bounds by how much. The loader tells of some batches how far each example would be
padded alone (loaders/padding.py). So the shorter half goes through the model once more by itself, as it is and cut to what it would be without the others:
outputs at each example's own places must stay, and so must the losses that criterions give. But most of that half stay padded, and what a padded
place does near an example's end may not move with how many follow. So the same is done with the shortest examples, which nothing pads then. What the loop
computes of the outputs shows by gradients: an example's loss must have none at places that are only there for the others.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ...loaders.padding import Axis
from ..listed import picked
from ..provenance import Drawn
from ..provenance.opened import contents
from ..tensor_trees import tensors_in
from .differences import dim_of_rows, how_far, on_a_log_scale
from .without_coins import without_coins

_NEAR = 2  # places by which a loop shortens or lengthens a sequence
_SHIFTS = (0, -1, 1, -2)  # of a sequence that predicts its next element, or has one more at its beginning
_OWN_LOSSES = -1  # their number among outputs
_HALF, _SHORTEST = 0, 1  # of an axis's cuts
_AS_FAR = 16.0  # times: two random roundings are no bound of what another order of a sum does
_MARGIN = 2  # places at an example's end that also see what comes after it, where several make one


@dataclass(frozen=True)
class Short:
    """An extent of a batch, and of some of its units."""

    of: int
    to: int
    left: bool  # padding comes first
    alone: tuple[int, ...]  # [these units]


@dataclass(frozen=True)
class Places:
    """A dimension of an output that follows an axis."""

    d: int  # with the units first
    axis: int
    rest: int  # how many it has only for the longer units
    rate: float  # for each of the axis's
    margin: int

    def missing(self, places: torch.Tensor) -> torch.Tensor:
        """Of units that have so many places of the axis less. One that has them all has all of the output's: nothing pads it."""
        return torch.where(places > 0, (places * self.rate).ceil().long() + self.margin, 0)


@dataclass(frozen=True)
class Cut:
    """Some of a batch's units, as far as they would be padded by themselves."""

    units: torch.Tensor  # their numbers
    axes: tuple[Short, ...]  # the one that was cut by comes first
    fixed: frozenset[int]  # extents of the batch that are no axis's

    def fit(self, extents: Iterable[int], *, scaled: bool = False) -> tuple[int, int] | None:
        """Factor and difference between the axis that was cut by and one of these. None: it is not among them."""
        known = set(extents) - self.fixed
        of, *others = (axis.of for axis in self.axes)
        for shift in _SHIFTS:  # but for what another axis may have been cut or lengthened to
            if of + shift in known and (shift == 0 or all(of + shift - other not in _SHIFTS for other in others)):
                return 1, shift
        multiples = ((each // of, 0) for each in known if each > of and each % of == 0 and each not in others)
        return next(multiples, None) if scaled else None

    def shortened(self, value: torch.Tensor, fit: tuple[int, int], *, but: int | None, once: bool = False) -> torch.Tensor:
        """Without the places that are there for others. but: the units' dimension. once: along the first such dimension alone."""
        for d in range(value.dim()):
            extent = value.shape[d]
            shifted = [(axis, fit[1] if axis is self.axes[0] else 0) for axis in self.axes]
            found = ((axis, times) for axis, by in shifted for times in {1, fit[0]} if extent not in self.fixed and extent == times * axis.of + by)
            axis, times = next(found, (None, 1)) if d != but else (None, 1)
            if axis is not None:
                value = _without(value, d, times * (axis.of - axis.to), axis.left)
                if once:
                    break
        return value.contiguous()  # as a collate_fn's: models take views of it

    def differs(self, whole: list[torch.Tensor], shorter: list[torch.Tensor], eps: float = 0.0) -> bool:
        """Whether rows [units, ...] of both are others, at places that a unit would have alone."""
        return self.how_far(whole, shorter, eps) > 1

    def how_far(self, whole: list[torch.Tensor], shorter: list[torch.Tensor], eps: float = 0.0) -> float:
        """The largest difference of theirs (differences.py)."""
        pairs = [found for pair in zip(whole, shorter) if (found := self._at_own_places(*pair)) is not None]
        everybody = torch.ones(len(self.units), dtype=torch.bool)
        return how_far([(0, one) for one, _ in pairs], [(0, two) for _, two in pairs], everybody, eps=eps)

    def places_of(self, whole: torch.Tensor, shorter: torch.Tensor) -> list[Places] | None:
        """None if it is not known which places belong together."""
        if whole.dim() != shorter.dim():
            return None
        found = [self._places(d, whole.shape[d], shorter.shape[d]) for d in range(1, whole.dim()) if whole.shape[d] != shorter.shape[d]]
        return None if None in found else [each for each in found if each is not None]

    def _places(self, d: int, whole: int, shorter: int) -> Places | None:
        rest = whole - shorter
        # Of axes that are cut by as much, the one whose extent it has comes first.
        for number, axis in sorted(enumerate(self.axes), key=lambda each: whole != each[1].of):
            if rest == axis.of - axis.to:
                return Places(d, number, rest, 1, 0)
            if rest > 0 and whole % axis.of == 0 and rest == whole // axis.of * (axis.of - axis.to):
                return Places(d, number, rest, whole // axis.of, 0)
        for number, axis in enumerate(self.axes):
            rate = whole / axis.of
            if rest > 0 and abs(rest - rate * (axis.of - axis.to)) <= 1:
                return Places(d, number, rest, rate, _MARGIN)
        return None

    def _at_own_places(self, whole: torch.Tensor, shorter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        every = self.places_of(whole, shorter)
        if every is None:
            return None
        for places in every:
            axis, extent = self.axes[places.axis], shorter.shape[places.d]
            whole = _without(whole, places.d, places.rest, axis.left)
            own = ~last(extent, places.missing(axis.to - torch.tensor(axis.alone)), axis.left)
            own = own.view(len(own), *[extent if i == places.d else 1 for i in range(1, whole.dim())]).to(whole.device)
            whole, shorter = torch.where(own, whole, 0), torch.where(own, shorter, 0)
        return whole, shorter


def last(extent: int, missing: torch.Tensor, left: bool) -> torch.Tensor:
    """bool [units, extent]: the last so many places of each unit, or the first."""
    places = torch.arange(extent)
    return places < missing[:, None] if left else places >= extent - missing[:, None]


def _without(value: torch.Tensor, d: int, rest: int, left: bool) -> torch.Tensor:
    return value.narrow(d, rest if left else 0, value.shape[d] - rest)


def padding_of(examples: torch.Tensor | None) -> tuple[Axis, ...]:
    """What the loader told of the batch that these are of, for their rows in their order."""
    if not isinstance(examples, Drawn):
        return ()
    origin = examples.origin
    axes = getattr(origin.memory.piece, "padding", ())
    ids = origin.numbers().tolist()
    if not axes or origin.dim is None or len(ids) != origin.rows or len(set(ids)) < len(ids) or len(ids) != len(axes[0].alone):
        return ()
    return tuple(replace(each, alone=tuple(each.alone[i] for i in ids)) for each in axes)


def cuts_of(axes: Sequence[Axis]) -> list[tuple[Cut | None, Cut | None]]:
    """For each axis the half whose units are shortest along it; those that are shorter than the longest if that is not half of them. And of these the
    shortest alone. None: all are alike, or the half is."""
    extents = sorted(each.extent for each in axes)
    near = any(two - one <= _NEAR for one, two in itertools.pairwise(extents))  # y[:, :-1] of the one may have the other's extent
    if not axes or near or len(axes[0].alone) in extents:
        return [(None, None)] * len(axes)  # two kinds of lengths, or one and the number of examples, that happen to be alike here
    return [_cuts_by(axis, [axis, *(each for each in axes if each is not axis)]) for axis in axes]


def _cuts_by(axis: Axis, axes: Sequence[Axis]) -> tuple[Cut | None, Cut | None]:
    ranked = sorted(axis.alone)
    most = ranked[(len(ranked) - 1) // 2]
    if most == axis.extent:
        most = max((each for each in ranked if each < axis.extent), default=most)
    if most == axis.extent:
        return None, None
    half = _cut_to([u for u, alone in enumerate(axis.alone) if alone <= most], axes)
    least = min((each for each in ranked if each > _NEAR), default=most)  # a loop that shortens leaves nothing of fewer places
    shortest = [u for u, alone in enumerate(axis.alone) if alone == least]
    # Twice if there is one: a model may squeeze() a batch of one row.
    return half, _cut_to(shortest * (1 + (len(shortest) == 1)), axes) if least < most else None


def _cut_to(units: Sequence[int], axes: Sequence[Axis]) -> Cut:
    of_units = [(each, tuple(each.alone[u] for u in units)) for each in axes]
    return Cut(torch.tensor(units), tuple(Short(each.extent, max(alone), each.left, alone) for each, alone in of_units), axes[0].fixed)


def toss(coins: int) -> None:
    """Other coins, by their number. What moves with them tells nothing of padding: a coin for each place is another one where there are others."""
    random.seed(coins)
    np.random.seed(coins)
    torch.manual_seed(coins)


@dataclass(frozen=True)
class PaddedOutput:
    """What is known of an output from the two forwards."""

    places: Places
    axis: Axis
    shape: torch.Size  # without the units
    zero: bool  # at places that are there for others: a sum over them is each example's own

    @property
    def d(self) -> int:
        return self.places.d

    def others(self) -> torch.Tensor:
        """bool [units, places]: those that are not the unit's own, for certain."""
        missing = [math.floor((self.axis.extent - each) * self.places.rate) - self.places.margin for each in self.axis.alone]
        return last(self.shape[self.d - 1], torch.tensor(missing), self.axis.left)


def is_padded(repeat: Any, before: Sequence[Any], highest: Callable[[list[int]], list[int]], number: int) -> bool:
    """Whether outputs follow from how far the batch is padded along the axis of this number, on any rank. A collective."""
    for which in (_HALF, _SHORTEST):
        if which == _SHORTEST and not highest([_cut_and_fit(repeat, number, which)[1] is not None])[0]:
            continue
        # A model that does not take so few places tells nothing.
        moved = bool(repeat.tried(lambda which=which: _outputs_follow(repeat, before, number, which), 3))
        if highest([moved])[0]:
            by_coins = repeat.tried(lambda which=which: _coins_move_outputs(repeat, before, number, which), 7)
            if highest([moved and by_coins is False])[0]:
                return True
    return False


def _outputs_follow(repeat: Any, before: Sequence[Any], number: int, which: int) -> bool:
    """Whether outputs of the half that is shorter along the batch's axis of this number, or of the shortest, are others if they are padded as far as they would be by
    themselves. Three forwards of a Repeat (values.py), without dropout, each from the states `before`. A rank that was told of no padding goes
    along."""
    inputs, (cut, fit) = repeat.inputs, _cut_and_fit(repeat, number, which)
    outputs = functools.partial(_outputs, repeat, before, cut, fit)
    with without_coins(repeat.model) as computed:
        as_given, again, short = outputs(), outputs(coins=1), outputs(shorter=True)
    if cut is None or fit is None or as_given.keys() != short.keys():
        return False
    if which == _HALF:
        _note_places(inputs, cut, as_given, short)
    whole, once_more, cut_short = (list(each.values()) for each in (as_given, again, short))
    tells = any(each.numel() and bool(each.max() > each.min()) for place, each in as_given.items() if place != _OWN_LOSSES)  # not a head of zeros
    compared = not cut.differs(whole, once_more)
    inputs.padding_was_compared |= {number} if compared and tells and which == _HALF else set()
    return compared and cut.differs(whole, cut_short, computed.eps)  # sums over other extents round otherwise


def _note_places(inputs: Any, cut: Cut, as_given: Mapping[int, torch.Tensor], short: Mapping[int, torch.Tensor]) -> None:
    """Which outputs have places of the batch's axes."""
    inputs.pooled = inputs.pooled and all(whole.shape == short[place].shape for place, whole in as_given.items())
    for place, whole in as_given.items():
        for places in cut.places_of(whole, short[place]) or ():
            axis = cut.axes[places.axis]
            others = last(whole.shape[places.d], places.missing(axis.of - torch.tensor(axis.alone)), axis.left)
            beyond = whole.movedim(places.d, 1)[others.to(whole.device)]
            told = next(each for each in inputs.padding if each.extent == axis.of)
            inputs.padded_outputs.setdefault(place, []).append(PaddedOutput(places, told, whole.shape[1:], not bool(beyond.any())))


def _coins_move_outputs(repeat: Any, before: Sequence[Any], number: int, which: int) -> bool:
    """Whether outputs of these units are others with other coins, which may be rare (a word in a hundred that is left out), or move as far if values are
    rounded another way, which saturated attention in 16 bits may blow up to any size: sums over other extents are. Seven forwards."""
    cut, fit = _cut_and_fit(repeat, number, which)
    with without_coins(repeat.model) as computed:
        as_given, *others = (list(_outputs(repeat, before, cut, fit, coins=coins).values()) for coins in (0, 2, 3, 4))
        short = list(_outputs(repeat, before, cut, fit, shorter=True).values())
        with computed.rounded_otherwise():
            rounded = [list(_outputs(repeat, before, cut, fit).values()) for _ in range(2)]
    if cut is None:
        return False
    by_rounding = max(cut.how_far(as_given, each, computed.eps) for each in rounded)
    as_far = by_rounding > 1 and _AS_FAR * by_rounding >= cut.how_far(as_given, short, computed.eps)
    return as_far or any(cut.differs(as_given, each) for each in others)


def settled_axes(repeats: Sequence[Any]) -> set[tuple[int, int]]:
    """The places of axes that were compared in every forward that takes them."""
    settled, open_ones = set(), set()
    for repeat in repeats:
        for number, axis in enumerate(repeat.inputs.padding):
            cut, fit = _cut_and_fit(repeat, number, _HALF)
            needs_none = number in repeat.inputs.padding_was_compared or (cut is not None and fit is None)
            (settled if needs_none else open_ones).add(axis.place)
    return settled - open_ones


def _cut_and_fit(repeat: Any, number: int, which: int) -> tuple[Cut | None, tuple[int, int] | None]:
    inputs = repeat.inputs
    if inputs.packing is not None or number >= len(inputs.padding):
        return None, None
    cut = cuts_of(inputs.padding)[number][which]
    if cut is None:
        return None, None
    labels = None if repeat.own_loss is None else inputs.labels
    given = [(value, repeat.extent_of_units(value, inputs.units)) for value in tensors_in((inputs.args, inputs.kwargs, labels))]
    fit = cut.fit(extent for value, dim in given if dim >= 0 for extent in without_extent(value, dim))
    return cut, fit


def _outputs(
    repeat: Any, before: Sequence[Any], cut: Cut | None, fit: tuple[int, int] | None, *, shorter: bool = False, coins: int = 0
) -> dict[int, torch.Tensor]:
    """Of the cut's units, by their numbers in the output, with the units first; the model's own losses too, if these go backward."""
    inputs = repeat.inputs

    def take(value: torch.Tensor) -> torch.Tensor:
        if cut is None or fit is None or isinstance(value, nn.Parameter):
            return value
        dim = repeat.extent_of_units(value, inputs.units)
        value = value if dim < 0 else value.index_select(dim, cut.units.to(value.device))
        return cut.shortened(value, fit, but=dim) if shorter else value

    for each in before:
        each.again()
    if coins:
        toss(coins)
    args, kwargs = repeat.with_units(take, lambda each: each if cut is None or fit is None else picked(each, cut.units.tolist()))
    units, losses = 0 if cut is None else len(cut.units), None
    if cut is None or fit is None or repeat.own_loss is None:
        output = repeat.once(*args, **kwargs)
    else:
        examples, labels = (None if each is None else take(each) for each in (inputs.examples, inputs.labels))
        given = replace(inputs, args=args, kwargs=kwargs, examples=examples, labels=labels)
        output, losses = repeat.own_loss.again(given, repeat.once)
    rows = [(number, each, dim_of_rows(each, inputs.dim, units)) for number, each in enumerate(contents(output)) if each.is_floating_point()]
    rows += [] if losses is None else [(_OWN_LOSSES, losses, 0)]
    return {number: on_a_log_scale(each).to(each.dtype).movedim(dim, 0) for number, each, dim in rows if dim is not None}


def without_extent(value: torch.Tensor, dim: int) -> tuple[int, ...]:
    return tuple(extent for d, extent in enumerate(value.shape) if d != dim)


def has_places_of(extents: tuple[int, ...], shape: tuple[int, ...], places: int) -> bool:
    """Whether it is an output of this shape, or what was selected of it, in whatever order of its extents."""
    of_all, own = Counter(shape), Counter(each for each in extents if each != 1)
    return own[places] == 1 == of_all[places] and own <= of_all


__all__ = ["Cut", "PaddedOutput", "cuts_of", "has_places_of", "is_padded", "last", "padding_of", "settled_axes", "toss", "without_extent"]
