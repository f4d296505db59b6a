"""The generators that a data set or a collate_fn may toss."""

from __future__ import annotations

import inspect
import pickle
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .names import names_of
from .within import within

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH, _MOST = 4, 256  # of objects within each other, and how many


class Coins:
    """Their states at construction: those of torch, NumPy and Python, and those that `of`, a function or an object, has of its own."""

    def __init__(self, of: Any = None) -> None:
        self._of = of
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        own, spaces = _held_by(of)
        self._own = [(each, _state_of(each)) for each in own]
        self._spaces = [(space, dict(space)) for space in spaces]  # a generator may be made when it is tossed first

    def now(self) -> Coins:
        """The same ones, as they are now."""
        return Coins(self._of)

    def tossed(self) -> bool:
        """Whether one of them is in another state now."""
        now = self.now()
        numpy_same = all(np.array_equal(one, two) for one, two in zip(now._numpy, self._numpy))
        own_same = [_bytes(state) for _, state in now._own] == [_bytes(state) for _, state in self._own]
        return not (numpy_same and own_same and now._python == self._python and torch.equal(now._torch, self._torch))

    def again(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        for space, before in self._spaces:
            for name in [name for name, value in space.items() if isinstance(value, _KINDS) and before.get(name) is not value]:
                if name in before:
                    space[name] = before[name]
                else:
                    del space[name]
        for generator, state in self._own:
            _set(generator, state)


def _held_by(value: Any) -> tuple[list[Any], list[dict]]:
    """Generators that it reaches, and the attributes of objects on the way."""
    own: list[Any] = []
    spaces: list[dict] = []
    seen: set[int] = set()
    waiting = [] if value is None else [(value, 0)]
    while waiting and len(seen) < _MOST:
        each, depth = waiting.pop(0)
        if id(each) in seen or isinstance(each, (bool, int, float, str, bytes, type(None), type, types.ModuleType, torch.Tensor, np.ndarray)):
            continue
        seen.add(id(each))
        if isinstance(each, _KINDS):
            own.append(each)
            continue
        if isinstance(held := getattr(each, "__dict__", None), dict):
            spaces.append(held)
        if depth < _DEPTH:
            waiting += [(found, depth + 1) for found in (*(found for _, found in within(each)), *_in_code_of(each))]
    return own, spaces


def _in_code_of(value: Any) -> Iterator[Any]:
    """Defaults of a function, or of an object that is called as one, and generators that its code names."""
    code = value if isinstance(value, types.FunctionType) else inspect.getattr_static(type(value), "__call__", None)
    if isinstance(code, types.FunctionType):
        yield from (*(code.__defaults__ or ()), *(code.__kwdefaults__ or {}).values())
        yield from (each for name in names_of(code.__code__) if isinstance(each := code.__globals__.get(name), _KINDS))


def _state_of(generator: Any) -> Any:
    if isinstance(generator, (torch.Generator, np.random.RandomState)):
        return generator.get_state()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, (torch.Generator, np.random.RandomState)):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state


def _bytes(state: Any) -> bytes:
    return pickle.dumps(state.numpy() if isinstance(state, torch.Tensor) else state)


__all__ = ["Coins"]
