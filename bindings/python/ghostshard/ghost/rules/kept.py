"""What a layer's forward sets on itself: a counter, a flag of its first call. torch.func calls a skeleton of the layer, on which it would be lost."""

from __future__ import annotations

from types import NoneType
from typing import Any

from torch import nn

from .skeleton import HAS_CAPTURES, skeleton

_PLAIN = (bool, int, float, str, NoneType)


class Kept:
    """The plain attributes of a layer and its children, as they were before its forward. What is computed unit by unit begins with them."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._before = [(each, _plain(each)) for each in module.modules()]

    def skeleton(self, known: dict[int, nn.Module] | None = None) -> nn.Module:
        """As before the forward. known: gets those of the children, by id."""
        known = {} if known is None else known
        bare = skeleton(self._module, known)
        for each, before in self._before:
            if id(each) in known:
                vars(known[id(each)]).update(before)
        return bare

    def again(self) -> None:
        """The layer itself as before its forward."""
        for each, before in self._before:
            vars(each).update(before)

    def take(self, known: dict[int, nn.Module]) -> None:
        """The layer itself as the forward of these left it."""
        for each, before in self._before:
            if id(each) in known:
                vars(each).update((name, value) for name, value in _plain(known[id(each)]).items() if name not in before or before[name] != value)


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if type(value) in _PLAIN and name != HAS_CAPTURES}


__all__ = ["Kept"]
