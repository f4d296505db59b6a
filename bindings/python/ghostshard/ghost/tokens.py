"""Is there still a graph that goes through a forward's outputs?"""

from __future__ import annotations

import weakref
from typing import Any

from .provenance.opened import contents

_NAME = "ghostshard: forward"


class Token:
    """It can be referred to weakly."""


def in_graph(output: Any, token: Token | None) -> weakref.ref[Token]:
    """A token, or this one, lives as long as the graph of some tensor of the output."""
    token = token or Token()
    for value in contents(output):
        if value.grad_fn is not None:
            value.grad_fn.metadata[_NAME] = token
    return weakref.ref(token)


__all__ = ["Token", "in_graph"]
