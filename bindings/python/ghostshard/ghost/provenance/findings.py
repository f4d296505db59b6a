"""What was found of a forward, or of a criterion, left beside its output in the autograd graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..tensor_trees import tensors_in
from .drawn import Drawn

_MARK = "ghostshard: whose rows"
OUT = (
    "Change a batch by torch functions that keep its examples apart, or in the data set or its collate_fn (tokenisers, NumPy). If row u of "
    "a tensor holds nothing of any example but the u-th of the batch (noise, generated data, code that cannot be followed), say so by "
    "ghostshard.vouch_for(tensor) and make_private(allow_vouched=True)"
)


@dataclass(frozen=True)
class Finding:
    """Of one forward, or of a criterion's targets."""

    wrong: str = ""  # why a backward over it is refused
    piece: Any = None  # of the loader; None: no tensor of it was in
    ids: torch.Tensor | None = None  # which rows of the piece, in order; None: all in their order
    rows: int = 0  # how many the loader handed out
    joined: bool = False  # units= says whose they are
    read: tuple[Drawn, ...] = ()  # what was read: writing to it unseen by autograd comes too late to be seen by the forward
    forward: bool = True


def is_not(name: str, why: str) -> str:
    return f"{name} is not known to be of the batch that the private loader drew: {why}. {OUT}"


def mark(values: Any, finding: Finding) -> None:
    for value in tensors_in(values):
        if value.grad_fn is not None:
            value.grad_fn.metadata.setdefault(_MARK, []).append(finding)


def under(values: list[torch.Tensor]) -> list[Finding]:
    """Of the forwards and criterions that these follow from."""
    found: list[Finding] = []
    waiting, seen = [each.grad_fn for each in values], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        marks = node.metadata.get(_MARK, [])
        found += marks
        if not any(each.forward for each in marks):
            waiting.extend(following for following, _ in node.next_functions)
    return found


__all__ = ["Finding", "is_not", "mark", "under"]
