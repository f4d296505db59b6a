"""Tensors that nobody handed out and that hold values of a batch all the same: plain ones that a function of the batch was written to, and
weights of another model that had a gradient of it. What comes of them later would follow from examples that are not in the batch at hand.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..._native import load
from ..own_part import own_part
from ..tensor_trees import tensors_in
from .drawn import Drawn, Memory, Origin, remember_mixed, shares_what_is_lost, version_of

_TRAINED = "ghostshard_trained_beside"
_PRIVATE: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # layouts of private models
_WRITTEN_TO_A_PARAMETER = (
    "values of a private batch were written to a parameter: what is released would have them without clipping and noise. Parameters follow "
    "from the optimizer's steps, from public data and from coins"
)


def guard(layout: Any) -> None:
    """Its parameters are private: nothing may be written to their memory from a batch."""
    _PRIVATE[id(layout)] = layout


def refuse_parameters(written: list[torch.Tensor]) -> None:
    """ValueError if one of these is a parameter, or lies in the memory of a private one (its .data)."""
    strangers = [each for each in written if not isinstance(each, Drawn)]
    if strangers and (any(isinstance(each, torch.nn.Parameter) for each in strangers) or _memories(strangers) & _private_memories()):
        raise ValueError(_WRITTEN_TO_A_PARAMETER)


def _private_memories() -> set[int]:
    parameters = [entry.parameter for layout in list(_PRIVATE.values()) for entry in layout.parameters]
    return _memories([own_part(each) for each in parameters])


def _memories(tensors: list[torch.Tensor]) -> set[int]:
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return {each.untyped_storage()._cdata for each in tensors if each.layout is torch.strided and each.device.type != "meta"}


def write_to_strangers(name: str, written: list[torch.Tensor], sources: list[Drawn], origin_of: Callable[[torch.Tensor], Origin | None]) -> None:
    """From here on they are Drawn themselves. origin_of() gives the owners of the rows of what was written to whole. What is no plain tensor
    counts as read."""
    for target in written:
        if type(target) is not torch.Tensor:
            if constants := getattr(sources[0]._origin.memory.piece, "constants", None):
                constants.was_read(f"writing by {name}")
            continue
        own = origin_of(target)
        if own is None or own.memory.lost or target._base is not None:
            own = sources[0].origin.lost(f"{name} wrote values of a batch to a tensor that the loader did not hand out", strangers=True)
        for each in (target, target._base):
            if type(each) is torch.Tensor:
                become_drawn(each, own)
        remember_mixed(target)  # what else lies in this memory (x, of which x.data was written to) is a plain tensor still


def become_drawn(tensor: torch.Tensor, origin: Origin) -> None:
    tensor.__class__ = Drawn
    tensor._origin = Origin(Memory(origin.memory.piece, origin.memory.lost, strangers=True), origin.rows, origin.dim, origin.ids, True)
    tensor._origin.memory.writes = version_of(tensor)
    tensor.stays_here()


def note_backward(loss: torch.Tensor) -> None:
    """A backward that is no private step: the leaves have gradients of the batch."""
    for leaf in load("engine").leaves_of(loss):
        if not isinstance(leaf, Drawn) and not hasattr(leaf, _TRAINED):
            setattr(leaf, _TRAINED, version_of(leaf))


def why_strange(given: Any) -> str:
    """Of plain tensors among these: which have values of a batch all the same."""
    for each in tensors_in(given):
        if isinstance(each, Drawn):
            continue
        if (noted := getattr(each, _TRAINED, None)) is not None and version_of(each) != noted:
            return "weights that were trained on batches of the private loader, without noise"
        if shares_what_is_lost(each):
            return "a tensor in whose memory values of a batch are, in the place of its own (.data, set_)"
    return ""


def statistics_of_a_batch(name: str, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Running ones, which these functions write to without counting it."""
    if name not in ("batch_norm", "instance_norm"):
        return []
    given = [*args[1:3], kwargs.get("running_mean"), kwargs.get("running_var")]
    place, named = (5, "training") if name == "batch_norm" else (5, "use_input_stats")
    gathers = kwargs.get(named, args[place] if len(args) > place else name == "instance_norm")
    return [each for each in given if gathers and isinstance(each, torch.Tensor) and not isinstance(each, (Drawn, torch.nn.Parameter))]


__all__ = ["become_drawn", "guard", "note_backward", "refuse_parameters", "statistics_of_a_batch", "why_strange", "write_to_strangers"]
