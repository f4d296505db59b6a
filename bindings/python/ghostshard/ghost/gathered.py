"""Weights that fully_shard left gathered.

FSDP2 does not free a block that was told so (`reshard_after_forward=False`), nor the root's, until a backward has used it. A forward
without a backward, such as an evaluation, leaves such a block's whole weights standing; FSDP2 takes them for the next forward too,
whatever a step did to the rows in the meantime.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .layout import Layout


class GatheredWeights:
    """Of a model's blocks; of none if it is not sharded. Ranks need not talk: each frees its own copies."""

    def __init__(self, model: nn.Module, layout: Layout):
        self._blocks = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._slots = [(slot, entry) for entry in layout.parameters for slot in entry.slots] if self._blocks else []

    def free(self) -> None:
        """The next forward gathers anew. To be called where weights are about to change, or may have changed."""
        for block in self._blocks:
            block.reshard()

    def check_free(self) -> None:
        """RuntimeError if some weight still stands whole: FSDP2 keeps those of a forward that did not end."""
        for slot, entry in self._slots:
            if _where(slot.module._parameters[slot.attribute]) != _where(entry.parameter):
                raise RuntimeError(
                    f"{entry.name} is still gathered, as a forward that did not end has left it, and the next one would not see what "
                    "this step does to it. Call the model once more (in no_grad, for instance) before optimizer.step()"
                )


def _where(parameter: torch.Tensor | None) -> object:
    """Nothing for a plain tensor, as a gathered one is, but for models that are cut by tensor parallelism too."""
    return (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None


__all__ = ["GatheredWeights"]
