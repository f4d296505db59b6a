"""The engine as rules, losses and hooks see it; engine.py has it whole.

They name this protocol instead of the engine, because the engine imports them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from .batch import Inputs
from .layout import Layout
from .packing import Packing
from .provenance import IN_ITS_PLACE
from .ranks import Ranks

ANCHOR = "ghostshard_anchor"

# Of a backward whose tape refused a second one.
REENTRANT = (
    "layers ran a backward of their own within this backward, as activation checkpointing with use_reentrant=True does: their norms "
    "would not be of one example. Pass use_reentrant=False to torch.utils.checkpoint, or "
    "gradient_checkpointing_kwargs={'use_reentrant': False} to Hugging Face's gradient_checkpointing_enable. (Reversible layers, "
    "as Reformer's, always do so, and are not taken: freeze them, or take another model. Or a plain backward() or "
    f"torch.autograd.grad() through the model came between its forward and this backward. {IN_ITS_PLACE}.) Nothing of this backward was kept"
)


def anchor() -> torch.Tensor:
    """A leaf by which backward reaches a layer whose inputs need no gradient (dp/recording/layers.cpp makes its own)."""
    found = torch.zeros((), requires_grad=True)
    setattr(found, ANCHOR, True)
    return found


def made_by_a_layer(output: Any) -> Any:
    """A frozen layer's output, whose gradient is of its own row alone, if a hook makes it a leaf (PEFT's enable_input_require_grads, for checkpointing)."""
    if isinstance(output, torch.Tensor) and not output.requires_grad:
        setattr(output, ANCHOR, True)
    return output


class RecordingEngine(Protocol):
    """A model is private under it: its layers record, and its losses go backward through it."""

    model: nn.Module
    layout: Layout
    ranks: Ranks
    batch_first: bool
    loss_reduction: str
    inputs: Inputs | None  # of the last forward, be it an evaluation's
    forwards: list[Inputs]  # of the microbatch at hand
    run: Any  # run_state.py

    @property
    def recording(self) -> bool:
        """A trainable layer that is called now is part of a private step."""
        ...

    @property
    def session(self) -> Any:
        """The compiled session that layers report to (_native/engine.pyi); None before the first forward."""
        ...

    @property
    def packing(self) -> Packing | None:
        """How the last forward's batch was packed."""
        ...

    @property
    def in_forward(self) -> bool:
        """The model's own forward is under way, so that its inputs, not a layer's, count the units."""
        ...

    @property
    def provenance(self) -> Any:
        """Whose rows tensors have (provenance/proof.py)."""
        ...

    def units_of(self, x: torch.Tensor) -> int:
        """How many units the forward at hand is over; the input x counts them if a layer is called on its own."""
        ...

    def meet(self) -> None:
        """Before the model's forward gathers anything: the ranks are at the same place of the run, or all of them raise."""
        ...

    def begin_forward(self, given: Inputs) -> None:
        """The model's forward begins on `given`; it is a microbatch if the engine is recording."""
        ...

    def end_forward(self) -> None: ...

    def backward(self, loss_per_unit: torch.Tensor) -> None:
        """The backward of a microbatch, from [units] losses."""
        ...


__all__ = ["ANCHOR", "REENTRANT", "RecordingEngine", "anchor", "made_by_a_layer"]
