"""What the optimizer keeps (momenta, second moments) comes of its own steps alone: a state that was written or loaded between two steps may hold
gradients without noise (of a twin of the model that trains beside it), and the next step would apply them.

As of the weights (held_weights.py) a sample is kept after every step and compared before the next. Taken are a factor for each tensor (zero, a
reset), bounds, states that are gone, new ones whose values are all alike, and those that state_dict() gave earlier in this run.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from ..own_part import own_part
from .compared import post_processed, same
from .samples import Samples, Views, side_by_side

_REFUSAL = (
    "the optimizer's {!r} of parameter number {} is not what its last step made of it: it was replaced or changed (load_state_dict, copy_, add_), and nothing "
    "tells whether what was written had read private data without noise. Nothing of this was applied. Load a state that optimizer.state_dict() gave earlier in "
    "this run, or a checkpoint with load_checkpoint(), or begin with an empty one (optimizer.state.clear()). If all that was written are released "
    "gradients and public numbers, say so with make_private(allow_vouched=True), which the report states"
)


def refuse_wrapper(optimizer: Optimizer) -> None:
    """TypeError for one that has no hooks."""
    if not all(hasattr(optimizer, hooks) for hooks in ("_optimizer_step_pre_hooks", "_optimizer_state_dict_pre_hooks")):
        raise TypeError(
            f"the optimizer must be one of torch's, or a subclass that calls its constructor, got {type(optimizer).__name__}: make_private() comes before "
            "accelerator.prepare() and other wrappers (Lookahead)"
        )


class HeldStates:
    """Of one optimizer at a time."""

    def __init__(self) -> None:
        self._optimizer: Any = None  # a weak reference
        self._kept: Samples | None = None  # after the last step
        self._saved: set[bytes] = set()  # digests of what state_dict() gave
        self._set = False  # to something that is taken
        self._hook: Any = None
        self._views = Views(side_by_side)

    def follow(self, optimizer: Optimizer) -> None:
        if self._optimizer is not None and self._optimizer() is optimizer:
            return
        if self._hook is not None:
            self._hook.remove()
        refuse_wrapper(optimizer)
        me = weakref.ref(self)

        def saved(stepping: Optimizer, *_: Any) -> None:
            if (mine := me()) is not None and not mine.changed():
                mine._saved.add(mine._sampled(stepping).digest())

        self._optimizer, self._hook = weakref.ref(optimizer), optimizer.register_state_dict_pre_hook(saved)

    def forget(self) -> None:
        self._kept = None

    def note(self) -> None:
        """The states are what a step has made of them."""
        if self._optimizer is not None and (optimizer := self._optimizer()) is not None:
            self._kept = self._sampled(optimizer)

    def changed(self) -> str:
        """What refuses the states as they are, or ""."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if self._kept is None or optimizer is None:
            return ""
        now = self._sampled(optimizer)
        if now.same_as(self._kept):
            return ""
        values, before = now.of_each(), self._kept.of_each()
        for key, whole in _states_of(optimizer):
            if key in before and _is_taken(values[key], before[key]):
                continue
            if key not in before and bool((whole == whole.reshape(-1)[:1]).all()):
                continue
            if now.digest() not in self._saved:
                return _REFUSAL.format(key[-1], key[0])
        self._kept, self._set = now, True
        return ""

    def were_set(self) -> bool:
        """Since this was asked last: a reset, or an earlier state. Taken, but a choice."""
        found, self._set = self._set, False
        return found

    def _sampled(self, optimizer: Optimizer) -> Samples:
        return Samples(self._views.of(_states_of(optimizer)))


def _is_taken(now: torch.Tensor, before: torch.Tensor) -> bool:
    return same(now, before) or now.numel() == 1 or not bool(now.count_nonzero()) or post_processed(now, before)


def _states_of(optimizer: Optimizer) -> Iterator[tuple[tuple, torch.Tensor]]:
    """This rank's part of every tensor, by number of the parameter and by name."""
    number = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for path, value in _tensors_in(optimizer.state.get(parameter, {}), ()):
                yield (number, *path), value
            number += 1


def _tensors_in(value: Any, path: tuple) -> Iterator[tuple[tuple, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, own_part(value)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _tensors_in(each, (*path, name))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _tensors_in(each, (*path, number))


__all__ = ["HeldStates", "refuse_wrapper"]
