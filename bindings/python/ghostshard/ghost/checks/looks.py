"""How a model looks: what may send a batch another way than before, so that it is checked anew when it changes."""

from __future__ import annotations

import argparse
import operator
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
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
_LOGGED = (int, float, str, types.NoneType)  # what lists grow by, and numbers that dicts count
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
        found, flags, known = [], len(self._seen) < _MOST_LOOKS, set()
        for module in _modules_of(model):
            own = vars(module)
            forward = own.get("forward")
            forward = None if _is_ours(type(forward)) else forward
            set_to = tuple(self._set_to(len(found), own, known, type(module).__module__)) if flags else ()
            hooks = () if of_forward and not found else tuple(len(own[name]) and sum(not _is_ours(each) for each in own[name].values()) for name in _HOOKS)
            found.append((type(module), getattr(forward, "__code__", type(forward)), hooks, module.training, set_to))
        return tuple(found)

    def _set_to(self, place: int, own: dict[str, Any], known: set[int], near: str, within: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
        """known: objects that came before, such as a configuration that all modules have. near: where the module's class is from. within: the name of what has these."""
        for name, value in own.items():
            path = within + name
            if name.startswith("ghostshard"):  # ours
                continue
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


@dataclass(frozen=True)
class Moved:
    """How a model looks otherwise than it did. flags: modules, their attributes, and what these were."""

    name: str = ""  # of what cannot be set back for a while: a forward, hooks, a setting in an object
    flags: tuple[tuple[nn.Module, str, Any], ...] = ()

    @contextmanager
    def put_back(self) -> Iterator[None]:
        now = [(module, name, getattr(module, name)) for module, name, _ in self.flags]
        for module, name, value in self.flags:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in now:
                setattr(module, name, value)


def moved_since(look: tuple, now: tuple, model: nn.Module) -> Moved:
    """Numbers may count."""
    if len(look) != len(now):
        return Moved("a module")
    flags = []
    for module, one, two in zip(_modules_of(model), look, now):
        more_hooks = one[:2] == two[:2] and one[3] == two[3] and all(map(operator.le, one[2], two[2]))  # Transformers sets up some, which stay
        (*_, set_to), set_to_now = one, dict(two[-1])
        for what, before, after in zip(("class", "forward", "hooks", "mode (train, eval)"), one, two):
            if before != after and not more_hooks:
                return Moved(f"{type(module).__name__}'s {what}")
        for name, value in set_to:
            if type(value) in (int, float) or set_to_now.get(name, value) == value:
                continue
            if type(value) not in _FLAGS or name not in vars(module):
                return Moved(f"{type(module).__name__}.{name}")
            flags.append((module, name, value))
    return Moved(flags=tuple(flags))


def _is_ours(hook: Any) -> bool:
    """They come and go with the steps at which a loss is compared (own_layers.py)."""
    return (getattr(getattr(hook, "func", hook), "__module__", "") or "").startswith("ghostshard.")


def _modules_of(model: nn.Module) -> Iterator[nn.Module]:
    """In the order of a look; a module that is in several places comes as often."""
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        waiting.extend(child for child in module._modules.values() if child is not None)


def _entries_of(name: str, value: Any, near: str) -> dict[str, Any]:
    """What a dict or a list has, and an object that is there for settings; {} if it is none of these."""
    if isinstance(value, (list, tuple)):
        return {str(number): each for number, each in enumerate(value) if type(each) not in _LOGGED} if len(value) <= _ENTRIES else {}
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if isinstance(key, str) and type(each) not in _LOGGED[:2]} if len(value) <= _ENTRIES else {}
    if isinstance(value, (type, nn.Module, torch.Tensor)) or callable(value):
        return {}
    settings = name.endswith("config") or isinstance(value, _SPACES) or is_dataclass(value) or type(value).__module__ == near
    return getattr(value, "__dict__", {}) if settings else {}


__all__ = ["Looks", "Moved", "moved_since"]
