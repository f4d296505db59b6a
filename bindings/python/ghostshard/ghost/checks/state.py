"""What a forward may move beside its output: generators, buffers and attributes. Forwards of a check leave them as they were."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

MODELS_OWN = (RuntimeError, ValueError, LookupError, TypeError, AssertionError, ArithmeticError)  # errors of a model that takes no such inputs


class Coins:
    """The states at construction of Python's, NumPy's and torch's generators (the host's and the device's own)."""

    def __init__(self, device: torch.device):
        self._device = device
        self._python, self._numpy, self._host = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)

    def again(self) -> None:
        """Goes back to them: the next draws repeat all draws since."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        if self._own is not None:
            torch.get_device_module(self._device).set_rng_state(self._own, self._device)


class State:
    """Of generators and of the model's buffers, at construction."""

    def __init__(self, model: nn.Module, device: torch.device):
        self._model, self._device = model, device
        self._coins = Coins(device)
        self._buffers = [
            (module, name, buffer, buffer.clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def now(self) -> State:
        return State(self._model, self._device)

    def before(self, coins: Coins | None, buffers: dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]) -> State:
        """The same, but for coins, if they were noted, and these buffers of what they were and held before."""
        found = copy.copy(self)
        found._coins = coins or self._coins
        found._buffers = [(module, name, *buffers.get((id(module), name), (buffer, held))) for module, name, buffer, held in self._buffers]
        return found

    def moves(self) -> bool:
        """Whether buffers of fractions are not what they were at construction."""
        pairs = [(module._buffers.get(name), held) for module, name, _, held in self._buffers if held.is_floating_point()]
        return any(now is not None and now.shape == held.shape and not _close(now.detach(), held) for now, held in pairs)

    def held(self) -> list[torch.Tensor]:
        """Copies of the buffers as they are now."""
        return [module._buffers[name].detach().clone() for module, name, _, _ in self._buffers if module._buffers.get(name) is not None]

    def again(self) -> None:
        """Goes back to the states at construction."""
        self._coins.again()
        for module, name, buffer, before in self._buffers:
            module._buffers[name] = buffer
            if not torch.equal(buffer, before):  # the graph may hold one that did not change, as it is
                with torch.no_grad():
                    buffer.copy_(before)


class Attributes:
    """What a model or a criterion holds in plain attributes at construction: numbers, tensors, containers of these, and generators of its
    own. Not what torch keeps in a module."""

    def __init__(self, owner: Any):
        parts = owner.modules() if isinstance(owner, nn.Module) else [getattr(owner, "__self__", owner)]
        held = [(vars(each), isinstance(each, nn.Module)) for each in parts if isinstance(getattr(each, "__dict__", None), dict)]
        self._held = [(of, {name: _saved(value) for name, value in of.items() if not (module and name in _OF_TORCH)}) for of, module in held]

    def again(self) -> None:
        """Goes back to what they were, within the same containers."""
        for of, before in self._held:
            for name in [name for name in of if name not in before and name not in _OF_TORCH]:
                del of[name]
            for name, (value, restore) in before.items():
                restore()
                of[name] = value


def marks_of(owner: Any, *, buffers: bool = False) -> list[tuple]:
    """What shows, without a look at values, that plain attributes of a model or a criterion were set: which objects they are, and how often tensors were written to.
    Counters aside. buffers: these too."""
    owner = getattr(owner, "__self__", owner)
    module = isinstance(owner, nn.Module)
    parts = [vars(each) for each in owner.modules()] if module else [getattr(owner, "__dict__", {})]
    held = [(name, _mark(value)) for each in parts for name, value in each.items() if not (module and name in _OF_TORCH) and type(value) not in _COUNTERS]
    return held + [(name, _mark(value)) for name, value in owner.named_buffers()] if module and buffers else held


def marks_by_name(model: nn.Module) -> dict[tuple[nn.Module, str], Any]:
    """The same of each attribute of a model's modules, by the module and its name."""
    return {
        (each, name): _mark(value) for each in model.modules() for name, value in vars(each).items() if name not in _OF_TORCH and type(value) not in _COUNTERS
    }


def _mark(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():  # rows of a batch would be read
            return id(value), value._version
    if isinstance(value, (list, collections.deque, dict)):
        inside = itertools.islice(value.values() if isinstance(value, dict) else value, _MOST)
        return id(value), len(value), tuple(_mark(each) for each in inside if type(each) not in _COUNTERS)
    return value if type(value) is float else id(value)


_COUNTERS, _MOST = (int, bool, str), 64
_OF_TORCH = frozenset(vars(nn.Module())) | {"forward"}


def _nothing() -> None:
    pass


def _saved(value: Any, depth: int = 4) -> tuple[Any, Callable[[], None]]:
    """The object, and what gives it back the content that it has now."""
    if isinstance(value, torch.Tensor):
        return value, _nothing if value.requires_grad or isinstance(value, nn.Parameter) else _content(value)
    if isinstance(value, torch.Generator):
        return value, functools.partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return value, functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, random.Random):
        return value, functools.partial(value.setstate, value.getstate())
    if depth and type(value) in (list, collections.deque, dict, collections.OrderedDict, collections.defaultdict):
        return value, _contents(value, depth)
    return value, _nothing


def _content(value: torch.Tensor) -> Callable[[], None]:
    before = value.detach().clone()

    def restore() -> None:
        if value.shape == before.shape and not torch.equal(value, before):
            with torch.no_grad():
                value.copy_(before)

    return restore


def _contents(value: Any, depth: int) -> Callable[[], None]:
    mapping = isinstance(value, dict)
    before = [(key, _saved(each, depth - 1)) for key, each in (value.items() if mapping else enumerate(value))]

    def restore() -> None:
        for _, (_, again) in before:
            again()
        value.clear()
        if mapping:
            value.update((key, each) for key, (each, _) in before)
        else:
            value.extend(each for _, (each, _) in before)

    return restore


def alike(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    """The same tensors, up to rounding."""
    return len(one) == len(two) and all(map(_close, one, two))


def _close(one: torch.Tensor, two: torch.Tensor) -> bool:
    floating = one.is_floating_point() and one.shape == two.shape
    return torch.allclose(one, two, rtol=1e-4, atol=1e-6, equal_nan=True) if floating else torch.equal(one, two)


__all__ = ["MODELS_OWN", "Attributes", "Coins", "State", "alike", "marks_by_name", "marks_of"]
