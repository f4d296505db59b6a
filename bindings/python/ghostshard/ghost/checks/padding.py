"""How far a batch is padded follows from its longest example. Do outputs or losses of the others follow from that?

They do if a model averages over padded places, takes the last place or attends to them, and if a loss counts them: then one example moves
the losses of all, by no gradient, and no clip norm bounds by how much. The loader tells of some batches how far each example would be
padded alone (loaders/padding.py). So the shorter half goes through the model once more by itself, as it is and cut to what it would be without the others:
outputs at each example's own places must stay, and so must the losses that criterions give. What the loop computes of the outputs shows by
gradients: an example's loss must have none at places that are only there for the others.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ...loaders.padding import Axis
from ..provenance import Drawn
from ..provenance.opened import contents
from ..tensor_trees import mapped, tensors_in
from .differences import differ, dim_of_rows, on_a_log_scale

_SHIFTS = (0, -1, 1, -2)  # of a sequence that predicts its next element, or has one more at its beginning
_LEAST = 1e-6  # of the largest gradient
_MARGIN = 2  # places at an example's end that also see what comes after it, where several make one


@dataclass(frozen=True)
class Short:
    """An extent of a batch, and of its shorter half."""

    of: int
    to: int
    left: bool  # padding comes first
    alone: tuple[int, ...]  # [units of the half]


@dataclass(frozen=True)
class Places:
    """A dimension of an output that follows an axis."""

    d: int  # with the units first
    axis: int
    rest: int  # how many it has only for the longer half
    rate: float  # for each of the axis's
    margin: int

    def missing(self, places: torch.Tensor) -> torch.Tensor:
        return (places * self.rate).ceil().long() + self.margin


@dataclass(frozen=True)
class Cut:
    """The shorter half of a batch's units, as far as they would be padded by themselves."""

    units: torch.Tensor  # their numbers, in order
    axes: tuple[Short, ...]
    fixed: frozenset[int]  # extents of the batch that are no axis's

    def fit(self, extents: Iterable[int], *, scaled: bool = False) -> tuple[int, int] | None:
        """Factor and difference between an axis and one of these. None: no axis is among them."""
        known = set(extents)
        for shift in _SHIFTS if len(self.axes) == 1 else (0,):
            if any(axis.of + shift in known for axis in self.axes):
                return 1, shift
        multiples = ((each // axis.of, 0) for each in known - self.fixed for axis in self.axes if each > axis.of and each % axis.of == 0)
        return next(multiples, None) if scaled else None

    def shortened(self, value: torch.Tensor, fit: tuple[int, int], *, but: int | None, once: bool = False) -> torch.Tensor:
        """Without the places that are there for others. but: the units' dimension. once: along the first such dimension alone."""
        for d in range(value.dim()):
            found = ((axis, times) for axis in self.axes for times in {1, fit[0]} if d != but and value.shape[d] == times * axis.of + fit[1])
            axis, times = next(found, (None, 1))
            if axis is not None:
                value = _without(value, d, times * (axis.of - axis.to), axis.left)
                if once:
                    break
        return value

    def differs(self, whole: list[torch.Tensor], shorter: list[torch.Tensor], eps: float = 0.0) -> bool:
        """Whether rows [units, ...] of both are others, at places that a unit would have alone."""
        pairs = [found for pair in zip(whole, shorter) if (found := self._at_own_places(*pair)) is not None]
        everybody = torch.ones(len(self.units), dtype=torch.bool)
        return differ([(0, one) for one, _ in pairs], [(0, two) for _, two in pairs], everybody, eps=eps)

    def places_of(self, whole: torch.Tensor, shorter: torch.Tensor) -> list[Places] | None:
        """None if it is not known which places belong together."""
        if whole.dim() != shorter.dim():
            return None
        found = [self._places(d, whole.shape[d], shorter.shape[d]) for d in range(1, whole.dim()) if whole.shape[d] != shorter.shape[d]]
        return None if None in found else [each for each in found if each is not None]

    def _places(self, d: int, whole: int, shorter: int) -> Places | None:
        rest = whole - shorter
        for number, axis in enumerate(self.axes):
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
    if not axes or origin.dim is None or len(ids) != origin.rows or len(set(ids)) < len(ids):
        return ()
    return tuple(Axis(each.extent, tuple(each.alone[i] for i in ids), each.left, each.fixed) for each in axes)


def cut_of(axes: Sequence[Axis]) -> Cut | None:
    """The half whose units are shortest; those that are shorter than the longest if that is not half of them. None: all are alike."""
    for axis in axes:
        ranked = sorted(axis.alone)
        most = ranked[(len(ranked) - 1) // 2]
        if most == axis.extent:
            most = max((each for each in ranked if each < axis.extent), default=most)
        if most < axis.extent:
            units = [u for u, alone in enumerate(axis.alone) if alone <= most]
            of_units = [(each, tuple(each.alone[u] for u in units)) for each in axes]
            if len({len(axis.alone), *(each.extent for each in axes)}) <= len(axes):
                return None  # two kinds of lengths, or one and the number of examples, that happen to be alike here
            return Cut(torch.tensor(units), tuple(Short(each.extent, max(alone), each.left, alone) for each, alone in of_units), axis.fixed)
    return None


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


def outputs_follow(repeat: Any, before: Sequence[Any]) -> bool:
    """Whether outputs of the shorter units are others if these are padded as far as they would be by themselves. Three forwards of a Repeat
    (values.py), without dropout, each from the states `before`. A rank that was told of no padding goes along."""
    inputs, (cut, fit) = repeat.inputs, _cut_and_fit(repeat.inputs)
    outputs = functools.partial(_outputs, repeat, before, cut, fit)
    with _as_in_training(repeat.model) as computed:
        as_given, again, short = outputs(), outputs(coins=1), outputs(shorter=True)
    if cut is None or fit is None or as_given.keys() != short.keys():
        return False
    for number, whole in as_given.items():
        for places in cut.places_of(whole, short[number]) or ():
            axis = cut.axes[places.axis]
            others = last(whole.shape[places.d], places.missing(axis.of - torch.tensor(axis.alone)), axis.left)
            beyond = whole.movedim(places.d, 1)[others.to(whole.device)]
            inputs.padded_outputs[number] = PaddedOutput(places, inputs.padding[places.axis], whole.shape[1:], not bool(beyond.any()))
    whole, once_more, cut_short = (list(each.values()) for each in (as_given, again, short))
    tells = any(each.numel() and bool(each.max() > each.min()) for each in whole)  # not a head of zeros
    inputs.padding_was_compared = tells and not cut.differs(whole, once_more)
    return inputs.padding_was_compared and cut.differs(whole, cut_short, computed.eps)  # sums over other extents round otherwise


def coins_move_outputs(repeat: Any, before: Sequence[Any]) -> bool:
    """Whether outputs of the shorter units are others with other coins, which may be rare (a word in a hundred that is left out). Four forwards."""
    cut, fit = _cut_and_fit(repeat.inputs)
    with _as_in_training(repeat.model):
        as_given, *others = (list(_outputs(repeat, before, cut, fit, coins=coins).values()) for coins in (0, 2, 3, 4))
    return cut is not None and any(cut.differs(as_given, each) for each in others)


def _cut_and_fit(inputs: Any) -> tuple[Cut | None, tuple[int, int] | None]:
    cut = None if inputs.packing is not None else cut_of(inputs.padding)
    return cut, None if cut is None else cut.fit(_extents(inputs.examples, inputs.dim))


def _outputs(
    repeat: Any, before: Sequence[Any], cut: Cut | None, fit: tuple[int, int] | None, *, shorter: bool = False, coins: int = 0
) -> dict[int, torch.Tensor]:
    """Of the shorter units, by their numbers in the output, with the units first."""
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
    output = repeat.once(*mapped(take, inputs.args), **mapped(take, inputs.kwargs))
    units = 0 if cut is None else len(cut.units)
    rows = [(number, each, dim_of_rows(each, inputs.dim, units)) for number, each in enumerate(contents(output)) if each.is_floating_point()]
    return {number: on_a_log_scale(each).to(each.dtype).movedim(dim, 0) for number, each, dim in rows if dim is not None}


class _Computed:
    """In which precision modules are called."""

    eps = 0.0

    def __call__(self, _module: nn.Module, args: tuple) -> None:
        dtypes = [value.dtype for value in tensors_in(args) if value.is_floating_point()]
        dtypes += [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        self.eps = max([self.eps, *(torch.finfo(dtype).eps for dtype in dtypes)])


@contextmanager
def _as_in_training(model: nn.Module) -> Iterator[_Computed]:
    """Without dropout, and without the attention that torch takes in evaluation, which puts zeros at padded places."""
    computed = _Computed()
    compiled = any("_orig_mod" in module._modules or module._compiled_call_impl is not None for module in model.modules())
    if compiled:  # it would be compiled again, with hooks
        computed.eps = torch.finfo(torch.bfloat16).eps
    handles = [] if compiled else [module.register_forward_pre_hook(computed) for module in model.modules()]
    training = [module for module in model.modules() if module.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield computed
    finally:
        for handle in handles:
            handle.remove()
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in training:
            module.training = True


@dataclass(frozen=True)
class OutputNode:
    """Where an output of the model stands in the autograd graph."""

    node: Any
    number: int  # of the node's outputs
    place: int  # among the tensors of the model's output
    shape: torch.Size
    dim: int  # of the units in inputs, and in outputs that have places


def nodes_of(output: Any, dim: int, only: torch.Tensor | None = None) -> tuple[OutputNode, ...]:
    """As the loop gets them: what the model itself goes on with is looked at with its outputs."""
    tensors = [(place, each) for place, each in enumerate(contents(output)) if each.grad_fn is not None and (only is None or each is only)]
    return tuple(OutputNode(each.grad_fn, each.output_nr, place, each.shape, dim) for place, each in tensors)


class PaddedGradients:
    """Whether a backward brings gradients to places of outputs that are not their example's own. `found` after watched(). of: by an output's number."""

    def __init__(self, nodes: Sequence[OutputNode], of: Mapping[int, PaddedOutput]):
        self._nodes, self._of = [each for each in nodes if each.place in of and not of[each.place].zero], of
        self.found = False

    @property
    def watches(self) -> bool:
        return bool(self._nodes)

    @contextmanager
    def watched(self) -> Iterator[None]:
        handles = [each.node.register_prehook(self._hook(each)) for each in self._nodes]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, of: OutputNode) -> Callable[[tuple], None]:
        def look(gradients: tuple) -> None:
            gradient = gradients[of.number]
            if gradient is not None and gradient.shape == of.shape:
                self.found = self.found or _beyond(gradient, of.dim, self._of[of.place])

        return look


def _beyond(gradient: torch.Tensor, dim: int, of: PaddedOutput) -> bool:
    axis, units = of.axis, len(of.axis.alone)
    of_units = dim_of_rows(gradient, dim, units)
    rows = gradient if of_units is None else gradient.detach().abs().movedim(of_units, 0)
    if of_units is None or rows.shape[1:] != of.shape:
        return False  # training gives something else than evaluation does
    rows = rows.movedim(of.places.d, 1)
    flat = rows.reshape(units, rows.shape[1], -1).amax(2).cpu()
    missing = [math.floor((axis.extent - each) * of.places.rate) - of.places.margin for each in axis.alone]
    others = last(rows.shape[1], torch.tensor(missing), axis.left)
    return bool((torch.where(others, flat, 0) > _LEAST * torch.where(flat.isfinite(), flat, 0).max()).any())


def _extents(value: torch.Tensor | None, but: int) -> list[int]:
    return [] if value is None else [extent for d, extent in enumerate(value.shape) if d != but]


__all__ = ["Cut", "OutputNode", "PaddedGradients", "PaddedOutput", "coins_move_outputs", "cut_of", "nodes_of", "outputs_follow", "padding_of", "toss"]
