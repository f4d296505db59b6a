"""How a model looks: what may send a batch another way than before, so that it is checked anew when it changes."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from ...loaders.set_so import FirstValues

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MOST_LOOKS = 64  # with flags: one that is new in every batch makes no check of every batch
_FLAGS = (bool, str, types.NoneType)
_FUNCTIONS = (types.FunctionType, types.MethodType)


class Looks:
    """Those with which a model was checked."""

    def __init__(self) -> None:
        self._seen: set[tuple] = set()
        self._values = FirstValues()  # by a module's place and a name

    def __contains__(self, look: tuple) -> bool:
        return look in self._seen

    def add(self, look: tuple) -> None:
        """A model was checked as it looked."""
        self._seen.add(look)
        for place, (*_, set_to) in enumerate(look):
            for name, value in set_to:
                self._values.note((place, name), value)

    def of(self, model: nn.Module, *, of_forward: bool = False) -> tuple:
        """Hooks of modules, which of them train, their code, and what they are set to: flags, functions, and numbers that do not change all the time.
        of_forward: without the model's own hooks, which run around its forward."""
        found, waiting, flags, known = [], [model], len(self._seen) < _MOST_LOOKS, set()
        while waiting:
            module = waiting.pop()
            own = vars(module)
            forward = own.get("forward")
            set_to = tuple(self._set_to(len(found), own, known)) if flags else ()
            hooks = () if of_forward and not found else tuple(len(own[name]) for name in _HOOKS)
            found.append((type(module), getattr(forward, "__code__", type(forward)), hooks, module.training, set_to))
            waiting.extend(child for child in module._modules.values() if child is not None)
        return tuple(found)

    def _set_to(self, place: int, own: dict[str, Any], known: set[int]) -> Iterator[tuple[str, Any]]:
        """known: configurations that a module before had."""
        for name, value in own.items():
            if type(value) in _FLAGS:
                yield name, value
            elif type(value) in (int, float):
                if self._values.tells((place, name)):
                    yield name, value
            elif type(value) in _FUNCTIONS and name != "forward":
                yield name, value.__code__
        if (config := getattr(own.get("config"), "__dict__", None)) is not None and id(config) not in known:
            known.add(id(config))
            yield from ((f"config.{name}", value) for name, value in self._set_to(place, config, known))


__all__ = ["Looks"]
