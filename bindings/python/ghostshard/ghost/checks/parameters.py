"""Checks that every parameter which trains is one that is clipped and noised: those that appear after make_private() are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..._native import load
from ..layout import Layout
from ..recording import ANCHOR

_WAY_OUT = "Build the whole model first, and call make_private() on it: a model that changes needs a new PrivacyEngine run"

_HOOKED = (
    "parameter {!r} has a hook on its gradient (register_hook, register_post_accumulate_grad_hook), and a private step would never call it, "
    "because autograd forms no gradient of a parameter. Change the released one instead, in a hook of the optimizer (register_step_pre_hook), with make_private(allow_vouched=True)"
)
_COMPLEX = (
    "parameter {!r} is complex, and a private step clips and noises real numbers. Make it a real one whose last extent of 2 holds both parts, "
    "and let the forward take torch.view_as_complex(parameter)"
)
OURS = "of_the_guard"  # marks hooks of guard.py


def refuse_complex(layout: Layout) -> None:
    """ValueError for a complex parameter that trains: half of its gradient would be lost, and half of its noise."""
    for entry in layout.parameters:
        if entry.parameter.requires_grad and entry.parameter.is_complex():
            raise ValueError(_COMPLEX.format(entry.name))


def refuse_uncovered(model: nn.Module, layout: Layout, trained: Iterable[nn.Parameter]) -> None:
    """ValueError for a parameter of the model that requires a gradient, or one of the optimizer's (`trained`), that the
    layout lacks, and for hooks on gradients."""
    # Walked by hand: this runs at every backward and step.
    seen, waiting, by_slot, parameters = set(), [model], layout.by_slot, layout.parameters
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        waiting.extend(child for child in reversed(module._modules.values()) if child is not None)
        for attribute, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad or parameter.numel() == 0:
                continue
            number = by_slot.get((id(module), attribute), -1)
            if number < 0 or not _same(parameters[number].parameter, parameter):
                name = next(name for name, p in model.named_parameters(remove_duplicate=False) if p is parameter)
                raise ValueError(
                    f"parameter {name!r} was not in the model when it was made private, so it would train without clipping and "
                    f"noise. {_WAY_OUT}, or freeze the parameter"
                )
            if parameter.is_complex():  # it was frozen before
                raise ValueError(_COMPLEX.format(parameters[number].name))
            if _hooked(parameter):
                raise ValueError(_HOOKED.format(parameters[number].name))
    known = {id(entry.parameter) for entry in layout.parameters}
    for parameter in trained:
        if id(parameter) not in known and parameter.requires_grad and parameter.numel() > 0:
            raise ValueError(
                f"the optimizer has a parameter of shape {tuple(parameter.shape)} that was not in the model when it was made "
                f"private, so it would train without clipping and noise. {_WAY_OUT}, with this parameter in it"
            )


def refuse_strangers(losses: torch.Tensor, layout: Layout, units: int, is_of_batch: Callable[[torch.Tensor], bool]) -> None:
    """ValueError if a backward of these losses would give a gradient to a parameter outside of the model, or to another leaf that is not
    known to be the batch's own (is_of_batch). Extents tell nothing: a table of as many rows as the batch has looks like its rows."""
    known, strangers = {id(entry.parameter) for entry in layout.parameters}, []
    for leaf in load("engine").leaves_of(losses) if units else ():  # of nobody: all gradients are zero
        own = id(leaf) in known or leaf.numel() == 0 or any(hasattr(hook, OURS) for hook in (leaf._backward_hooks or {}).values())  # guard.py has a sentence
        if not (own or hasattr(leaf, ANCHOR) or (not isinstance(leaf, nn.Parameter) and is_of_batch(leaf))):
            strangers.append(tuple(leaf.shape))
    if strangers:  # the same one every time: leaves come in no order
        raise ValueError(
            f"this backward would give a gradient to a tensor of shape {min(strangers)} outside of the model's layers (a parameter of the criterion "
            "or of a second model, a learnt prompt, a parameter of the model that a method uses beside its layer): it has no clipping and no noise. Make "
            "it one of a layer of the model before make_private(), or keep its gradient out: requires_grad_(False), detach(), torch.no_grad(). (If it is the batch itself: one of your own, "
            "own_batches=True, looks like a table that trains, and gets a gradient by your word alone, allow_vouched=True; and so does a copy that "
            "the model makes a leaf: require the batch's gradient before it is copied)"
        )


def _hooked(parameter: nn.Parameter) -> bool:
    hooks = parameter._backward_hooks
    return bool(parameter._post_accumulate_grad_hooks) or (bool(hooks) and not all(hasattr(hook, OURS) for hook in hooks.values()))


def _same(known: nn.Parameter, found: nn.Parameter) -> bool:
    if found is known or not isinstance(known, DTensor):
        return found is known
    # fully_shard puts the gathered values in its place: a plain tensor, or one on a tensor-parallel axis alone.
    return not isinstance(found, DTensor) or found.device_mesh != known.device_mesh


@contextmanager
def no_gradients_of_autograd(layout: Layout) -> Iterator[None]:
    """RuntimeError with the parameter's name if autograd itself gives a trainable parameter a gradient within. None of it is kept;
    gradients from before stay."""
    parameters = [entry.parameter for entry in layout.parameters]
    before = [parameter.grad for parameter in parameters]
    for parameter, gradient in zip(parameters, before):
        if gradient is not None:
            parameter.grad = None
    try:
        yield
        changed = [entry.name for entry in layout.parameters if entry.parameter.grad is not None]
    finally:
        for parameter, gradient in zip(parameters, before):
            parameter.grad = gradient
    if changed:
        raise RuntimeError(
            f"parameter {changed[0]!r} was used outside of its own layer's forward, so it has no per-example gradient; "
            "nothing of this backward was kept"
        )


__all__ = ["no_gradients_of_autograd", "refuse_complex", "refuse_uncovered"]
