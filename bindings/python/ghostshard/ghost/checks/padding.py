"""How far a batch is padded follows from its longest example. Do outputs or losses of the others follow from that?

They do if a model averages over padded places, takes the last place or attends to them, and if a loss counts them: then one example moves
the losses of all, by no gradient, and no clip norm bounds by how much. The loader tells of some batches how far each example would be
padded alone (loaders/padding.py). So the shorter half goes through the model once more by itself, as it is and cut to what it would be without the others:
outputs at each example's own places must stay, and so must the losses that criterions give. What the loop computes of the outputs shows by
gradients: an example's loss must have none at places that are only there for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...loaders.padding import Axis
from ..provenance import Drawn
from ..provenance.opened import opened
from ..tensor_trees import mapped
from .differences import differ, dim_of_rows, on_a_log_scale

_SHIFTS = (0, -1, 1, -2)  # of a sequence that predicts its next element, or has one more at its beginning
_LEAST = 1e-6  # of the largest gradient


@dataclass(frozen=True)
class Cut:
    """The shorter half of a batch's units, as far as they would be padded by themselves."""

    units: torch.Tensor  # their numbers, in order
    axes: tuple[tuple[int, int, bool, tuple[int, ...]], ...]  # extent in the batch, among themselves, padding first?, each unit's alone

    def shift(self, extents: Iterable[int]) -> int | None:
        """By how much these differ from the loader's. None: no extent of the loader's is among them."""
        known = set(extents)
        for shift in _SHIFTS if len(self.axes) == 1 else (0,):
            if any(of + shift in known for of, *_ in self.axes):
                return shift
        return None

    def shortened(self, value: torch.Tensor, shift: int, *, but: int | None, once: bool = False) -> torch.Tensor:
        """Without the places that are there for others. but: the units' dimension. once: along the first such dimension alone."""
        for d in range(value.dim()):
            axis = next((axis for axis in self.axes if d != but and value.shape[d] == axis[0] + shift), None)
            if axis is not None:
                value = _without(value, d, axis)
                if once:
                    break
        return value

    def differs(self, whole: list[torch.Tensor], shorter: list[torch.Tensor]) -> bool:
        """Whether rows [units, ...] of both are others, at places that a unit would have alone."""
        pairs = [found for pair in zip(whole, shorter) if (found := self._at_own_places(*pair)) is not None]
        everybody = torch.ones(len(self.units), dtype=torch.bool)
        return differ([(0, one) for one, _ in pairs], [(0, two) for _, two in pairs], everybody)

    def axis_of(self, whole: int, shorter: int) -> int | None:
        """Which one an extent follows, that was `whole` and is `shorter` in the cut batch."""
        return next((number for number, (of, to, *_) in enumerate(self.axes) if whole - shorter == of - to > 0 and whole - of in _SHIFTS), None)

    def _at_own_places(self, whole: torch.Tensor, shorter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """None if it is not known which places belong together (a model that takes several steps at once)."""
        if whole.dim() != shorter.dim():
            return None
        for d in range(1, whole.dim()):
            extent = shorter.shape[d]
            if whole.shape[d] == extent:
                continue
            number = self.axis_of(whole.shape[d], extent)
            if number is None:
                return None
            axis = self.axes[number]
            whole = _without(whole, d, axis)
            missing = axis[1] - torch.tensor(axis[3])
            own = torch.arange(extent) >= missing[:, None] if axis[2] else torch.arange(extent) < extent - missing[:, None]
            own = own.view(len(missing), *[extent if i == d else 1 for i in range(1, whole.dim())]).to(whole.device)
            whole, shorter = torch.where(own, whole, 0), torch.where(own, shorter, 0)
        return whole, shorter


def _without(value: torch.Tensor, d: int, axis: tuple[int, int, bool, tuple[int, ...]]) -> torch.Tensor:
    rest = axis[0] - axis[1]
    return value.narrow(d, rest if axis[2] else 0, value.shape[d] - rest)


def padding_of(examples: torch.Tensor | None) -> tuple[Axis, ...]:
    """What the loader told of the batch that these are of, for their rows in their order."""
    if not isinstance(examples, Drawn):
        return ()
    origin = examples.origin
    axes = getattr(origin.memory.piece, "padding", ())
    ids = origin.numbers().tolist()
    if not axes or origin.dim is None or len(ids) != origin.rows or len(set(ids)) < len(ids):
        return ()
    return tuple(Axis(each.extent, tuple(each.alone[i] for i in ids), each.left) for each in axes)


def cut_of(axes: Sequence[Axis]) -> Cut | None:
    """The half whose units are shortest; those that are shorter than the longest if that is not half of them. None: all are alike."""
    for axis in axes:
        ranked = sorted(axis.alone)
        most = ranked[(len(ranked) - 1) // 2]
        if most == axis.extent:
            most = max((each for each in ranked if each < axis.extent), default=most)
        if most < axis.extent:
            units = [u for u, alone in enumerate(axis.alone) if alone <= most]
            of_units = [(each.extent, [each.alone[u] for u in units], each.left) for each in axes]
            if len({len(axis.alone), *(extent for extent, *_ in of_units)}) <= len(of_units):
                return None  # two kinds of lengths, or one and the number of examples, that happen to be alike here
            return Cut(torch.tensor(units), tuple((extent, max(alone), left, tuple(alone)) for extent, alone, left in of_units))
    return None


def outputs_follow(repeat: Any, before: Sequence[Any]) -> bool:
    """Whether outputs of the shorter units are others if these are padded as far as they would be by themselves. Three forwards of a Repeat
    (values.py), without dropout, each from the states `before`. A rank that was told of no padding goes along."""
    inputs = repeat.inputs
    cut = None if inputs.packing is not None else cut_of(inputs.padding)
    shift = None if cut is None else cut.shift(_extents(inputs.examples, inputs.dim))

    def outputs(*, shorter: bool) -> dict[int, torch.Tensor]:
        """By their numbers in the output, with the units first."""

        def take(value: torch.Tensor) -> torch.Tensor:
            if cut is None or shift is None or isinstance(value, nn.Parameter):
                return value
            dim = repeat.extent_of_units(value, inputs.units)
            value = value if dim < 0 else value.index_select(dim, cut.units.to(value.device))
            return cut.shortened(value, shift, but=dim, once=value.is_floating_point() and dim >= 0) if shorter else value

        for each in before:
            each.again()
        output = repeat.once(*mapped(take, inputs.args), **mapped(take, inputs.kwargs))
        units = 0 if cut is None else len(cut.units)
        rows = [(number, each, dim_of_rows(each, inputs.dim, units)) for number, each in enumerate(_tensors(output)) if each.is_floating_point()]
        return {number: on_a_log_scale(each).to(each.dtype).movedim(dim, 0) for number, each, dim in rows if dim is not None}

    training = [module for module in repeat.model.modules() if module.training]
    repeat.model.eval()
    try:
        as_given, again, shorter = outputs(shorter=False), outputs(shorter=False), outputs(shorter=True)
        if cut is None or shift is None or as_given.keys() != shorter.keys():
            return False
        for number, whole in as_given.items():
            if whole.dim() == shorter[number].dim():
                found = ((d, cut.axis_of(whole.shape[d], shorter[number].shape[d])) for d in range(1, whole.dim()))
                inputs.padded_outputs.update({number: (d, inputs.padding[axis]) for d, axis in found if axis is not None})
        whole, once_more, cut_short = (list(each.values()) for each in (as_given, again, shorter))
        inputs.padding_was_compared = bool(whole) and not cut.differs(whole, once_more)  # coins that are tossed all the same tell nothing
        return inputs.padding_was_compared and cut.differs(whole, cut_short)
    finally:
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


def nodes_of(output: Any, dim: int) -> tuple[OutputNode, ...]:
    tensors = [(place, each) for place, each in enumerate(_tensors(output)) if each.grad_fn is not None]
    return tuple(OutputNode(each.grad_fn, each.output_nr, place, each.shape, dim) for place, each in tensors)


class PaddedGradients:
    """Whether a backward brings gradients to places of outputs that are not their example's own. `found` after watched(). of: by an output's number,
    its dimension of places, with the units first, and what it follows."""

    def __init__(self, nodes: Sequence[OutputNode], of: Mapping[int, tuple[int, Axis]]):
        self._nodes, self._of = [each for each in nodes if each.place in of], of
        self.found = False

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
            gradient, (d, axis) = gradients[of.number], self._of[of.place]
            if gradient is not None and gradient.shape == of.shape:
                self.found = self.found or _beyond(gradient, of.dim, d, axis)

        return look


def _beyond(gradient: torch.Tensor, dim: int, d: int, axis: Axis) -> bool:
    units = len(axis.alone)
    of_units = dim_of_rows(gradient, dim, units)
    if of_units is None:
        return False
    rows = gradient.detach().abs().movedim(of_units, 0).movedim(d, 1)
    flat = rows.reshape(units, rows.shape[1], -1).amax(2).cpu()
    places, missing = torch.arange(rows.shape[1]), axis.extent - torch.tensor(axis.alone)
    others = places < missing[:, None] if axis.left else places >= rows.shape[1] - missing[:, None]
    return bool((torch.where(others, flat, 0) > _LEAST * torch.where(flat.isfinite(), flat, 0).max()).any())


def _tensors(output: Any) -> list[torch.Tensor]:
    """In objects too."""
    found: list[torch.Tensor] = []

    def keep(value: torch.Tensor) -> torch.Tensor:
        found.append(value)
        return value

    opened(keep, output)
    return found


def _extents(value: torch.Tensor | None, but: int) -> list[int]:
    return [] if value is None else [extent for d, extent in enumerate(value.shape) if d != but]


__all__ = ["Cut", "OutputNode", "PaddedGradients", "cut_of", "nodes_of", "outputs_follow", "padding_of"]
