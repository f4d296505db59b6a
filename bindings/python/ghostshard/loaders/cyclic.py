"""Cyclic Poisson sampling (arXiv:2306.08153, section 4): the units are dealt to groups, whose turns to be drawn from come one after
another. It is the sampling of correlated noise (dp/mechanism/noise_bands.h, noise_chain.h)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _native
from .plan import rate_in_group
from .poisson import _NO_RUN, Epoch, PoissonBatchSampler


class CyclicBatchSampler(PoissonBatchSampler):
    """Unit u belongs to group u mod `groups`, until go_on_at(). Turns are counted through all passes; turn t draws from group t mod `groups` alone,
    each of its units with probability sample_rate · groups, so a batch is expected to be as large as without groups.

    The draw is the same on any number of ranks: rank r of W takes every W-th of its units, from the r-th on. All ranks toss the coins of
    the whole group under rank 0's key, so beginning to iterate is a collective over the ranks. A pass goes on where the draws of the one
    before ended, so a turn may be left out, if its batch was drawn ahead and nobody took it.
    """

    def __init__(self, *, groups: int, **arguments: Any):
        super().__init__(**arguments)
        if not (isinstance(groups, int) and 1 < groups <= min(self.draws, self.num_samples)):
            raise ValueError(
                f"groups must be a whole number from 2 to the draws of a pass ({self.draws}) and to the number of units "
                f"({self.num_samples}), got {groups!r}"
            )
        self.groups = groups
        self._shift: int | None = 0  # unit u belongs to group u - shift; None: drawn with the next pass

    def draw_epoch(self) -> Epoch:
        key = self._common_key(f"ghostshard cyclic Poisson coins, epoch {self.epoch}")
        if self._shift is None:
            self._shift = int.from_bytes(hashlib.sha256(key + b"ghostshard groups of a run that goes on").digest()) % self.groups
        return CyclicEpoch(
            key, range(self.num_samples), rate_in_group(self.sample_rate, self.groups), self.draws, groups=self.groups,
            first_turn=self.stamps.turns, share=slice(self.rank, None, self.world_size), shift=self._shift,
        )  # fmt: skip

    def go_on_at(self, turn: int) -> None:
        """A resumed run's next step would be this turn. The units may stand in another order than in the session before, so a unit's group may be another one. What is reported are the
        rounds of the group with the most; so that no unit has more, each session begins with the first group, which then has the most rounds of every session. Which units these are is
        drawn anew: a run that is stopped often trains on all alike."""
        self.stamps.turns = -(-turn // self.groups) * self.groups
        self.stamps.ended, self._shift = self.stamps.passes, None


class CyclicEpoch(Epoch):
    """One rank's batches of one pass: its share of each draw. Within a group coins are numbered as in dp/mechanism/sampler.h: unit
    j · groups + (group + shift) mod groups has coin j."""

    def __init__(
        self, key: bytes, units: range, sample_rate: float, steps: int, *, groups: int, first_turn: int, share: slice, shift: int = 0
    ):
        super().__init__(key, units, sample_rate, steps)
        self.first_turn = first_turn
        self._groups, self._share, self._shift = groups, share, shift

    def _tossed(self) -> Iterator[np.ndarray]:
        drawn_units = _native.load("engine").drawn_units
        for step in range(self._steps):
            group = self._units[(self.first_turn + step + self._shift) % self._groups :: self._groups]
            drawn = drawn_units(self._key, _NO_RUN, step, len(group), self._sample_rate)
            yield (group.start + np.array(drawn, dtype=np.int64) * group.step)[self._share]


__all__ = ["CyclicBatchSampler", "CyclicEpoch"]
