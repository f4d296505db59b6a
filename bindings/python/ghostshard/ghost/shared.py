"""A tensor that all units share to its user, with a value for each unit behind it.

A table of relative places is looked up once for all examples, and its rows are broadcast. Autograd would add the examples'
gradients up where they are broadcast, before any norm. So the layer gives a value for each unit, and the model's own code sees
the one that it expects: shapes are those of the shared tensor; what is done with it is done with each unit's value; and
where it meets a tensor of the units, they meet unit by unit.
"""

from __future__ import annotations

from typing import Any

import torch

from .provenance.places import place_of_loop
from .rows import rows_of_each
from .tensor_trees import mapped, tensors_in

_READ = {"shape", "dtype", "device", "layout", "ndim", "is_sparse", "is_quantized", "is_meta", "is_cpu", "is_cuda", "itemsize", "names"}
_METHODS = {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point, torch.Tensor.is_complex,
    torch.Tensor.__len__, torch.Tensor.ndimension, torch.Tensor.nelement, torch.is_floating_point, torch.is_complex, torch.numel,
    torch.Tensor.element_size, torch.Tensor.get_device, torch.Tensor.type,
}  # fmt: skip
_ALONG = {torch.Tensor.expand, torch.Tensor.repeat}


class Shared(torch.Tensor):
    """Made by shared(). RuntimeError for what cannot be done unit by unit."""

    behind: torch.Tensor  # [units, *shape]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        getter = getattr(func, "__self__", None)
        name = getattr(getter, "__name__", "") if getattr(func, "__name__", "") == "__get__" else ""
        if name == "requires_grad":
            return False  # fully_shard would hand it on through an autograd.Function, which knows nothing of what is behind
        if name in ("grad_fn", "is_leaf"):
            return getattr(args[0].behind, name)
        if name in _READ or func in _METHODS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.Tensor.requires_grad_:
            args[0].behind.requires_grad_(*args[1:], **kwargs)
            return args[0]
        if func is torch.Tensor.backward:
            raise RuntimeError(
                "a loss that a layer forms over all examples at once has no gradient of one example: each example needs a loss of its "
                "own, by the criterion of make_private() or the model's labels"
            )
        if func is torch.Tensor.register_hook:
            return args[0].behind.register_hook(*args[1:], **kwargs)
        given = (args, kwargs)
        _refuse_strays(given)
        units = next(len(value.behind) for value in tensors_in(given) if isinstance(value, Shared))
        if func in _ALONG and not _of_units(given, units):
            found = _along(func, args, units)
            if found is not None:
                return found
        if _of_units(given, units):
            return _met(func, given, units)
        return _each(func, given)

    def __repr__(self, **_: Any) -> str:
        return f"Shared({tuple(self.shape)} of each of {len(self.behind)} units)"


def shared(of_units: torch.Tensor, *, leading_one: bool = False) -> torch.Tensor:
    """of_units [units, ...] as a tensor [...], or [1, ...], that all units share. The value itself if there is one unit alone."""
    behind = of_units.unsqueeze(1) if leading_one else of_units
    if len(behind) <= 1:
        return behind.sum(0)
    found = torch.Tensor._make_subclass(Shared, behind.detach()[0], behind.requires_grad)
    found.behind = behind
    if behind.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            found.register_hook(_refuse)
    return found


def _refuse_strays(given: Any) -> None:
    """RuntimeError for a tensor that an autograd.Function made of a shared one: the values behind it are no longer those."""
    with torch._C.DisableTorchFunctionSubclass():
        if any(isinstance(value, Shared) and value.grad_fn is not None for value in tensors_in(given)):
            _refuse(None)


def _refuse(_: Any) -> None:
    raise RuntimeError(
        "a tensor that all units share (rows of a table that are looked up once for all examples) was used by an operation that "
        "cannot be done unit by unit (an autograd.Function); nothing of this backward was kept"
    )


def plain(value: Any) -> Any:
    """One unit's values, without a gradient, of a shared tensor; anything else as it is."""
    if not isinstance(value, Shared):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        return value.detach().as_subclass(torch.Tensor)


def _of_units(given: Any, units: int) -> bool:
    """Whether a tensor of the units is among them, [units, ...] or [units · rows, ...]."""
    most = max(value.dim() for value in tensors_in(given) if isinstance(value, Shared))
    others = [value for value in tensors_in(given) if not isinstance(value, Shared) and value.dim() >= max(most, 1)]
    found = [_is_of_units(number, value, units) for number, value in enumerate(others)]  # all are asked, and remembered
    return any(found)


_CONSTANTS: set[tuple] = set()  # tensors without a gradient that had other extents than the units, by line of the model, number and dimensions


def _is_of_units(number: int, value: torch.Tensor, units: int) -> bool:
    """A constant that has as many rows as there are units, by chance, is one all the same."""
    fits = bool(value.shape[0] == units or rows_of_each(value, units))
    if value.requires_grad or torch.compiler.is_compiling():
        return fits
    line = (*place_of_loop(), number, value.dim())
    if not fits and value.shape[0] > 1:  # one of 1 is broadcast, as a mask is that hides the same of all, and is each unit's own in other batches
        _CONSTANTS.add(line)
    return fits and line not in _CONSTANTS


def _along(func: Any, args: tuple, units: int) -> torch.Tensor | None:
    """expand(units, ...) and repeat(units, ...) make it the units' own: a block of each unit, one after another."""
    value, *sizes = args
    sizes = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    extra = len(sizes) - value.dim()
    if not sizes or sizes[0] != units:
        return None
    if extra == 1:
        return func(value.behind, units if func is torch.Tensor.expand else 1, *sizes[1:])
    if extra == 0 and func is torch.Tensor.repeat:
        return value.behind.repeat(1, 1, *sizes[1:]).flatten(0, 1)
    return value.behind.squeeze(1).expand(units, *sizes[1:]) if extra == 0 and value.shape[0] == 1 else None


def _met(func: Any, given: Any, units: int) -> Any:
    """func over tensors of the units and shared ones, which broadcast to them."""
    most = max(value.dim() for value in tensors_in(given))
    others = [value for value in tensors_in(given) if not isinstance(value, Shared) and value.dim() == most]
    rows = max(len(value) // units if value.shape[0] == units else rows_of_each(value, units) or 0 for value in others)

    def aligned(value: torch.Tensor) -> torch.Tensor:
        if not isinstance(value, Shared):
            return value
        if value.dim() == most and rows > 1 and value.shape[0] == units * rows:  # each unit's own rows, of the value that is its own
            each = torch.arange(units, device=value.device)
            return value.behind.unflatten(1, (units, rows))[each, each].flatten(0, 1)
        if value.dim() == most:
            if value.shape[0] != 1:
                raise RuntimeError(
                    f"a tensor {tuple(value.shape)} that counts as shared by all units does not broadcast to {units} units. If the model brings rows of several "
                    "arguments together itself (torch.cat, torch.stack), whose they are is not known: call the part that takes them once for each argument, or join the rows "
                    "in the loop and say whose each is: model(torch.cat([a, b]), units=torch.arange(n).repeat(2)). Ids that a model computes itself and that are 0, 1, 2, … count "
                    "as places: give them as an argument of its own"
                )
            behind = value.behind.squeeze(1)
        else:
            behind = value.behind.view(units, *([1] * (most - 1 - value.dim())), *value.shape)
        return behind if rows == 1 else behind.repeat_interleave(rows, 0)

    args, kwargs = mapped(aligned, given)
    return func(*args, **kwargs)


def _each(func: Any, given: Any) -> Any:
    """func over each unit's value."""
    tensors = tensors_in(given)
    behind = [value.behind for value in tensors if isinstance(value, Shared)]
    if any(value.requires_grad for value in tensors if not isinstance(value, Shared)):
        raise RuntimeError(
            f"{getattr(func, '__name__', func)}: a tensor that all units share (rows of a table that are looked up once for all examples) "
            f"meets one of {[tuple(value.shape) for value in tensors if not isinstance(value, Shared)]}, whose rows are not known to be "
            f"those of the {len(behind[0])} units"
        )

    def one(*values: torch.Tensor) -> Any:
        following = iter(values)
        args, kwargs = mapped(lambda value: next(following) if isinstance(value, Shared) else value, given)
        return func(*args, **kwargs)

    try:
        found = torch.func.vmap(one, randomness="same")(*behind)  # one toss for all, as of one tensor
    except RuntimeError as error:
        raise RuntimeError(
            f"{getattr(func, '__name__', func)}: a tensor that all units share (rows of a table that are looked up once for all examples) "
            f"is used in a way that cannot be followed unit by unit ({' '.join(str(error).split())[:120]})"
        ) from error
    return mapped(lambda value: shared(value), found)


__all__ = ["Shared", "plain", "shared"]
