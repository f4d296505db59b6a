"""Weights move by the run's optimizer alone: what else is written to them between two steps may have read private data without noise
(a copy of the model that was trained on the same batches, loaded back), and no epsilon covers it.

After every step a sample of each parameter's elements is kept, at places that stay, and compared before the next backward, release
and step. A sample costs a 4096th of the elements. Three changes are taken, whatever they follow from, as of gradients (released.py):
a factor for each parameter (decay, a largest norm), a bound on every element (weights clipped for a critic), and rounding (weights
that were merged and taken apart again; in half precision that is computed once more: merged_adapters.py). So are the weights of an
earlier moment of this run: all of them are released already. Any other change needs the user's word.

Weights before the first backward are the user's own, if no forward on a private batch wrote to them (forward_writes.py), and so are those after a checkpoint was loaded, and after a phase with hooks disabled that
had no batch of the private loader.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from ..layout import Layout
from ..own_part import comparable, own_part
from ..provenance import Drawn
from .compared import post_processed, same
from .forward_writes import ForwardWrites
from .held_buffers import HeldBuffers
from .held_settings import STATES, WEIGHTS, HeldSettings
from .held_states import HeldStates
from .merged_adapters import merged_and_unmerged
from .samples import Views

_LEAST, _EVERY = 64, 4096  # elements of a parameter that are looked at: so many, and one in so many
_SMALL_MATRIX = 1024  # elements, all of which are

_REFUSAL = (
    "parameter {!r} is not what the last step of the private optimizer made of it: its values were replaced or changed (load_state_dict, copy_, .data), and nothing "
    "tells whether what was written had read private data without noise. Nothing of this was applied. Put back the weights before the next step (after an evaluation with others), "
    "or load a checkpoint with load_checkpoint(). A factor for the whole parameter, bounds on its elements and weights of an earlier step of this run are "
    "taken, and so are LoRA adapters that PEFT merged and took out again (of other adapters or layers, and of sharded weights, in half precision: keep state_dict() before merge_adapter() "
    "and load it after unmerge_adapter()). If all that was written are released weights and public numbers (Lookahead's slow weights, an average of the run's own that trains on), say so with make_private(allow_vouched=True), which the report states"
)


class Sample(NamedTuple):
    """Of every parameter, one after another. Types are promoted by torch.cat, which keeps floating-point values."""

    values: torch.Tensor
    counts: list[int]

    def of_each(self) -> Sequence[torch.Tensor]:
        return self.values.split(self.counts)

    def digest(self) -> bytes:
        """Of values on the host."""
        return hashlib.blake2b(self.values.view(torch.uint8).numpy(), digest_size=16).digest()


class HeldWeights:
    """Of this rank's part of the parameters of `layout`, frozen ones too. vouched: the user's word stands for every change."""

    def __init__(self, layout: Layout, model: nn.Module):
        self._layout, self._model = layout, model
        self.vouched = False
        self.states = HeldStates()  # of the optimizer, noted and checked with the weights
        self.buffers = HeldBuffers(model)  # checked with them, too
        self.settings = HeldSettings(model)  # checked before a release
        self._writes = ForwardWrites(layout, model)
        self._recorded, self._looking = False, None  # the forward at hand is, or buffers before one on a private batch that is not
        self._kept: Sample | None = None  # after the last step, where the weights are until it is looked at; None: not known
        self._digested: torch.Tensor | None = None  # the values whose digest was added last
        self._views = Views(_some_of)
        self._earlier: set[bytes] = set()  # digests of all samples of this run
        self._met_a_draw = False  # while hooks are disabled

    def forget(self) -> None:
        """The weights become what they are at the next backward: a checkpoint is loaded, or a phase without privacy has been."""
        self._kept = None
        self.states.forget()
        self.buffers.forget()
        self._writes.forget()

    def begin_forward(self, given: Iterable[torch.Tensor], *, recorded: bool) -> None:
        """given: the arguments' tensors. recorded: by a private step; else it is an evaluation, or hooks are disabled."""
        private, self._recorded, self._looking = any(isinstance(each, Drawn) for each in given), recorded, None
        if recorded:
            self.buffers.begin_forward()
        else:
            if torch.is_grad_enabled() and private:
                self._met_a_draw = True
                self._kept = self._now() if self._kept is None and not self.vouched else self._kept  # before the first step, too
            self._looking = self.buffers.look_on() if private else None
        if (recorded or private) and not self.vouched:
            self._writes.begin()

    def end_forward(self) -> None:
        if self._recorded:
            self.buffers.end_forward()
        elif self._looking is not None:
            self.buffers.looked_on(self._looking)
            self._looking = None
        self._writes.end()

    def end_phase(self) -> None:
        """Of a training without privacy, which has weights of its own, unless it met batches of the private loader."""
        if not self._met_a_draw:
            self.forget()
        self._met_a_draw = False

    def note(self) -> None:
        """The weights are what a step has made of them."""
        if not self.vouched:
            self._kept = self._now()  # no wait for a device
            self.states.note()

    def check(self) -> None:
        """RuntimeError with the parameter's name if it, or what the optimizer keeps of it, was changed by others since the last step."""
        if wrong := self.changed() or ("" if self.vouched else self.buffers.changed() or self.states.changed()):
            raise RuntimeError(wrong)
        if self.states.were_set():
            self.settings.done.add(STATES)

    def sample_of_trainable(self, *, frozen_too: bool) -> torch.Tensor:
        """Of the parameters that train: as they were looked at last, or now."""
        sample = self._now() if self._kept is None else self._kept
        parts = [part for entry, part in zip(self._layout.parameters, sample.of_each(), strict=True) if frozen_too or entry.parameter.requires_grad]
        return torch.cat(parts) if parts else sample.values[:0]

    def tolerance(self, of_float32: float, of_halves: float) -> float:
        """The second if a parameter has fewer bits than float32."""
        return of_halves if any(entry.parameter.element_size() < 4 for entry in self._layout.parameters) else of_float32

    def changed_since_a_step(self) -> str:
        """As changed(), of buffers too; "" for weights that no step has made, which stay the user's own."""
        if self._kept is None:
            return self._writes.found()
        return self.changed() or ("" if self.vouched else self.buffers.changed_since())

    def changed(self) -> str:
        """What refuses the weights as they are, or ""."""
        if self.vouched:
            return ""
        if wrong := self._writes.found():
            return wrong
        if self._kept is None:
            self._kept = self._now()
            return ""
        now, before = _on_the_host(self._now(), self._kept)
        self._keep(before)
        if torch.equal(now.values, before.values):
            return ""
        moved = False
        for entry, one, two in zip(self._layout.parameters, now.of_each(), before.of_each(), strict=True):
            if same(one, two):
                continue
            moved = True
            if not post_processed(one.to(entry.parameter.dtype), two) and now.digest() not in self._earlier:
                places = _places_of(own_part(entry.parameter))
                apart = one.shape == two.shape and merged_and_unmerged(self._model, entry.parameter, places, one.to(entry.parameter.dtype), two)
                if not apart:
                    return _REFUSAL.format(entry.name)
        if moved:
            self.settings.done.add(WEIGHTS)
            self._keep(now)
        return ""

    def _keep(self, sample: Sample) -> None:
        """sample: on the host."""
        if sample.values is not self._digested:
            self._earlier.add(sample.digest())
        self._kept, self._digested = sample, sample.values

    @torch.no_grad()
    def _now(self) -> Sample:
        own = enumerate(own_part(entry.parameter) for entry in self._layout.parameters)
        found = [comparable(view) for _, view in self._views.of(own)]
        if len({each.device for each in found}) > 1:
            found = [each.cpu() for each in found]
        return Sample(torch.cat(found), [each.numel() for each in found])


def _on_the_host(one: Sample, two: Sample) -> tuple[Sample, Sample]:
    """In one wait for the device, if both are there."""
    at, there = one.values, two.values
    if at.device.type != "cpu" and at.device == there.device and at.dtype == there.dtype:
        at, there = torch.cat([at, there]).cpu().split([len(at), len(there)])
    return Sample(at.cpu(), one.counts), Sample(there.cpu(), two.counts)


def _some_of(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[:: _step(value)]


def _places_of(value: torch.Tensor) -> torch.Tensor:
    """Where these elements stand."""
    return torch.arange(0, value.numel(), _step(value), device=value.device)


def _step(value: torch.Tensor) -> int:
    """How far the elements are apart: by a number that has no factor of a row's length, so that they fall on all columns of a matrix in turn."""
    size = value.numel()
    step = max(1, size // (_LEAST + size // _EVERY))
    if value.dim() > 1:
        step = 1 if size <= _SMALL_MATRIX else next(each for each in range(step, 0, -1) if math.gcd(each, value.shape[-1]) == 1)
    return step


__all__ = ["HeldWeights"]
