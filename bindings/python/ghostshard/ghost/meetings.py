"""Functions of shared tensors (shared.py): unit by unit, and where they meet tensors of the units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .provenance.places import place_of_loop
from .readings import Output, outputs_along, sets_of
from .rows import rows_of_each
from .shared import Shared, copied, read_both_ways, shared
from .tensor_trees import mapped, refilled, tensors_in

_EXPANDS = {torch.Tensor.expand, torch.Tensor.broadcast_to, torch.broadcast_to}
_REPEATS = {torch.Tensor.repeat, torch.Tensor.tile, torch.tile}
# They broadcast over first extents, so that a shared tensor may be given one of the units.
_BROADCAST = {
    "add", "iadd", "radd", "sub", "isub", "rsub", "subtract", "mul", "imul", "rmul", "multiply", "div", "truediv", "itruediv", "rtruediv", "divide", "true_divide",
    "where", "maximum", "minimum", "lerp", "addcmul", "addcdiv", "eq", "ne", "lt", "le", "gt", "ge", "expand_as", "copy", "setitem",
}  # fmt: skip
_PRODUCTS = {"matmul", "imatmul", "rmatmul", "bmm", "baddbmm", "scaled_dot_product_attention"}  # the same, of matrices
_TABLE = "a tensor that all units share (rows of a table that are looked up once for all examples, or that an index or a mask chose from several)"
_CHOSEN = (
    "Of rows that are chosen (a mixture of experts), have the module that chooses them computed as one layer, ghostshard.register_rule(TheModule)(ghostshard.per_example) before "
    "make_private(), or compute all rows and choose by torch.where. "
)
_OTHERWISE = (
    f"{_CHOSEN}If the model brings rows of several "
    "arguments together itself (torch.cat, torch.stack), whose they are is not known: call the part that takes them once for each argument, or join the rows "
    "in the loop and say whose each is: model(torch.cat([a, b]), units=torch.arange(n).repeat(2)). Ids that a model computes itself and that are 0, 1, 2, … count "
    "as places: give them as an argument of its own"
)
_RETURNED = (
    f"{_CHOSEN}If the model returns a parameter of its own (weights of several losses, a temperature) to the loop or the criterion, form each example's loss in its forward "
    "instead: losses = model(x, y), with criterion=lambda losses: losses"
)

_certain: set[tuple] = set()  # lines of the model where a tensor of the units had their number as its first extent, and as no other
_doubts = 0


def done(func: Any, given: Any) -> Any:
    """func(*args, **kwargs). RuntimeError for what cannot be done unit by unit."""
    tensors = tensors_in(given)
    units = next(value.units for value in tensors if isinstance(value, Shared))
    # A layer's tables are shared, and whatever else has a gradient follows from the examples.
    sure = {number for number, value in enumerate(tensors) if not isinstance(value, Shared) and value.requires_grad}
    return _met(func, given, units, sure) if sure else _alone(func, given, units)


def doubt() -> None:
    """A reading was chosen that is not certain."""
    global _doubts
    _doubts += 1


def doubts() -> int:
    """How many there were so far, in the layers of all models: where there are more than before, the gradients of the batch must be looked at."""
    return _doubts


def _met(func: Any, given: Any, units: int, sure: set[int]) -> Any:
    """func over shared tensors and those of the units, whose numbers are given. What else has as many rows is the units' only if it must be."""
    tensors = tensors_in(given)
    extents = {_extent_of_units(func, given, units, number) for number in sure}
    if _broadcasts(func, tensors, sure):
        return _joined(func, given, units, sure, None, [])
    maybe = [number for number, value in enumerate(tensors) if number not in sure and value.dim() > 0 and value.shape[0] in extents]
    for more in sets_of(maybe, largest_first=False):
        found = outputs_along(func, given, units, sure | more, by_rows=False)
        if found is not None:
            return _joined(func, given, units, sure | more, *found)
    shapes = [tuple(value.shape) for value in tensors if isinstance(value, Shared)]
    raise RuntimeError(
        f"{getattr(func, '__name__', func)}: a tensor {shapes[0]} that counts as shared by all units does not broadcast to {units} units, and cannot be followed "
        f"example by example. {_OTHERWISE}"
    )


def _extent_of_units(func: Any, given: Any, units: int, number: int) -> int:
    """The first extent of a tensor with a gradient. RuntimeError if it is not known to be the units'."""
    value = tensors_in(given)[number]
    if value.dim() > 0 and value.shape[0] == units:
        line = (*place_of_loop(), number, value.dim())
        if units not in value.shape[1:]:
            _certain.add(line)
        elif line not in _certain:  # which of them is the units' is not known
            doubt()
        return units
    if value.dim() > 0 and rows_of_each(value, units):
        return value.shape[0]
    raise RuntimeError(
        f"{getattr(func, '__name__', func)}: {_TABLE} meets one of {tuple(value.shape)}, whose rows are not known to be those of the {units} units. {_OTHERWISE}"
    )


def _broadcasts(func: Any, tensors: list[torch.Tensor], along: set[int]) -> bool:
    """Whether shared tensors can be given a first extent of the units, or have one of 1 that becomes it."""
    name, most = getattr(func, "__name__", "").strip("_"), max(value.dim() for value in tensors)
    tables = [value for number, value in enumerate(tensors) if isinstance(value, Shared) and number not in along]
    least = 2 if name in _PRODUCTS else 0
    return (
        (name in _BROADCAST or (name in _PRODUCTS and most > 2))
        and all(tensors[number].dim() == most for number in along)
        and len({tensors[number].shape[0] for number in along}) == 1
        and all(least <= value.dim() and (value.dim() < most or value.shape[0] == 1) for value in tables)
    )


def _joined(func: Any, given: Any, units: int, along: set[int], tree: Any, outputs: list[Output]) -> Any:
    """func over the own rows of the tensors of these numbers, and each unit's value of the other shared ones."""
    tensors = tensors_in(given)
    rows = {number: tensors[number].shape[0] // units for number in along}
    values = [value.own(rows[number]) if number in along and isinstance(value, Shared) else value for number, value in enumerate(tensors)]
    others = [number for number, value in enumerate(values) if isinstance(value, Shared)]
    if not others or _broadcasts(func, tensors, along):
        most, repeats = max(value.dim() for value in tensors), rows[min(along)]
        for number in others:
            table = values[number]
            behind = table.behind.squeeze(1) if table.dim() == most else table.behind.view(units, *([1] * (most - 1 - table.dim())), *table.shape)
            values[number] = behind if repeats == 1 else behind.repeat_interleave(repeats, 0)
        args, kwargs = refilled(given, values)
        return func(*args, **kwargs)
    of_units = [number for number in range(len(values)) if number in along or number in others]

    def one(*of_one: torch.Tensor) -> Any:
        changed = list(values)
        for number, value in zip(of_units, of_one, strict=True):
            changed[number] = value
        args, kwargs = refilled(given, changed)
        return func(*args, **kwargs)

    found = _of_each(func, one, [values[number].behind if number in others else values[number].unflatten(0, (units, rows[number])) for number in of_units])
    placed = [value.movedim(0, each.dim).flatten(each.dim, each.dim + 1) for value, each in zip(tensors_in(found), outputs, strict=True)]
    if any(tuple(value.shape) != each.shape for value, each in zip(placed, outputs)):
        raise RuntimeError(f"{getattr(func, '__name__', func)}: {_TABLE} is used in a way that cannot be followed unit by unit. {_OTHERWISE}")
    return refilled(tree, placed)


def _alone(func: Any, given: Any, units: int) -> Any:
    """func over shared tensors and those without a gradient, of which nothing says whose their rows are."""
    tensors = tensors_in(given)
    if func in _EXPANDS or func in _REPEATS:
        found = _along(func, given, units)
        if found is not None:
            return found
    extents = {units, *(value.shape[0] for value in tensors if isinstance(value, Shared) and value.rows)}
    maybe = [number for number, value in enumerate(tensors) if (value.rows if isinstance(value, Shared) else value.dim() > 0 and value.shape[0] in extents)]
    for along in sets_of(maybe, largest_first=True) if maybe else ():
        found = outputs_along(func, given, units, along, by_rows=True) if along else None
        if found is not None:
            return _read_both_ways(func, given, units, along, *found)
    return _each(func, given)


def _along(func: Any, given: Any, units: int) -> torch.Tensor | None:
    """expand(units, ...) and repeat(units, ...) may make it the units' own, a block of each unit, one after another: or there are as many of something else."""
    (value, *sizes), kwargs = given
    sizes = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    extra = len(sizes) - value.dim()
    if kwargs or not sizes or sizes[0] != units or extra < 0:
        return None
    if extra > 0:
        behind = value.behind.view(units, *([1] * (extra - 1)), *value.shape)
        return copied(behind.expand(units, *sizes[1:]) if func in _EXPANDS else behind.repeat(1, *sizes[1:]), units, 1)
    if func in _REPEATS:
        return copied(value.behind.repeat(1, 1, *sizes[1:]).flatten(0, 1), units, value.shape[0])
    return copied(value.behind.squeeze(1).expand(units, *sizes[1:]), units, 1) if value.shape[0] == 1 else None


def _read_both_ways(func: Any, given: Any, units: int, along: set[int], tree: Any, outputs: list[Output]) -> Any:
    """What func gives row by row, in both readings."""
    tensors, grad = tensors_in(given), torch.is_grad_enabled()
    tosses = "dropout" in getattr(func, "__name__", "")  # coins are others for each copy
    copies = not tosses and all(isinstance(tensors[number], Shared) and tensors[number].copies for number in along)

    def behind(number: int) -> Callable[[], torch.Tensor]:
        def make() -> torch.Tensor:
            with torch.set_grad_enabled(grad):
                return tensors_in(_each(func, given))[number].behind

        return make

    found = enumerate(tensors_in(_joined(func, given, units, along, tree, outputs)))
    return refilled(tree, [read_both_ways(own, behind(number), units, outputs[number].rows, copies=copies) for number, own in found])


def _each(func: Any, given: Any) -> Any:
    """func over each unit's value."""

    def one(*values: torch.Tensor) -> Any:
        following = iter(values)
        args, kwargs = mapped(lambda value: next(following) if isinstance(value, Shared) else value, given)
        return func(*args, **kwargs)

    found = _of_each(func, one, [value.behind for value in tensors_in(given) if isinstance(value, Shared)])
    return mapped(lambda value: shared(value), found)


def _of_each(func: Any, one: Callable[..., Any], values: list[torch.Tensor]) -> Any:
    try:
        return torch.func.vmap(one, randomness="same")(*values)  # one toss for all, as of one tensor
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"{getattr(func, '__name__', func)}: {_TABLE} is used in a way that cannot be followed unit by unit ({' '.join(str(error).split())[:120]}). {_RETURNED}"
        ) from error


Shared.done = staticmethod(done)

__all__ = ["done", "doubt", "doubts"]
