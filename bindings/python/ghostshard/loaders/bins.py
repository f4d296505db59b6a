"""Balls-in-bins sampling (arXiv:2412.16802): each pass deals every unit to one of its steps, uniformly and independently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _native
from .poisson import _NO_RUN, Epoch, PoissonBatchSampler


class BinsBatchSampler(PoissonBatchSampler):
    """Each iteration is a pass of `bins` steps, in exactly one of which each unit is. The draw is the same on any number of ranks: rank
    r of W takes every W-th of its units, from the r-th on.

    sample_rate must be 1/steps. All ranks deal all units under rank 0's key, so beginning to iterate is a collective over the ranks.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        if self.sample_rate != 1 / self.draws:
            raise ValueError(
                f"with balls-in-bins sampling each unit is in one of a pass's {self.draws} steps: sample_rate must be 1/{self.draws}, "
                f"got {self.sample_rate}"
            )
        self.bins = self.draws

    def draw_epoch(self) -> Epoch:
        key = self._common_key(f"ghostshard balls in bins, epoch {self.epoch}")
        return BinsEpoch(key, range(self.num_samples), self.sample_rate, self.bins, share=slice(self.rank, None, self.world_size))


class BinsEpoch(Epoch):
    """One rank's batches of one pass: its share of each bin (dp/mechanism/bins.h)."""

    def __init__(self, key: bytes, units: range, sample_rate: float, steps: int, *, share: slice):
        super().__init__(key, units, sample_rate, steps)
        self._share = share

    def _tossed(self) -> Iterator[np.ndarray]:
        dealt_units = _native.load("engine").dealt_units
        for step in range(self._steps):
            dealt = dealt_units(self._key, _NO_RUN, self._steps, step, len(self._units))
            yield np.array(dealt, dtype=np.int64)[self._share]


__all__ = ["BinsBatchSampler", "BinsEpoch"]
