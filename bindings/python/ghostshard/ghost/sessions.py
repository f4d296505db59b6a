"""The compiled session of a private model, made anew when the set of trainable parameters changes, or their device."""

from __future__ import annotations

import os
from typing import Any

import torch

from .. import _native
from .batch import Inputs
from .checks.gradients import AttributionCheck
from .checks.set_alike import SetAlike
from .device import computed_on
from .gathered import GatheredWeights
from .layout import Layout
from .memory_budget import Memory
from .ranks import Ranks
from .run_state import RunState

# By the names of make_private(), those of the session. "adaptive" is flat, and the clip norm follows a quantile of the norms.
_CLIPPINGS = {"flat": "flat", "per_layer": "per_layer", "automatic": "automatic", "adaptive": "flat"}


class Sessions:
    """checked: each session begins with an AttributionCheck."""

    def __init__(
        self, layout: Layout, ranks: Ranks, memory: Memory, gathered: GatheredWeights, *, clipping: str, checked: bool
    ):
        if clipping not in _CLIPPINGS:
            raise ValueError(f"clipping must be one of {', '.join(map(repr, _CLIPPINGS))}, got {clipping!r}")
        self._layout, self._ranks, self.memory, self._gathered = layout, ranks, memory, gathered
        self._clipping, self.checked = _CLIPPINGS[clipping], checked
        self._trainable: tuple[bool, ...] = ()
        self.run = RunState()
        self.now: Any = None
        self.attribution: AttributionCheck | None = None
        self.alike = SetAlike(several=ranks.control is not None)

    @property
    def at(self) -> tuple[int, int]:
        """Step and attempt that the logical batch is charged as."""
        return self.run.next if self.now is None else self.now.next

    @property
    def is_due(self) -> bool:
        """There is none of the parameters as they are: the next private step makes one."""
        return self.now is None or self._layout.trainable() != self._trainable or not self._stays

    @property
    def _stays(self) -> bool:
        return computed_on(self._layout.parameters[0].parameter) == self._ranks.device

    def prepare(self, *, several: bool) -> bool:
        """There is a session of the parameters as they are. several: the step at hand has more than one microbatch. True if it is new: the call is a collective then. RuntimeError if the run
        was stopped, and for another set of parameters within a logical batch."""
        if self.run.stopped is not None:
            raise RuntimeError(self.run.stopped)
        layout, ranks = self._layout, self._ranks
        if not self.is_due:
            return False
        trainable, stays = layout.trainable(), self._stays
        if self.now is not None and self.now.open:
            raise RuntimeError(
                "parameters may be frozen, unfrozen or moved to another device between steps, not between the backwards of one "
                "logical batch"
            )
        if not stays:
            ranks.follow(layout)
        self.drop()
        if not any(trainable):
            raise ValueError(
                "the model has no trainable parameter. A turn that trains another model through this one, as a GAN's generator through its discriminator, "
                "stands between disable_hooks() and enable_hooks() of what make_private() returned first"
            )
        if ranks.device.type == "cpu" and os.environ.get("GHOSTSHARD_SYSTEM_HEAP", "0") == "0":
            _native.load("engine").reuse_host_memory()  # of the whole process: fsdp/host_memory.h
        self.now = self.run.make_session(
            layout, ranks, clipping=self._clipping, **self.memory.options(layout, ranks, self._gathered, several=several)
        )
        self._trainable = trainable
        if self.checked:
            self.attribution = AttributionCheck(ranks.control, [entry.name for entry in layout.parameters])
        return True

    def look_is_new(self, losses: torch.Tensor, forwards: list[Inputs], padded: set[tuple[int, int]]) -> bool:
        """Whether model and losses may be computed otherwise than when they were checked. padded: axes along which it is known how far the batch at
        hand is."""
        check = self.attribution
        return check is not None and (check.is_new(losses, forwards) or (bool(padded) and check.padding_is_new(padded)))

    def drop(self) -> None:
        """Gives up the session at hand, and its logical batch."""
        if self.now is not None:
            self.now.abandon()
            self.run.next = self.now.next
        self.now = None


__all__ = ["Sessions"]
