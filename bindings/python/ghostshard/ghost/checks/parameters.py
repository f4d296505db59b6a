"""Checks that every parameter which trains is one that is clipped and noised: those that appear after make_private() are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..layout import Layout, own_parameters

_WAY_OUT = "Build the whole model first, and call make_private() on it: a model that changes needs a new PrivacyEngine run"


def refuse_uncovered(model: nn.Module, layout: Layout, trained: Iterable[nn.Parameter]) -> None:
    """ValueError for a parameter of the model that requires a gradient, or one of the optimizer's (`trained`), that the
    layout lacks."""
    for module in model.modules():
        for attribute, parameter in own_parameters(module):
            if parameter.requires_grad and not _covered(layout, module, attribute, parameter):
                name = next(name for name, p in model.named_parameters(remove_duplicate=False) if p is parameter)
                raise ValueError(
                    f"parameter {name!r} was not in the model when it was made private, so it would train without clipping and "
                    f"noise. {_WAY_OUT}, or freeze the parameter"
                )
    known = {id(entry.parameter) for entry in layout.parameters}
    for parameter in trained:
        if id(parameter) not in known and parameter.requires_grad:
            raise ValueError(
                f"the optimizer has a parameter of shape {tuple(parameter.shape)} that was not in the model when it was made "
                f"private, so it would train without clipping and noise. {_WAY_OUT}, with this parameter in it"
            )


def _covered(layout: Layout, module: nn.Module, attribute: str, parameter: nn.Parameter) -> bool:
    number = layout.index(module, attribute)
    if number < 0:
        return False
    known = layout.parameters[number].parameter
    if parameter is known or not isinstance(known, DTensor):
        return parameter is known
    # fully_shard puts the gathered values in its place: a plain tensor, or one on a tensor-parallel axis alone.
    return not isinstance(parameter, DTensor) or parameter.device_mesh != known.device_mesh


@contextmanager
def no_gradients_of_autograd(layout: Layout) -> Iterator[None]:
    """RuntimeError with the parameter's name if autograd itself gives a trainable parameter a gradient within; none is kept."""
    before = [_state(entry.parameter.grad) for entry in layout.parameters]
    held = [entry.parameter.grad for entry in layout.parameters]  # so that no address is used again
    yield
    changed = [
        entry for entry, state in zip(layout.parameters, before, strict=True) if _state(entry.parameter.grad) != state
    ]
    del held
    for entry in changed:
        entry.parameter.grad = None
    if changed:
        raise RuntimeError(
            f"parameter {changed[0].name!r} was used outside of its own layer's forward, so it has no per-example gradient; "
            "nothing of this backward was kept"
        )


def _state(gradient: Any) -> tuple[int, int]:
    if gradient is None:
        return 0, 0
    values: torch.Tensor = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    return id(gradient), values._version


__all__ = ["no_gradients_of_autograd", "refuse_uncovered"]
