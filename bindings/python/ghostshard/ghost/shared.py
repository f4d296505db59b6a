"""A tensor that all units share to its user, with a value for each unit behind it.

A table of relative places is looked up once for all examples, and its rows are broadcast. Autograd would add the examples'
gradients up where they are broadcast, before any norm. So the layer gives a value for each unit, and the model's own code sees
the one that it expects: shapes are those of the shared tensor; what is done with it is done with each unit's value; and
where it meets a tensor of the units, they meet unit by unit (meetings.py).

A table that is repeated 5 times (frames of a film) and a draw of 5 examples have an extent in common, and nothing says which of them it counts. So
such a tensor has both readings: one block that is each unit's own (own()), as if it had been repeated for each example, and the whole tensor of each unit
(behind), which is not computed before it is used. What meets a tensor of the units row by row takes the own ones; a sum over
all rows takes the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .tensor_trees import tensors_in

_READ = {"shape", "dtype", "device", "layout", "ndim", "itemsize", "names"}  # and what is_… says of every tensor
_METHODS = {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point, torch.Tensor.is_complex,
    torch.Tensor.__len__, torch.Tensor.ndimension, torch.Tensor.nelement, torch.is_floating_point, torch.is_complex, torch.numel,
    torch.Tensor.element_size, torch.Tensor.get_device, torch.Tensor.is_contiguous, torch.Tensor.stride, torch.Tensor.is_inference, torch.Tensor.is_conj, torch.Tensor.is_neg,
    torch.Tensor.is_signed, torch.is_inference, torch.is_conj, torch.is_neg, torch.is_signed,
}  # fmt: skip
_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")}


class Shared(torch.Tensor):
    """Made by shared(). RuntimeError for what cannot be done unit by unit."""

    units: int
    rows: int  # of each unit among the first extent, if that may be the units'; 0: it may not
    copies: bool  # the blocks of the first extent are copies of each other
    graded: bool  # there is a gradient behind it
    done: Callable[[Any, Any], Any]  # a function over such tensors: of meetings.py, which makes others of them
    made = 0  # how many there were
    _behind: torch.Tensor | Callable[[], torch.Tensor]
    _own: torch.Tensor | None

    @property
    def behind(self) -> torch.Tensor:
        """[units, *shape]."""
        if isinstance(self._behind, torch.Tensor):
            return self._behind
        found = self._behind()
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:  # a part that is computed again in backward computes this again, too
            self._behind = found
        return found

    def own(self, rows: int) -> torch.Tensor:
        """[units · rows, ...]: of each unit's value the rows that are the unit's own, if the first extent is the units'."""
        if self.rows == rows and self._own is not None:
            return self._own
        each = torch.arange(self.units, device=self.behind.device)
        return self.behind.unflatten(1, (self.units, rows))[each, each].flatten(0, 1)

    @property
    def at_hand(self) -> torch.Tensor:
        """One of its readings."""
        return self.own(self.rows) if self.rows else self.behind

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        getter = getattr(func, "__self__", None)
        name = getattr(getter, "__name__", "") if getattr(func, "__name__", "") == "__get__" else ""
        if name == "requires_grad":
            return False  # fully_shard would hand it on through an autograd.Function, which knows nothing of what is behind
        if name in ("grad_fn", "is_leaf"):
            return getattr(args[0].at_hand, name)
        if name in _READ or name.startswith("is_") or func in _METHODS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.Tensor.requires_grad_:
            args[0].at_hand.requires_grad_(*args[1:], **kwargs)
            args[0].graded = args[0].at_hand.requires_grad
            return args[0]
        if func is torch.Tensor.backward:
            raise RuntimeError(
                "a loss that a layer forms over all examples at once has no gradient of one example: each example needs a loss of its "
                "own, by the criterion of make_private() or the model's labels"
            )
        if func is torch.Tensor.register_hook:
            return args[0].at_hand.register_hook(*args[1:], **kwargs)
        _refuse_strays((args, kwargs))
        if not (_writes(func) and isinstance(args[0], Shared)):
            return cls.done(func, (args, kwargs))
        found = cls.done(_with_items if func is torch.Tensor.__setitem__ else func, ((torch.clone(_as_it_is(args[0])), *args[1:]), kwargs))
        if not isinstance(found, Shared) or found.shape != args[0].shape:
            raise RuntimeError(f"{func.__name__}: values of one unit cannot be written into a tensor that all units share (rows of a table that are looked up once for all examples)")
        args[0].__dict__.update(found.__dict__)
        return args[0]

    def __repr__(self, **_: Any) -> str:
        return f"Shared({tuple(self.shape)} of each of {self.units} units)"


def shared(of_units: torch.Tensor, *, leading_one: bool = False) -> torch.Tensor:
    """of_units [units, ...] as a tensor [...], or [1, ...], that all units share. The value itself if there is one unit alone."""
    behind = of_units.unsqueeze(1) if leading_one else of_units
    return behind.sum(0) if len(behind) <= 1 else _made(behind.detach()[0], len(behind), behind, graded=behind.requires_grad)


def copied(own: torch.Tensor, units: int, rows: int) -> torch.Tensor:
    """[units · rows, ...]: each unit's value is its own block, repeated as often as there are units."""

    def behind() -> torch.Tensor:
        blocks = own.unflatten(0, (units, rows)).unsqueeze(1)
        return blocks.expand(units, units, *blocks.shape[2:]).flatten(1, 2)

    return read_both_ways(own, behind, units, rows, copies=True)


def read_both_ways(own: torch.Tensor, behind: Callable[[], torch.Tensor], units: int, rows: int, *, copies: bool = False) -> torch.Tensor:
    """own [units · rows, ...], whose rows may be the units', or all of them each unit's: then behind() has them."""
    return _made(own.detach(), units, behind, graded=own.requires_grad, own=own, rows=rows, copies=copies)


def _made(values: torch.Tensor, units: int, behind: Any, *, graded: bool, own: torch.Tensor | None = None, rows: int = 0, copies: bool = False) -> torch.Tensor:
    Shared.made += 1
    found = torch.Tensor._make_subclass(Shared, values, graded)
    found.units, found.graded, found._behind, found._own, found.rows, found.copies = units, graded, behind, own, rows, copies
    if graded:
        with torch._C.DisableTorchFunctionSubclass():
            found.register_hook(_refuse)
    return found


def _as_it_is(value: Shared) -> torch.Tensor:
    """Another object, which stays as it is when the value is written into."""
    with torch._C.DisableTorchFunctionSubclass():
        found = torch.Tensor._make_subclass(Shared, value.detach().as_subclass(torch.Tensor), False)
    found.__dict__.update(value.__dict__)
    return found


def _writes(func: Any) -> bool:
    """Into its first argument."""
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE or func is torch.Tensor.__setitem__


def _with_items(value: torch.Tensor, where: Any, items: Any) -> torch.Tensor:
    """A copy of the tensor in which these items stand."""
    found = value.clone()
    found[where] = items
    return found


_with_items.__name__ = "__setitem__"  # in sentences, and where functions are told by their names


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
    return value.at_hand.detach() if value.rows else value.behind.detach()[0]


__all__ = ["Shared", "copied", "plain", "read_both_ways", "shared"]
