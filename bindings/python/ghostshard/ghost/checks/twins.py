"""Ranks of a tensor-parallel axis hold parts of the same layers, so all of them take the same batch. If each had another, a unit would be made of an example of
each rank: clipped as one, and charged as one. The private loader draws alike on them; batches of the caller's own and coins of a data set (crops, noise) need not be alike.

Before each recorded forward two numbers of its tensors are compared. That of fractions has a tolerance, because devices of different kinds round differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..provenance.drawn import plain
from ..ranks import Ranks
from ..tensor_trees import tensors_in
from .replicas import NONE, Replica

_MOST = 1 << 16  # elements of a tensor that are looked at
_TOLERANCE = 1e-2  # of the norm of all that are no whole numbers
_SHAPES, _EXACT = 1 << 32, 1 << 52


class Twins:
    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self.vouched = False

    def here(self, given: Any) -> Replica:
        """given: the arguments of this rank's forward."""
        if self._ranks.model_ranks == 1 or self.vouched:
            return NONE
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            tensors = [each.detach() for each in tensors_in(plain(given)) if not isinstance(each, DTensor)]
            sampled = [_numbers(each) for each in tensors]
            fractions = torch.cat([torch.empty(0).double(), *(each for each in sampled if each.is_floating_point())])
            whole = torch.cat([torch.empty(0).long(), *(each for each in sampled if not each.is_floating_point())])
            direction = torch.sin(12.9898 * torch.arange(1, len(fractions) + 1, dtype=torch.float64))
            total = float(fractions @ direction) / (float(fractions.norm()) or 1.0)
            digest = int((whole * torch.arange(1, 2 * len(whole) + 1, 2)).sum()) % _EXACT
        shapes = int(hashlib.sha256(repr([tuple(each.shape) for each in tensors]).encode()).hexdigest()[:8], 16)
        return self._ranks.data_rank * _SHAPES + shapes, total, float(digest)

    def refuse_apart(self, found: Sequence[Replica]) -> None:
        """RuntimeError if two ranks of one axis have other batches: on all ranks, since all have the same numbers. found: of each rank."""
        first: dict[int, int] = {}
        for rank, (part, total, digest) in enumerate(found):
            one = first.setdefault(part // _SHAPES, rank) if part >= 0 else rank
            before = found[one]
            if part != before[0] or digest != before[2] or abs(total - before[1]) > _TOLERANCE:
                raise RuntimeError(
                    f"rank {one} and rank {rank} hold parts of the same layers (tensor parallelism), and their forwards were given different batches: what goes backward would be an example of "
                    "each, clipped and charged as one. Give the ranks of a tensor-parallel axis the same batch (a sampler by the rank of data), and seed them alike before a data set or a loop tosses coins. "
                    "If the model itself takes a part of the same batch on each rank, say so with make_private(allow_vouched=True). Nothing of this was released"
                )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Of its elements, on the host: float64 or int64."""
    flat = tensor.reshape(-1)
    flat = flat[:: -(-len(flat) // _MOST) or 1]
    fractions = flat.is_complex() or flat.is_floating_point()
    return torch.nan_to_num((flat.abs() if flat.is_complex() else flat).cpu().double()) if fractions else flat.cpu().long()


__all__ = ["Twins"]
