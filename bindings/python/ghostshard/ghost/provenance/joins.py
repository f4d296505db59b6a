"""Functions that bring rows of several tensors together: they keep their owners if row u meets row u, or what is the same for all rows."""

from __future__ import annotations

import torch

from ..same_memory import has_rows_of
from ..tensor_trees import tensors_in
from .drawn import Drawn, Origin, constant, not_known

# Reduced along a dimension after the inputs have met element by element: where `dim` stands, and its default.
_PAIRS = {"cosine_similarity": (2, 1), "pairwise_distance": (None, -1), "linalg_vecdot": (None, -1)}
_PRODUCTS = {"addmm", "baddbmm"}
# Without reduction: element by element, or [units, classes, ...] with [units, ...].
_BY_ELEMENT = set(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss "
    "poisson_nll_loss".split()
)
_BY_CLASS = {"cross_entropy", "nll_loss"}
_SCATTERS = {"scatter", "scatter_add", "scatter_reduce"}
JOINS = set(_PAIRS) | _PRODUCTS | _BY_ELEMENT | _BY_CLASS | _SCATTERS | {"einsum"}


def elementwise(name: str, out: torch.Tensor, operands: list[torch.Tensor]) -> Origin:
    operands = sorted(operands, key=lambda each: each.requires_grad)  # those without a gradient are asked first
    stamped = sorted((each for each in operands if isinstance(each, Drawn)), key=lambda each: not each.requires_grad)
    of_rows = [each for each in stamped if each.origin.dim is not None]
    first = (of_rows or stamped)[0]
    origin = first.origin
    if not of_rows:  # all of it is of one row
        others = [each for each in operands if not isinstance(each, Drawn) and each.dim() == first.dim() and each.numel() > 1]
        if not all(each.origin.same_rows(origin) for each in stamped):
            return origin.lost(f"{name} joined rows of several examples", strangers=_without_gradient(stamped))
        if origin.rows > 1 and any(bool((each != each.reshape(-1)[0]).any()) for each in others):
            why = f"{name} joined one example with values that the loader did not hand out"
            return origin.lost(why, strangers=_without_gradient(others))
        return origin.at(None, origin.ids, moved=_any_moved(stamped))
    place = origin.dim - first.dim()
    extent = first.shape[place]
    for each in operands:
        if isinstance(each, Drawn) and each.origin.dim is not None:
            if each.origin.dim - each.dim() != place or not each.origin.same_rows(origin):
                return origin.lost(f"{name} joined rows of different examples", strangers=not each.requires_grad)
        elif isinstance(each, Drawn) and not each.origin.vouched:
            return origin.lost(f"{name} joined one example with the rows of all", strangers=not each.requires_grad)
        elif each.dim() >= -place and not constant(each, place) and not is_of_the_forward(each, place, origin):
            return origin.lost(
                f"{name} joined it with a tensor {tuple(each.shape)} whose {extent} rows the loader did not hand out (for noise and the like "
                "torch.randn_like() and its kin say whose rows it has)",
                strangers=not each.requires_grad,
            )
    dim = out.dim() + place
    if dim < 0 or out.shape[dim] != extent:
        return origin.lost(f"{name} broadcast its rows")
    return origin.at(dim, origin.ids, moved=_any_moved(stamped))


def is_of_the_forward(value: torch.Tensor, place: int, origin: Origin) -> bool:
    """Within a forward or a criterion, whose arguments are not followed: gradients show whose rows it has, or it is an argument."""
    own = getattr(getattr(origin.memory.piece, "constants", None), "within", None)
    return own is not None and (value.requires_grad or (value.dim() + place == 0 and any(has_rows_of(value, each) for each in own)))


def _without_gradient(tensors: list[torch.Tensor]) -> bool:
    return not all(each.requires_grad for each in tensors)


def _any_moved(stamped: list[Drawn]) -> bool:
    return any(each.origin.moved for each in stamped)


def joined(name: str, args: tuple, kwargs: dict, out: torch.Tensor, sources: list[Drawn]) -> Origin:
    """Of the result of one of JOINS."""
    if all(each.origin.dim is None for each in sources):  # all of it is of one row
        origin = sources[0].origin
        same = all(each.origin.same_rows(origin) for each in sources)
        return origin.at(None, origin.ids, moved=True) if same else origin.lost(f"{name} joined rows of several examples")
    if name in _PAIRS:
        return _pair(name, args, kwargs, out)
    if name in _PRODUCTS:
        return _product(name, args, kwargs, out, sources)
    if name == "einsum":
        return _einsum(args, sources)
    if name in _SCATTERS:
        return _scattered(name, args, kwargs, sources)
    if kwargs.get("reduction", "mean") != "none":
        return sources[0].origin.lost(f"{name} joined its examples")
    if name in _BY_ELEMENT:
        return elementwise(name, out, tensors_in((args, kwargs)))
    weights = [kwargs.get("weight"), *args[2:3]]
    rows = [each for each in tensors_in((args, kwargs)) if not any(each is weight for weight in weights)]
    return _along_first(name, rows, out, sources)


def _lost_to(stranger: torch.Tensor, name: str, origin: Origin) -> Origin:
    why = f"{name} joined it with a tensor {tuple(stranger.shape)} whose rows the loader did not hand out"
    return origin.lost(why, strangers=not stranger.requires_grad)


def _along_first(name: str, operands: list[torch.Tensor], out: torch.Tensor, sources: list[Drawn]) -> Origin:
    """Rows are the first dimension of every operand."""
    origin = sources[0].origin
    if not all(any(each is one for one in operands) for each in sources):
        return origin.lost(f"{name} took rows of the batch for weights", strangers=_without_gradient(operands))
    for each in sorted(operands, key=lambda each: each.requires_grad):
        if isinstance(each, Drawn):
            if each.origin.dim != 0 or not each.origin.same_rows(origin):
                return origin.lost(f"{name} joined rows of different examples", strangers=_without_gradient(operands))
        elif each.dim() and not constant(each, 0) and not is_of_the_forward(each, -each.dim(), origin):
            return _lost_to(each, name, origin)
    if out.dim() == 0 or out.shape[0] != sources[0].shape[0]:
        return origin.lost(f"{name} joined its examples")
    return origin.at(0, origin.ids, moved=True)


def _pair(name: str, args: tuple, kwargs: dict, out: torch.Tensor) -> Origin:
    operands = tensors_in((args, kwargs))
    shape = torch.broadcast_shapes(*(each.shape for each in operands))
    origin = elementwise(name, torch.empty(()).expand(shape), operands)
    place, default = _PAIRS[name]
    along = kwargs.get("dim", default if place is None or len(args) <= place else args[place]) % len(shape)
    if origin.memory.lost:
        return origin
    if origin.dim == along:
        return origin.lost(f"{name} joined its examples")
    return origin.at(origin.dim - (along < origin.dim and out.dim() < len(shape)), origin.ids, moved=True)


def _product(name: str, args: tuple, kwargs: dict, out: torch.Tensor, sources: list[Drawn]) -> Origin:
    """input + one @ two: rows of `one` (and of `two` in batches of matrices)."""
    if len(args) < 3:
        return sources[0].origin.lost(not_known(name))
    added, one, two = args[:3]
    if (isinstance(two, Drawn) and name == "addmm") or (isinstance(added, Drawn) and added.dim() != out.dim()):
        return sources[0].origin.lost(f"{name} took rows of the batch for weights", strangers=_without_gradient(sources))
    rows = [one, *([two] if name == "baddbmm" else []), *([added] if isinstance(added, Drawn) or added.dim() == out.dim() else [])]
    return _along_first(name, rows, out, sources)


def _einsum(args: tuple, sources: list[Drawn]) -> Origin:
    """The rows' letter is the same in every operand with rows, and stands in the result."""
    origin = sources[0].origin
    unknown = origin.lost(not_known("einsum"))
    operands = tensors_in(args[1:])
    if not isinstance(args[0], str) or "->" not in args[0] or "." in args[0]:
        return unknown
    given, result = args[0].replace(" ", "").split("->")
    letters = given.split(",")
    known = {one[each.origin.dim] for one, each in zip(letters, operands) if isinstance(each, Drawn) and each.origin.dim is not None}
    if len(letters) != len(operands) or len(known) != 1 or not known <= set(result):
        return origin.lost("einsum joined rows of different examples", strangers=_without_gradient(operands))
    letter = known.pop()
    for one, each in sorted(zip(letters, operands), key=lambda pair: pair[1].requires_grad):
        if isinstance(each, Drawn):
            if each.origin.dim is None or one.count(letter) > 1 or not each.origin.same_rows(origin):
                return origin.lost("einsum joined rows of different examples", strangers=_without_gradient(operands))
        elif any(at == letter and not constant(each, d) for d, at in enumerate(one)):
            return _lost_to(each, "einsum", origin)
    return origin.at(result.index(letter), origin.ids, moved=True)


def _scattered(name: str, args: tuple, kwargs: dict, sources: list[Drawn]) -> Origin:
    """Row u of every operand goes to row u, if they are not scattered along the rows."""
    x, dim, index = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0), kwargs.get("index", args[2] if len(args) > 2 else None)
    origin = sources[0].origin
    along = origin.dim
    if not isinstance(index, torch.Tensor) or dim % x.dim() == along or x.shape[along] != index.shape[along]:
        return origin.lost(not_known(name))
    for each in tensors_in((x, args[2:], kwargs)):
        if isinstance(each, Drawn):
            if each.origin.dim != along or not each.origin.same_rows(origin):
                return origin.lost(f"{name} joined rows of different examples", strangers=_without_gradient(sources))
        elif each.dim() and not constant(each, along):
            return _lost_to(each, name, origin)
    return origin.at(along, origin.ids, moved=True)


__all__ = ["JOINS", "elementwise", "is_of_the_forward", "joined"]
