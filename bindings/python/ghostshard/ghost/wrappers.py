"""make_private's results for the model: a wrapper, or a handle beside it (wrap_model=False)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleHooks, AbstractGradSampleModule
from torch import nn

from ..set_once import SetOnce
from .engine import GhostEngine
from .loss import check_reduction
from .opacus_names import refuse_of_a_module
from .set_outside import is_of

_STAYS_YOURS = (
    "What make_private(wrap_model=False) returns first is a handle beside the model, which stays your own: call, train, save and hand on the model that "
    "you gave to it"
)

_OF_THE_MODEL = (
    "{0!r} is of the model, not of the wrapper that make_private() returned: take module._module.{0}, or leave the wrapper out with make_private(wrap_model=False)"
)

_NO_COEFFICIENTS = (
    "Opacus' DPTensorFastGradientClipping and DPLossFastGradientClipping ask the model for clipping coefficients, which it does not have: each example is clipped within the "
    "one backward of a private loss. Give make_private() your function of outputs and targets that gives one loss for each example (criterion=), and go backward from what the "
    "criterion that it returns gives; its loss_per_sample may be changed row by row"
)


def _call(module: nn.Module, args: tuple, kwargs: dict) -> Any:
    return module(*args, **kwargs)


_between_graphs = _call


class GhostHooks(SetOnce, AbstractGradSampleHooks):
    """Private steps on a model that stays the user's own; `cleanup()` gives it back as it was."""

    engine: GhostEngine
    set_once = {name: f"make_private({name}=)" for name in ("batch_first", "loss_reduction")}

    def __init__(
        self, m: nn.Module, *, batch_first: bool = True, loss_reduction: str = "mean", **engine_options: Any
    ):
        check_reduction(loss_reduction)
        super().__init__(m, batch_first=batch_first, loss_reduction=loss_reduction)
        self.engine = GhostEngine(m, batch_first=batch_first, loss_reduction=loss_reduction, **engine_options)

    def enable_hooks(self) -> None:
        with self.engine.run.thread.within("enable_hooks()"):
            self.engine.enable()

    def disable_hooks(self) -> None:
        with self.engine.run.thread.within("disable_hooks()"):
            self.engine.enable(False)

    def remove_hooks(self) -> None:
        self.engine.detach()

    def get_clipping_coef(self) -> Any:
        raise RuntimeError(_NO_COEFFICIENTS)

    @property
    def hooks_enabled(self) -> bool:
        """Whether steps are private."""
        return self.engine.watching

    def __getattr__(self, name: str) -> Any:
        refuse_of_a_module(type(self).__name__, name)
        if name.startswith("_") or not hasattr(nn.Module, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"{name!r} is of the model. {_STAYS_YOURS}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(_STAYS_YOURS)


class GhostModule(SetOnce, AbstractGradSampleModule):
    """A wrapper around the model: calls go through, and keys of its state_dict begin with `_module.` as Opacus' do."""

    set_once = GhostHooks.set_once

    def __init__(
        self, m: nn.Module, *, batch_first: bool = True, loss_reduction: str = "mean", **engine_options: Any
    ):
        check_reduction(loss_reduction)
        super().__init__(m, batch_first=batch_first, loss_reduction=loss_reduction)
        self.engine = GhostEngine(m, batch_first=batch_first, loss_reduction=loss_reduction, **engine_options)
        global _between_graphs
        _between_graphs = torch.compiler.disable(_call)  # here, as it takes seconds to import what compiles

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """torch.compile of the wrapper would compile our own hooks."""
        return _between_graphs(self._module, args, kwargs)

    enable_hooks = GhostHooks.enable_hooks
    disable_hooks = GhostHooks.disable_hooks
    remove_hooks = GhostHooks.remove_hooks
    get_clipping_coef = GhostHooks.get_clipping_coef
    hooks_enabled = GhostHooks.hooks_enabled

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            model = self.__dict__.get("_modules", {}).get("_module")
            if model is None or name.startswith("_") or not hasattr(model, name):
                refuse_of_a_module(type(self).__name__, name)
                raise
            raise AttributeError(_OF_THE_MODEL.format(name)) from error

    def __setattr__(self, name: str, value: Any) -> None:
        if "engine" in vars(self) and is_of(self, self._module, name):
            raise AttributeError(_OF_THE_MODEL.format(name))
        super().__setattr__(name, value)

    def __getitem__(self, key: Any) -> Any:
        """A part of the model, as attributes are (`model[0]` of a Sequential, a name of a ModuleDict)."""
        return self._module[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._module)

    def zero_grad(self, set_to_none: bool = True) -> None:
        nn.Module.zero_grad(self, set_to_none)
