"""Stops a backward in which autograd itself would form a trainable parameter's gradient, which would have no noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..layout import ParameterEntry, Slot, own_parameters
from .parameters import OURS

_IN_ITS_PLACE = (
    "another tensor stands in the place of parameter {!r} (torch.func.functional_call, load_state_dict(assign=True)): its gradient would be "
    "taken for the parameter's. A private step computes with the model's own parameters"
)


class Guard:
    """Called before a block's forward, when its parameters are whole. The guard of a copied model guards nothing.

    gathers: fully_shard gathers parameters, so that a DTensor may be a part that nobody computes with.
    """

    def __init__(self, *, gathers: bool) -> None:
        self.enabled = True
        self._gathers = gathers
        self._guarded: dict[int, torch.Tensor] = {}
        self._handles: list = []

    def __call__(self, slots: list[tuple[Slot, ParameterEntry]], *_: Any) -> None:
        if not self.enabled or not torch.is_grad_enabled():  # an evaluation may compute with an average of the weights
            return
        for slot, entry in slots:
            parameter = getattr(slot.module, slot.attribute)
            if isinstance(parameter, DTensor) and not self._whole_here(parameter, entry):
                continue
            if not (isinstance(parameter, nn.Parameter) if self._gathers else parameter is entry.parameter):
                raise RuntimeError(_IN_ITS_PLACE.format(entry.name))
            wanted = entry.parameter.requires_grad
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
            if wanted and id(parameter) not in self._guarded:
                self._guarded[id(parameter)] = parameter
                self._handles.append(parameter.register_hook(self._refusal(entry.name)))

    def _whole_here(self, parameter: DTensor, entry: ParameterEntry) -> bool:
        """A parameter that a tensor-parallel axis cuts stays a DTensor once it is gathered, but on that axis alone."""
        return not self._gathers or parameter.device_mesh != entry.parameter.device_mesh

    def _refusal(self, name: str) -> Callable[[torch.Tensor], None]:
        def refuse(_: torch.Tensor) -> None:
            if self.enabled:
                raise RuntimeError(
                    f"parameter {name!r} was used outside of its own layer's forward, so it has no per-example "
                    "gradient; nothing of this backward was kept. If the loop uses it (a learnt temperature, centres of classes), let the model's forward do so. If a module does, have that computed as one layer, ghostshard.register_rule(TheModule)"
                    "(ghostshard.per_example) before make_private() (for a penalty on weights take the optimizer's weight_decay; PEFT's AdaLoRA adds none if its task_type is left out), or freeze it (the queries of DETR, "
                    "whose model takes a table's weight whole)"
                )

        setattr(refuse, OURS, True)
        return refuse

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For gradients that are compared, and that nothing keeps."""
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._guarded.clear()

    def __reduce__(self) -> tuple:
        return _idle_guard, ()


def _idle_guard() -> Guard:
    idle = Guard(gathers=False)
    idle.enabled = False
    return idle


def warn_of_uncovered(name: str, module: nn.Module) -> None:
    """Warns of parameters without a rule. They stay with autograd; the guard stops a step that would give them a gradient."""
    own = [f"{name}.{own}" if name else own for own, parameter in own_parameters(module) if parameter.requires_grad]
    if own:
        warnings.warn(
            f"no rule gives per-example gradients of {', '.join(own)} ({type(module).__name__}): freeze them, or "
            "register a rule (ghostshard.register_rule); a backward that reaches them stops with an error",
            stacklevel=5,
        )
