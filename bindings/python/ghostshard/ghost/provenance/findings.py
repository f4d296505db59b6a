"""What was found of a forward, or of a criterion, left beside its output in the autograd graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..same_memory import lies_within
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
    examples: torch.Tensor | None = None  # what a forward had as its examples, if nobody followed it


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


def may_train(losses: torch.Tensor, leaf: torch.Tensor, piece: Any = None, *, vouched: bool = False) -> bool:
    """Whether a leaf that these losses reach is of the batch: one that the loader handed out with this piece (vouched: or that the loop
    vouched for), or what the forwards under the losses read, or a view of that (as Wav2Vec2 makes one). A copy, which only has the
    same values, is not: a table of its own may have them too."""
    if isinstance(leaf, Drawn):
        memory = leaf.origin.memory
        return not memory.wrong and (memory.piece is piece or (vouched and leaf.origin.vouched))
    read = [each for found in under([losses]) for each in (*found.read, found.examples) if each is not None]
    # What requires a gradient itself has no leaf among its views, unless somebody's leaf was handed out.
    return any(leaf is each or (not each.requires_grad and lies_within(leaf, each)) for each in read)


__all__ = ["Finding", "is_not", "mark", "may_train", "under"]
