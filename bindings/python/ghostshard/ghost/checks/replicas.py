"""Ranks that hold the same part of the model (DistributedDataParallel, the replicas of a two-dimensional mesh) hold the same weights, as long as each steps
alike. Nothing else shows that they came apart: weights that one rank loaded, gradients that one rank's hook scaled. Each would clip gradients of a model of its own, and the one that is
saved was trained on those of the others.

Before the first backward of each step a number of a sample of the weights is compared. It has a tolerance, because machines of different kinds round differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..ranks import Ranks
from .held_weights import HeldWeights

Replica = tuple[int, float, float]  # which part of the model, a sum over its weights with signs by chance, and their norm
NONE: Replica = (-1, 0.0, 0.0)  # of a part that no other rank has, or at an event that compares none
_TOLERANCE, _OF_HALVES = 1e-4, 1e-2  # of the norm
_SEED = 20261


class Replicas:
    """Of this rank's part of the weights that train."""

    def __init__(self, ranks: Ranks, weights: HeldWeights):
        replicates, shards, parts = ranks.shape
        self._part = ranks.rank % (shards * parts) if replicates > 1 else -1
        self._weights, self._frozen_too = weights, True  # at first: what changes frozen ones later is refused on its rank
        self._signs = torch.empty(0, dtype=torch.float64)

    def here(self) -> Replica:
        if self._part < 0:
            return NONE
        values = self._weights.sample_of_trainable(frozen_too=self._frozen_too).double().cpu()
        self._frozen_too = False
        if len(self._signs) != len(values):
            self._signs = torch.randint(0, 2, values.shape, generator=torch.Generator().manual_seed(_SEED)).double() * 2 - 1
        return self._part, float(values @ self._signs), float(values.norm())

    def refuse_apart(self, found: Sequence[Replica]) -> None:
        """RuntimeError if two ranks' weights of one part are not alike: on all ranks, since all have the same numbers. found: of each rank."""
        first: dict[int, int] = {}
        for rank, (part, total, norm) in enumerate(found):
            one = first.setdefault(part, rank)
            if part < 0 or total == found[one][1] or (math.isnan(total) and math.isnan(found[one][1])):
                continue
            if not abs(total - found[one][1]) <= self._weights.tolerance(_TOLERANCE, _OF_HALVES) * max(norm, found[one][2]):
                raise RuntimeError(
                    f"rank {one} and rank {rank} hold the same part of the model, and their weights have come apart: each would train one of its own, and clip gradients of "
                    "that. Whatever changes weights or gradients between steps (load_state_dict, a hook of the optimizer) does so on all ranks alike. Nothing of this was released"
                )


__all__ = ["NONE", "Replica", "Replicas"]
