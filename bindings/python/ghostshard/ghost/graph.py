"""Nodes of an autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def nodes_under(values: Sequence[torch.Tensor], goes_on: Callable[[Any], bool] = lambda node: True) -> Iterator[Any]:
    """The nodes that made these and all below them, each once. goes_on: whether what a node was made of is looked at, too."""
    waiting, seen = [each.grad_fn for each in values], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if goes_on(node):
            waiting.extend(following for following, _ in node.next_functions)
