"""Which forward a criterion's outputs are of: an evaluation may have come since, with a batch of its own."""

from __future__ import annotations

from typing import Any

from .batch import Inputs
from .provenance import under
from .recording import RecordingEngine
from .tensor_trees import tensors_in


def forward_of(engine: RecordingEngine, given: Any) -> Inputs | None:
    """The last one of the microbatch at hand that these tensors follow from by gradient, or its last one, of losses that a loop made of no example. If there is
    none, the last one of all, which is an evaluation's."""
    tensors = tensors_in(given)
    marks = [each for each in under(tensors) if each.forward]
    found = [each for each in engine.forwards if any(each.finding is mark for mark in marks)]
    if found or (engine.forwards and not any(each.numel() for each in tensors)):
        return (found or engine.forwards)[-1]
    return engine.inputs


__all__ = ["forward_of"]
