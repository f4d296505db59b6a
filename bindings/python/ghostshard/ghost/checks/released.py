"""What an optimizer applies is what was released: a gradient without noise that is written into `.grad` between the release and the
step would be applied, and no epsilon covers it.

Where code of others may run in between (pre_step() called by itself, hooks of the optimizer), a copy of what was released is kept,
and the step compares. Two changes are post-processing whatever they follow from, up to one number a tensor, as a learning rate is
one: a factor (clip_grad_norm_, unscaling) and a bound on every element (clip_grad_value_). Of any other change nobody can tell what was
added, so it needs the user's word. So does a step of another optimizer over the model's parameters, for which no copy is kept.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as of_torch

from ..layout import Layout
from ..own_part import own_part
from ..provenance import Drawn
from .held_settings import GRADIENTS, LEFT_OUT
from .held_states import refuse_wrapper
from .held_weights import HeldWeights

_WAY_OUT = (
    "Let optimizer.step() of make_private() apply what it released. `.grad` may be scaled or clipped before that (clip_grad_norm_, "
    "clip_grad_value_, in a hook of the optimizer or between pre_step() and the step). If anything else is done to it, and all that enters are released "
    "gradients, weights and public numbers, say so with make_private(allow_vouched=True), which the report states"
)


_OTHERS = (
    "an optimizer that is not the one given to make_private() stepped on parameter {!r} of the private model, and nothing tells whether what it applies was "
    "released. Nothing of it was applied. Put every parameter of the model into the private optimizer (in groups of their own), and step that one alone. "
    "If all that the other one applies are released gradients, weights and public numbers, say so with make_private(allow_vouched=True), which the report states"
)

_IDLE = (
    "an optimizer that is not the one given to make_private() stepped on parameters of the private model, none of which has a gradient: it trains nothing. A backward that is no "
    "private step forms none. Train with the criterion and the optimizer of make_private(); on public data, take the model back first (module.cleanup())"
)

_watching: weakref.WeakSet[Released] = weakref.WeakSet()


def _before_any_step(stepping: Optimizer, args: tuple, kwargs: dict) -> None:
    for each in list(_watching):
        each.refuse_another(stepping, args, kwargs)


_OURS = of_torch.register_optimizer_step_pre_hook(_before_any_step).id


class Released:
    """Of one optimizer. layout(): what the engine trains; watches(): whether it is private still. Both are asked later, not here.
    weights: the engine's."""

    weights: HeldWeights | None = None

    def __init__(self, layout: Callable[[], Layout], optimizer: Optimizer, watches: Callable[[], bool]):
        self._layout, self._watches = layout, watches
        self.any_change = False  # the user vouches for what is done to gradients
        self._open = False  # what was released may be applied
        self._at_once = False  # nobody's code has come between
        self._stepping: FrameType | None = None  # the call of the run's optimizer that applies it, which may call its parent's step, or another optimizer that it holds
        self._noted: dict[int, _Noted] = {}  # by id of the parameter
        self._idle: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()  # steps of others without a gradient
        self._handle: Any = None
        self._end_handle: Any = None
        self._watch(optimizer)
        _watching.add(self)

    def begin(self, optimizer: Optimizer, *, alone: bool) -> None:
        """After a release, before the optimizer that applies it. alone: the step follows at once, and nobody's code comes before it."""
        self._at_once = alone and not self._hooked(optimizer)
        copied = not (self.any_change or self._at_once)
        self._noted = {}
        with torch.no_grad():
            for entry in self._layout().parameters:
                gradient = entry.parameter.grad
                if gradient is not None:
                    self._noted[id(entry.parameter)] = _Noted(entry.name, gradient, copied=copied)
        self._open = True
        if self.weights is not None:
            self.weights.settings.done.add(LEFT_OUT)  # until it is applied
        self._watch(optimizer)

    def end(self) -> None:
        """It was applied, or is given up."""
        self._open, self._stepping, self._noted = False, None, {}

    def _watch(self, optimizer: Optimizer) -> None:
        """The check is the last of the hooks, of the optimizer that steps now. TypeError for a wrapper that has none."""
        refuse_wrapper(optimizer)
        if self._handle is not None:
            self._handle.remove()
            self._end_handle.remove()
        self._optimizer, me = optimizer, weakref.ref(self)
        if self.weights is not None:
            self.weights.states.follow(optimizer)

        def before_step(stepping: Optimizer, args: tuple, kwargs: dict) -> None:
            if (mine := me()) is not None and not mine._applying:
                mine.check(stepping, args, kwargs)
                mine._stepping = sys._getframe(1)

        def after_step(*_: Any) -> None:
            if (mine := me()) is not None and mine._stepping is sys._getframe(1):
                if mine._open and mine.weights is not None:
                    mine.weights.note()
                    mine.weights.settings.done.discard(LEFT_OUT)
                mine._stepping = None

        self._handle = optimizer.register_step_pre_hook(before_step)
        self._end_handle = optimizer.register_step_post_hook(after_step)
        optimizer._optimizer_step_post_hooks.move_to_end(self._end_handle.id, last=False)  # what other hooks do to weights is no step's

    def _hooked(self, optimizer: Optimizer) -> bool:
        of_all = [number for number in of_torch._global_optimizer_pre_hooks if number != _OURS]
        return len(of_all) + len(optimizer._optimizer_step_pre_hooks) > (self._optimizer is optimizer)

    def check(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        """RuntimeError, and no gradient is left, unless what this optimizer applies was released."""
        if not self._watches():
            return
        wrong = self._wrong(optimizer, args, kwargs)
        if wrong:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self.end()
            raise RuntimeError(f"{wrong}. Nothing of it was applied. {_WAY_OUT}")
        if self._open and not self._at_once and self.weights is not None:  # a step that moves nothing may come amid a load
            self.weights.check()
            if self._touched():
                self.weights.settings.done.add(GRADIENTS)

    def _touched(self) -> bool:
        """Whether some were scaled, clipped or left out."""
        given = {id(entry.parameter) for entry in self._layout().parameters if entry.parameter.grad is not None}
        return any(each.touched for each in self._noted.values()) or not self._noted.keys() <= given

    @property
    def _applying(self) -> bool:
        """The call is under way. (One that ended with an error is not.)"""
        frame = sys._getframe() if self._stepping is not None else None
        while frame is not None and frame is not self._stepping:
            frame = frame.f_back
        return frame is not None

    def refuse_another(self, stepping: Optimizer, args: tuple, kwargs: dict) -> None:
        """RuntimeError, and no gradient is left, if `stepping` is not the optimizer of the run and would change what the run trains."""
        if stepping is self._optimizer or self._applying or self.any_change or not self._watches():
            return
        names = {id(entry.parameter): entry.name for entry in self._layout().parameters}
        shared = [parameter for group in stepping.param_groups for parameter in group["params"] if id(parameter) in names]
        given = [parameter for parameter in shared if parameter.grad is not None]
        if shared and not given:
            self._idle[stepping] = self._idle.get(stepping, 0) + 1
            if self._idle[stepping] == 2:  # once, as some loops step before their first scheduler, is no training
                warnings.warn(_IDLE, stacklevel=5)
        if shared and (_closure(args, kwargs) is not None or not _all_zero(given)):
            for parameter in given:
                parameter.grad = None
            raise RuntimeError(_OTHERS.format(names[id((given or shared)[0])]))

    def _wrong(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> str:
        given = list(self._gradients(optimizer))
        if not self._open and _all_zero(given):
            return ""  # as torch.distributed.checkpoint steps, at a rate of 0, to have states before it reads or writes them
        if not self._open:
            return "the optimizer under the private one stepped by itself, with gradients that no release has just put there"
        if _closure(args, kwargs) is not None:
            return "the optimizer under the private one was given a closure, which would put other gradients in the place of the released ones"
        if next(reversed(optimizer._optimizer_step_pre_hooks)) != self._handle.id:
            return "a hook of the optimizer was registered between the release and the step"
        with torch.no_grad():
            for parameter in given:
                if isinstance(parameter.grad, Drawn):
                    return f"a gradient of shape {tuple(parameter.shape)} was changed by values of a private batch"
                noted = self._noted.get(id(parameter))
                if noted is None and parameter.numel() == 0:
                    continue
                if noted is None:
                    return f"a parameter of shape {tuple(parameter.shape)} has a gradient that was not released"
                if not self.any_change and noted.changed(parameter.grad):
                    return f"the gradient of parameter {noted.name!r} is not the one that was released, nor that one scaled or clipped"
        return ""

    @staticmethod
    def _gradients(optimizer: Optimizer) -> Iterable[torch.Tensor]:
        """Parameters that it would change."""
        return (parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None)


class _Noted:
    """A released gradient: this rank's rows."""

    def __init__(self, name: str, gradient: torch.Tensor, *, copied: bool):
        self.name = name
        rows = own_part(gradient)
        self._rows, self._version = rows, rows._version
        self._copy = rows.clone() if copied else None
        self.touched = False

    def changed(self, gradient: torch.Tensor) -> bool:
        """Other than by a factor, or by a bound on its elements."""
        now = own_part(gradient)
        if self._copy is None:
            return now.data_ptr() != self._rows.data_ptr() or now._version != self._version or now.shape != self._rows.shape
        before = self._copy
        if now.shape != before.shape or now.dtype != before.dtype or now.device != before.device:
            return True
        self.touched = not torch.equal(now, before)
        return self.touched and not (now.numel() == 0 or _scaled(now, before) or _bounded(now, before))


def _closure(args: tuple, kwargs: dict) -> Any:
    """Of a hook's arguments, of which the optimizer itself is the first."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def _all_zero(parameters: list[torch.Tensor]) -> bool:
    """Nothing of a record is in such gradients. Of each rank's own rows: a rank that steps with others is refused there."""
    return not any(own_part(parameter.grad).count_nonzero().item() for parameter in parameters)


def _scaled(now: torch.Tensor, before: torch.Tensor) -> bool:
    """By one factor. A product rounds once, and the factor read from the largest element once more: within 2 eps, twice that is taken."""
    flat, found = before.reshape(-1), now.reshape(-1)
    at = flat.abs().argmax()
    factor = found[at].double() / flat[at].double()
    expected = flat.double() * factor
    least = torch.finfo(before.dtype).tiny
    return bool(((found.double() - expected).abs() <= 4 * torch.finfo(before.dtype).eps * expected.abs() + least).all())


def _bounded(now: torch.Tensor, before: torch.Tensor) -> bool:
    bound = now.abs().max()
    return torch.equal(now, before.clamp(-bound, bound))


__all__ = ["Released"]
