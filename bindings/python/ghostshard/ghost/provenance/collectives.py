"""Collectives that a loop calls on tensors of its batches. They write to their first argument without counting it, and torch asks no tensor at most of them
(broadcast, gather, scatter, send, recv).

What a rank wrote to is not the batch's any more: it holds values of other ranks' examples. So is a tensor that the loop made of numbers that it read
(`torch.tensor(loss.item())`), once ranks bring it together: a number for people, and none for a loss or a setting.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ..tensor_trees import tensors_in
from .constants import FORMED
from .drawn import BROUGHT, Drawn, Memory, Origin, remember_mixed, shares_what_is_lost
from .strangers import become_drawn, refuse_parameters

# Methods of a process group that write to their first argument, and the functions of torch.distributed that call them.
_WRITING = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce_coalesced", "broadcast": "broadcast", "reduce": "reduce", "allgather": "all_gather", "_allgather_base": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced", "allgather_into_tensor_coalesced": "all_gather_into_tensor", "gather": "gather", "scatter": "scatter", "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor", "alltoall": "all_to_all", "alltoall_base": "all_to_all_single",
    "recv": "recv", "recv_anysource": "recv",
}  # fmt: skip
_WATCHED = "_ghostshard_watched"
_FEW = 64  # elements of a tensor that may hold numbers that were read


def watch_collectives() -> None:
    """From the first private optimizer on. May be called again."""
    if not dist.is_available() or hasattr(dist.ProcessGroup, _WATCHED):
        return
    for method, name in _WRITING.items():
        if (own := getattr(dist.ProcessGroup, method, None)) is not None:
            setattr(dist.ProcessGroup, method, _watched(own, name))
    functional._maybe_wrap_tensor = _waiting(functional._maybe_wrap_tensor)
    setattr(dist.ProcessGroup, _WATCHED, True)


def _waiting(own: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """What functional collectives give is a tensor of another kind, which waits when it is read. A followed one waits at once."""

    @functools.wraps(own)
    def wrapped(value: torch.Tensor) -> torch.Tensor:
        return functional.wait_tensor(value) if isinstance(value, Drawn) else own(value)

    return wrapped


def _watched(own: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(own)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = tensors_in((args, kwargs))
        if not any(map(_is_of_a_batch, given)):
            return own(self, *args, **kwargs)
        written = tensors_in(args[:1] or next(iter(kwargs.values())))
        with torch._C.DisableTorchFunctionSubclass():
            refuse_parameters(written)
            _note(name, written, given)
            return own(self, *args, **kwargs)

    return watched


def _is_of_a_batch(value: torch.Tensor) -> bool:
    kind = type(value)
    return kind is Drawn or (kind is torch.Tensor and (shares_what_is_lost(value) or _was_read(value)))


def _was_read(value: torch.Tensor) -> bool:
    """Whether it is made of numbers that were read."""
    return 0 < value.numel() <= _FEW and value.is_floating_point() and not value.requires_grad and FORMED.holds(value.flatten().tolist())


def _note(name: str, written: Iterable[torch.Tensor], given: Iterable[torch.Tensor]) -> None:
    """Before they are written to, which may be later (async_op)."""
    why = BROUGHT.format(name)
    piece = next((each._origin.memory.piece for each in given if isinstance(each, Drawn)), None)
    for target in written:
        if isinstance(target, Drawn):
            memory = target._origin.memory
            memory.lost, memory.loose, memory.strangers = memory.lost or why, False, True
        elif type(target) is torch.Tensor:
            become_drawn(target, Origin(Memory(piece, why, strangers=True), 1, None, None, True))
        remember_mixed(target)


__all__ = ["watch_collectives"]
