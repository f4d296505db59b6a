"""The losses of a draw without examples: none, of which the backward goes through the forwards all the same, as on the ranks that have examples."""

from __future__ import annotations

from typing import Any

import torch

from .batch import Inputs
from .tensor_trees import tensors_in


def losses_of_nobody(inputs: Inputs | None, given: Any) -> torch.Tensor | None:
    """[0]: those of the outputs in a criterion's arguments, or of all forwards of the draw, if a loop that has no example has no output either. None: the draw at
    hand has examples, or outputs with elements are among the arguments. inputs: of the last forward."""
    if inputs is None or not inputs.of_nobody:
        return None
    outputs = [each for each in tensors_in(given) if each.requires_grad]
    if any(each.numel() for each in outputs):
        return None
    return joined(outputs) if outputs else joined([each.nobodys for each in (*inputs.earlier, inputs) if each.nobodys is not None])


def joined(outputs: Any) -> torch.Tensor | None:
    """[0], which all these outputs without elements are under; None if none has a gradient."""
    found = [each for each in tensors_in(outputs) if each.requires_grad]
    return found[0].new_zeros(0) + sum(each.sum() for each in found) if found else None


__all__ = ["joined", "losses_of_nobody"]
