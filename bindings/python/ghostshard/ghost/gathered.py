"""When a sharded model's weights stand whole on a rank.

FSDP2 frees a block after its forward and gathers it again for its backward. Blocks that FSDP2Wrapper made, and was not told
`reshard_after_forward` of, stay gathered until the logical batch ends, if that takes little memory (memory_budget.py): their weights travel once in a
step, not twice in each microbatch. The values are the same.

FSDP2 never frees the root's block between a forward and a backward, nor one that was told so (`reshard_after_forward=False`). A
forward without a backward, such as an evaluation, would leave it standing, and the next forward would compute with it whatever a
step did to the rows in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ..fsdp import may_stay_gathered
from .layout import Layout


class GatheredWeights:
    """Of a model's blocks; of none if it is not sharded. Ranks need not talk, as all of them call the same."""

    def __init__(self, model: nn.Module, layout: Layout):
        self._blocks = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
        self._slots = [(slot, entry) for entry in layout.parameters for slot in entry.slots] if self._blocks else []
        self._kept: list[FSDPModule] = []
        self._carried = False  # what is gathered now, all ranks have gathered for this logical batch

    @property
    def optional(self) -> list[str]:
        """Names of the blocks that may stay gathered."""
        return [name for name, block in self._blocks.items() if may_stay_gathered(block)]

    def keep(self, names: Sequence[str]) -> None:
        self.compute_apart()
        self._kept = [self._blocks[name] for name in names]

    def begin_forward(self) -> None:
        """Of a microbatch, before anything is gathered. Nothing that another step's forward, or one that failed, left is taken."""
        if not self._carried:
            self.free()
        self._carried = False

    def record(self) -> None:
        """A microbatch is about to be computed."""
        self._settle(kept=True)

    def compute_apart(self) -> None:
        """A forward that records nothing is about to begin."""
        self._settle(kept=False)

    def end_backward(self, *, more: bool) -> None:
        """Of a microbatch. more: another one follows in its logical batch. Ranks that disagree end at their next meeting, before they
        gather anything."""
        if not more:
            self.free()
        self._carried = more

    def free(self) -> None:
        """The next forward gathers anew. To be called where weights are about to change, or may have changed."""
        self._carried = False
        for block in self._blocks.values():
            block.reshard()

    def let_go(self) -> None:
        """Blocks are freed after their forwards again."""
        self.free()
        self.keep(())

    def free_all(self) -> None:
        """RuntimeError if some weight still stands whole then: FSDP2 keeps those of a forward that did not end."""
        self.free()
        for slot, entry in self._slots:
            if _where(slot.module._parameters[slot.attribute]) != _where(entry.parameter):
                raise RuntimeError(
                    f"{entry.name} is still gathered, as a forward that did not end has left it, and the next one would not see what "
                    "this step does to it. Call the model once more (in no_grad, for instance) before optimizer.step()"
                )

    def _settle(self, *, kept: bool) -> None:
        for block in self._kept:
            block.set_reshard_after_forward(not kept, recurse=False)
            block.set_reshard_after_backward(not kept, recurse=False)


def _where(parameter: torch.Tensor | None) -> object:
    """Nothing for a plain tensor, as a gathered one is, but for models that are cut by tensor parallelism too."""
    return (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None


__all__ = ["GatheredWeights"]
