"""Truncated Poisson sampling (arXiv:2508.15089): no draw is larger than `max_batch_size`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _native
from .poisson import _NO_RUN, Epoch, PoissonBatchSampler


class TruncatedBatchSampler(PoissonBatchSampler):
    """As PoissonBatchSampler; if more than max_batch_size units are drawn, over all ranks, a uniformly random part of exactly that
    many stays. The batch is the same on any number of ranks: rank r of W takes every W-th of its units, from the r-th on.

    sample_rate must be one that coins have exactly (plan.py, coin_rate). All ranks toss all coins under rank 0's key, so beginning
    to iterate is a collective over the ranks.
    """

    def __init__(self, *, max_batch_size: int, **arguments: Any):
        super().__init__(**arguments)
        if not (isinstance(max_batch_size, int) and 1 <= max_batch_size <= self.num_samples):
            raise ValueError(
                f"max_batch_size must be a whole number from 1 to the number of units ({self.num_samples}), got {max_batch_size!r}"
            )
        self.max_batch_size = max_batch_size

    @property
    def fixed_share(self) -> int:
        return math.ceil(self.max_batch_size / self.world_size)

    def draw_epoch(self) -> Epoch:
        key = self._common_key(f"ghostshard truncated Poisson coins, epoch {self.epoch}")
        return TruncatedEpoch(
            key, range(self.num_samples), self.sample_rate, self.draws, cap=self.max_batch_size,
            share=slice(self.rank, None, self.world_size),
        )  # fmt: skip


class TruncatedEpoch(Epoch):
    """One rank's batches of one epoch: its share of what stays of each draw (dp/mechanism/truncation.h)."""

    def __init__(self, key: bytes, units: range, sample_rate: float, steps: int, *, cap: int, share: slice):
        super().__init__(key, units, sample_rate, steps)
        self._cap, self._share = cap, share

    def _tossed(self) -> Iterator[np.ndarray]:
        kept_units = _native.load("engine").kept_units
        for step in range(self._steps):
            kept = kept_units(self._key, _NO_RUN, step, len(self._units), self._sample_rate, self._cap)
            yield np.array(kept, dtype=np.int64)[self._share]


__all__ = ["TruncatedBatchSampler", "TruncatedEpoch"]
