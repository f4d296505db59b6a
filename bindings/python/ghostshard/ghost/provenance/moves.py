"""Functions that only move elements: the same function, applied to the numbers of the rows, shows where each row went."""

from __future__ import annotations

from typing import Any

import torch

from ..tensor_trees import mapped, tensors_in
from .constants import note_list
from .drawn import Drawn, Origin, constant, not_known, plain
from .joins import is_of_the_forward
from .padded import taken_from_the_end

_RESHAPE = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "view_as", "reshape_as", "ravel", "unflatten"}  # no element moves
_PROPERTIES = {"T", "mT", "H", "mH"}
JOIN = {"cat", "concat", "concatenate", "stack", "hstack", "vstack"}
_CHOOSE = {"getitem", "gather", "take_along_dim", "index_select", "masked_select"}
MOVES = _RESHAPE | JOIN | _CHOOSE | set(
    "T mT H mH permute transpose t swapaxes swapdims movedim moveaxis expand expand_as broadcast_to repeat tile repeat_interleave "
    "flip fliplr flipud roll rot90 narrow select split chunk tensor_split unbind unfold diagonal split_with_sizes".split()
)  # fmt: skip


def moved(name: str, args: tuple, kwargs: dict, out: Any, sources: list[Drawn]) -> list[Origin]:
    """One origin for each tensor of `out`; the caller has run the function with torch functions of subclasses disabled."""
    args = args or (kwargs.pop("input", kwargs.pop("tensors", None)),)
    data = tensors_in(args[0])
    of_data = [each for each in data if isinstance(each, Drawn)]
    chosen_by = [each for each in tensors_in((args[1:], kwargs)) if name in _CHOOSE]
    results = tensors_in(out)
    if not of_data:
        return [_looked_up(name, args, kwargs, chosen_by, each, sources) for each in results]
    first = next((each for each in of_data if each.origin.dim is not None), of_data[0])
    dim = first.origin.dim
    if name in _RESHAPE and len(results) == 1 and (place := _reshaped(first, results[0])) is not None:
        return [first.origin.at(*place, moved=False)]
    small = _smallest(max(each.origin.rows for each in of_data))

    def numbers(value: torch.Tensor) -> torch.Tensor:
        if isinstance(value, Drawn):
            return spread(value.origin, value, small)
        if dim is not None and value.dim() == first.dim() and value.shape[dim] == first.shape[dim] and constant(value, dim):
            return spread(first.origin, value, small)  # the same for all rows, so it is each row's own
        return torch.full((), -1, dtype=small, device=value.device).expand(value.shape)

    call = getattr(torch.Tensor, {"getitem": "__getitem__", "view": "reshape"}.get(name, name), None) if name not in JOIN else getattr(torch, name)
    try:
        of_numbers = mapped(numbers, args[0])
        found = call.__get__(of_numbers) if name in _PROPERTIES else call(of_numbers, *args[1:], **kwargs)  # type: ignore
    except (RuntimeError, TypeError, ValueError):  # a function of the same name that does something else
        return [first.origin.lost(not_known(name))] * len(results)
    if not any(isinstance(each, Drawn) for each in chosen_by) and (why := taken_from_the_end(name, first, lambda table: call(table, *args[1:], **kwargs))):
        return [first.origin.lost(why, strangers=True)] * len(results)
    if name in JOIN and all(each.origin.dim is None and each.origin.rows > 1 for each in of_data):
        note_list(name, of_data)
    origins = []
    for shadow in tensors_in(found):
        place = located(shadow, dim)
        live = any(each.origin.live for each in of_data)
        if place is None or (live and bool((place[1] < 0).any())):
            others = any(not each.requires_grad and not constant(each, min(dim or 0, each.dim() - 1)) for each in data if each.dim())
            origins.append(first.origin.lost(f"{name} put rows of several examples together", strangers=others))
        elif not all(_chosen_rightly(each, first, shadow, place, dim) and _stands_there(each, shadow, call, of_numbers, args, kwargs, place[0]) for each in chosen_by):
            why = f"{name} chose its elements by a tensor that the loader did not hand out"
            origins.append(first.origin.lost(why, strangers=True))
        else:
            still = all(each.origin.moved is False for each in of_data) and name in _RESHAPE
            origins.append(first.origin.at(*place, moved=not still))
    return origins


def _reshaped(value: Drawn, out: torch.Tensor) -> tuple[int, torch.Tensor] | None:
    """(dimension, numbers along it) of rows that stood along the first dimension, without a tensor of the value's size. None: not
    along one dimension alone, or not to be told here."""
    if value.origin.dim != 0 or out.numel() != value.numel() or value.numel() == 0:
        return None
    of_row, inner = value.numel() // value.shape[0], 1
    for dim in reversed(range(out.dim())):
        if out.shape[dim] * inner > of_row:
            whole = of_row % inner == 0 and all(extent == 1 for extent in out.shape[:dim])
            return (dim, value.origin.numbers()[torch.arange(out.shape[dim]) * inner // of_row]) if whole else None
        inner *= out.shape[dim]
    return None


def _smallest(rows: int) -> torch.dtype:
    """That numbers rows, and has -1: as many numbers as elements are looked at."""
    return next((each for each in (torch.int8, torch.int16, torch.int32) if rows <= torch.iinfo(each).max), torch.int64)


def spread(origin: Origin, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[shape of value] numbers of rows, as a view."""
    ids = origin.numbers().to(value.device, dtype)
    if origin.dim is None:
        return ids.reshape(()).expand(value.shape)
    return ids.view([-1 if d == origin.dim else 1 for d in range(value.dim())]).expand(value.shape)


def located(shadow: torch.Tensor, likely: int | None) -> tuple[int | None, torch.Tensor] | None:
    """(dimension, numbers along it) if the numbers differ along one dimension alone, or (None, the number); None otherwise."""
    if shadow.numel() == 0:
        dim = likely if likely is not None and likely < shadow.dim() else 0
        return dim, torch.zeros(shadow.shape[dim], dtype=torch.int64)
    dims = [d for d in range(shadow.dim()) if shadow.shape[d] > 1 and shadow.stride(d) != 0]
    shadow = shadow[tuple(slice(None) if d in dims else slice(0, 1) for d in range(shadow.dim()))]  # the others repeat one memory
    one = shadow[(0,) * shadow.dim()]
    if not dims or bool((shadow == one).all()):
        return None, one.cpu().long()
    for d in sorted(dims, key=lambda d: d != likely):
        line = shadow[tuple(slice(None) if k == d else slice(0, 1) for k in range(shadow.dim()))]
        if len(dims) == 1 or bool((shadow == line).all()):
            return d, line.reshape(-1).cpu().long()
    return None


def _chosen_rightly(index: torch.Tensor, data: Drawn, shadow: torch.Tensor, place: Any, dim: int | None) -> bool:
    """Whether each row was chosen from by a tensor of its own, by one that is the same for all, or as a whole."""
    if isinstance(index, Drawn) and not index.origin.memory.lost:
        ids = place[1].reshape(-1)
        if index.dtype == torch.bool and index.origin.dim == data.origin.dim and index.origin.same_rows(data.origin):
            return True
        return index.origin.dim == place[0] and torch.equal(index.origin.numbers(), ids)
    if dim is None or index.dim() == 0:
        return True
    if index.dim() == 1:  # the same places of all rows, or whole rows
        return shadow.dim() >= data.dim() or constant(index, 0) or _counts_up(index)
    return _counts_up(index) or index.shape[min(dim, index.dim() - 1)] <= 1 or constant(index, min(dim, index.dim() - 1))


def _stands_there(index: torch.Tensor, whole: torch.Tensor, call: Any, table: Any, args: tuple, kwargs: dict, dim: int | None) -> bool:
    """Whether the rows of an index stand where those of the data do: x[:, y] takes for each example what the labels of all name. An index of one row
    shortens the dimension of `whole`, which the call gave, that its rows run along, if anything."""
    if not isinstance(index, Drawn) or index.origin.dim is None or index.shape[index.origin.dim] < 2:
        return True
    given = args[1] if len(args) > 1 else None
    if index.dtype == torch.bool:
        behind = isinstance(given, tuple) and len(given) > 1 and isinstance(given[0], slice)
        return not behind and (given is not index or index.dim() == table.dim() or call is torch.Tensor.__getitem__)
    one = plain(index).narrow(index.origin.dim, 0, 1)

    def narrowed(value: torch.Tensor) -> torch.Tensor:
        return one if value is index else value

    try:
        found = call(table, *mapped(narrowed, args[1:]), **mapped(narrowed, kwargs))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    return whole.dim() == found.dim() and all(d == dim for d in range(whole.dim()) if whole.shape[d] != found.shape[d])


def _counts_up(index: torch.Tensor) -> bool:
    """0, 1, 2, … along one dimension: places, which tell nothing of any row. (Transformers makes its masks so, of [n,1,1,1] and [1,1,1,T].)"""
    return index.numel() == max(index.shape) and index.dtype != torch.bool and torch.equal(index.reshape(-1).cpu(), torch.arange(index.numel(), dtype=index.dtype))


def _looked_up(name: str, args: tuple, kwargs: dict, indices: list[torch.Tensor], out: torch.Tensor, sources: list[Drawn]) -> Origin:
    """Rows of a table of the caller's, by indices that are drawn; or each row's own places of a table that is the same for all rows."""
    origin, table = sources[0].origin, args[0]
    known = len(indices) == 1 and indices[0].dtype != torch.bool
    if name in ("gather", "take_along_dim") and known and isinstance(table, torch.Tensor) and table.dim() == indices[0].dim():
        along = kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else args[2] if len(args) > 2 else None)
        own = origin.dim is not None and (constant(table, origin.dim) or is_of_the_forward(table, origin.dim - table.dim(), origin))
        known = isinstance(along, int) and (origin.dim is None or (along % table.dim() != origin.dim and own))
    elif name != "getitem" or (known and not _stands_there(indices[0], out, torch.Tensor.__getitem__, table, args, kwargs, origin.dim)):
        known = False
    if not known:
        return origin.lost(f"{name} looked it up together with other indices")
    return origin.at(origin.dim, origin.ids, moved=True)


__all__ = ["JOIN", "MOVES", "located", "moved", "spread"]
