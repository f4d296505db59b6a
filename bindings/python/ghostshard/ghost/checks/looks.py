"""How a model looks: what may send a batch another way than before, so that it is checked anew when it changes."""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import nn

from ...loaders.set_so import FirstValues

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MOST_LOOKS = 64  # with flags: one that is new in every batch makes no check of every batch
_FLAGS = (bool, str, types.NoneType)
_FUNCTIONS = (types.FunctionType, types.MethodType)
_OF_MODULES = frozenset(vars(nn.Module()))
_SPACES = (types.SimpleNamespace, argparse.Namespace)
_ENTRIES, _DEPTH = 64, 3  # of a dict or a list that a module holds, and of objects within each other


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
            set_to = tuple(self._set_to(len(found), own, known, type(module).__module__)) if flags else ()
            hooks = () if of_forward and not found else tuple(len(own[name]) for name in _HOOKS)
            found.append((type(module), getattr(forward, "__code__", type(forward)), hooks, module.training, set_to))
            waiting.extend(child for child in module._modules.values() if child is not None)
        return tuple(found)

    def _set_to(self, place: int, own: dict[str, Any], known: set[int], near: str, within: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
        """known: objects that came before, such as a configuration that all modules have. near: where the module's class is from. within: the name of what has these."""
        for name, value in own.items():
            path = within + name
            if type(value) in _FLAGS:
                yield path, value
            elif type(value) in (int, float):
                if self._values.tells((place, path)):
                    yield path, value
            elif type(value) in _FUNCTIONS:
                if path != "forward":
                    yield path, value.__code__
            elif depth and path not in _OF_MODULES and id(value) not in known and (entries := _entries_of(name, value, near)):
                known.add(id(value))
                yield from self._set_to(place, entries, known, near, f"{path}.", depth - 1)


def _entries_of(name: str, value: Any, near: str) -> dict[str, Any]:
    """What a dict or a list has, and an object that is there for settings; {} if it is none of these."""
    if isinstance(value, (list, tuple)):
        return {str(number): each for number, each in enumerate(value)} if len(value) <= _ENTRIES else {}
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if isinstance(key, str)} if len(value) <= _ENTRIES else {}
    if isinstance(value, (type, nn.Module, torch.Tensor)) or callable(value):
        return {}
    settings = name.endswith("config") or isinstance(value, _SPACES) or is_dataclass(value) or type(value).__module__ == near
    return getattr(value, "__dict__", {}) if settings else {}


__all__ = ["Looks"]
