"""Whose rows does a torch function give? Five kinds of functions are known; any other loses its rows' owners.

A function may keep a row in its place (elementwise), move whole rows and parts of them (moves.py), reduce or sort along other
dimensions, compute with constant weights along the first (layers), or bring rows of several tensors together (joins.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..tensor_trees import mapped, tensors_in
from .by_place import WHY, is_cut, joins_cuts, writes_a_cut
from .constants import as_read, note_read
from .courses import course_after
from .decisions import DECISIONS
from .drawn import NOT_KNOWN, Drawn, Memory, Origin, constant, drawn, not_known, plain, version_of
from .functions import ALONG, ASIDE, COUNTS, ELEMENTWISE, EXPOSING, EXTENTS, HELD, LAYERS, LIKE, METADATA, NEW, OF_SEVERAL, name_of
from .joins import JOINS, elementwise, joined
from .met import wrong_constant, wrong_extent
from .moves import JOIN, MOVES, moved
from .padded import over_padding
from .penalties import refuse_penalties
from .setting import after_setting
from .strangers import note_backward, refuse_parameters, statistics_of_a_batch, why_strange, write_to_strangers
from .ways import way_of

_AS_READ = 1 << 12  # of a list's numbers


def followed(func: Any, args: tuple, kwargs: dict) -> Any:
    """func(*args, **kwargs), with the rows' owners in its result."""
    name, writes = name_of(func)
    if name == "iter":
        return iter(followed(torch.unbind, args[:1], {}))
    if name in ("to", "type_as") and len(args) > 1 and isinstance(args[1], torch.Tensor):  # the other's dtype and device, no value of it
        if not isinstance(args[0], Drawn):
            return plain(args[0]).to(args[1].device, args[1].dtype)
        args = (args[0], args[1].device, args[1].dtype, *args[2:])
        func, name = torch.Tensor.to, "to"
    if name == "data" and not writes:
        func = torch.Tensor.detach  # the same, but writing to it counts as writing to the tensor
    with torch._C.DisableTorchFunctionSubclass():
        if func is torch.autograd.grad:
            refuse_penalties(args, kwargs)
        given = [each for each in tensors_in((args, kwargs)) if isinstance(each, Drawn)]
        for each in given:
            if each.requires_grad and not each.origin.live and isinstance(each.grad_fn, torch.autograd.function.BackwardCFunction):
                each._origin = _of_a_function(each.origin)
        if name in EXPOSING:
            for each in given:
                each.origin.memory.expose(plain(each))
        before = [(each, version_of(each), each.origin.memory.lost) for each in given]
        beside = [(each, version_of(each)) for each in tensors_in((args, kwargs)) if not isinstance(each, Drawn)]
        refuse_parameters([each for each, _ in beside if writes and each is args[0] and name not in ASIDE])  # before anything is written
        blank = writes and args and name in ("scatter", "scatter_add") and not isinstance(args[0], Drawn) and _all_alike(args[0])
        out = func(*args, **kwargs)
        if name == "backward":
            note_backward(given[0])
        written = _count_writes(before)
        if not tensors_in(out) and not writes and not written and all(version_of(each) == version for each, version in beside) or name in HELD:
            return _noted(name, out, given)
        targets = tensors_in(kwargs["out"]) if "out" in kwargs else tensors_in(args[0]) if writes else written
        strangers = [each for each, version in beside if version_of(each) != version] + statistics_of_a_batch(name, args, kwargs)
        refuse_parameters([*targets, *strangers])
        if strangers and not blank and name not in ASIDE:
            write_to_strangers(name, strangers, given, lambda target: _written_whole(name, args, kwargs, target, given))
        for target in targets:
            if isinstance(target, Drawn):
                target.stays_here()
                _written(name, target, args, kwargs, given)
        if name in NEW and len(given) == 1 and not _has_rows_like(out, given[0]):
            return plain(out)  # a constant
        if name in ("zeros_like", "ones_like") and given and all(each.origin.memory.lost for each in given):
            return plain(out)  # it has nothing of what is lost but the extents
        if blank:  # torch.zeros(n, classes).scatter_(1, labels, 1) is the labels' own
            return _stamped(name, (torch.zeros(()).expand(out.shape), *args[1:]), kwargs, out, given)
        is_target = all(any(each is target for target in targets) for each in tensors_in(out))
        return out if targets and is_target else _stamped(name, args, kwargs, out, given)


def _written_whole(name: str, args: tuple, kwargs: dict, target: torch.Tensor, sources: list[Drawn]) -> Origin | None:
    """Whose the rows of a plain tensor are if all of it was written to; None if a part was, or nobody knows."""
    if "out" in kwargs:
        return _origins(name, args, {key: value for key, value in kwargs.items() if key != "out"}, target, sources)[0]
    whole = name == "copy" or (name == "setitem" and (args[1] is Ellipsis or (isinstance(args[1], slice) and args[1] == slice(None))))
    source = args[-1] if whole else None
    return source.origin if isinstance(source, Drawn) and source.shape == target.shape else None


def _has_rows_like(out: torch.Tensor, x: Drawn) -> bool:
    dim = x.origin.dim
    return not x.origin.memory.lost and dim is not None and out.dim() > dim and out.shape[dim] == x.shape[dim] and _all_alike(out)


def _of_a_function(origin: Origin) -> Origin:
    """Of what a torch.autograd.Function gave. What is seen to join examples in its forward, which has no gradients, is lost; gradients tell of what is not
    known there."""
    found = replace(origin.lost("an autograd.Function made it"), live=True)
    found.memory.loose = not origin.memory.lost or origin.memory.lost.startswith(NOT_KNOWN)
    return found


def _noted(name: str, out: Any, given: list[Drawn]) -> Any:
    """What is no tensor. Values that leave torch are noted, and numbers among them stay known as such."""
    counted = name in EXTENTS and any(each.counted for each in given)
    if not counted and name in METADATA or name in HELD or (name.startswith("is_") and name != "is_nonzero"):
        return out
    for each in given:
        if constants := getattr(each._origin.memory.piece, "constants", None):
            constants.was_read(f"{name}()")
    note_read(out, max(getattr(each._origin.memory.piece, "units", 1) for each in given))
    if type(out) is bool:
        DECISIONS.note_here(out)
    return as_read(out) if name == "item" or counted or (name == "tolist" and given[0].numel() <= _AS_READ) else out


def _all_alike(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0 and bool((value == value.reshape(-1)[0]).all())


def _count_writes(before: list[tuple[Drawn, int, str]]) -> list[torch.Tensor]:
    """The tensors whose memory the function wrote to."""
    written = [(each, version_of(each) - version) for each, version, _ in before if version_of(each) != version]
    for memory, times in {id(each._origin.memory): (each._origin.memory, times) for each, times in written}.values():
        memory.written(times)
    return [each for each, _ in written]


def _stamped(name: str, args: tuple, kwargs: dict, out: Any, sources: list[Drawn]) -> Any:
    counted = name in COUNTS or (name == "where" and len(args) == 1) or _counts_classes(name, args, kwargs) or any(each.counted for each in sources)
    counted = counted or (name == "getitem" and any(each.dtype in (torch.bool, torch.uint8) for each in tensors_in(args[1:])))
    by_tensor = bool(tensors_in((args[1:], kwargs)))
    origins, way, course = iter(_origins(name, args, kwargs, out, sources)), way_of(name, sources), course_after(name, sources)

    def stamp(value: torch.Tensor) -> torch.Tensor:
        origin = _with_gradient(next(origins), value, sources)
        if any(value is each for each in sources):
            return value
        shares = next((each.origin.memory for each in sources if _share(each, value)), None)
        found: Any = drawn(plain(value), origin if shares is None or origin.memory.lost else origin.within(shares))
        found.counted, found.way, found.course = counted, way, course
        rows = 0 if origin.dim is None else value.shape[origin.dim]
        found.by_place = any(each.by_place for each in sources) or is_cut(name, sources[0], rows, by_tensor=by_tensor)
        return found

    return mapped(stamp, out)


def _counts_classes(name: str, args: tuple, kwargs: dict) -> bool:
    """one_hot(y) has as many columns as the largest label of the batch needs."""
    return name == "one_hot" and kwargs.get("num_classes", args[1] if len(args) > 1 else -1) == -1


def _with_gradient(origin: Origin, value: torch.Tensor, sources: list[Drawn]) -> Origin:
    """Of what follows from outputs of the model with their gradients: if its rows are lost to tensors with gradients alone, it is loose."""
    if not value.requires_grad or not torch.is_grad_enabled() or not any(each.origin.live and each.requires_grad for each in sources):
        return origin
    if origin.memory.lost:
        wrong = next((each.origin.memory.wrong for each in sources if each.origin.memory.wrong), "")
        loose = not wrong and not origin.memory.strangers
        origin = origin if not wrong else origin.lost(wrong)
        origin.memory.loose = loose
    return replace(origin, live=True)


def _share(one: torch.Tensor, two: torch.Tensor) -> bool:
    try:
        return one.numel() > 0 and one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    except RuntimeError:  # no storage
        return True


def _written(name: str, target: Drawn, args: tuple, kwargs: dict, sources: list[Drawn]) -> None:
    """The target of a function that writes keeps its owners if what is written is of the same ones."""
    if name in ASIDE:
        return
    if name == "data" or name == "setitem":
        one = after_setting(*args) if name == "setitem" else target.origin.lost("its data were replaced", strangers=True)
        wrong = wrong_constant(name, args, kwargs, target, sources) if name == "setitem" else ""
        if wrong or (name == "setitem" and writes_a_cut(target, args[1])):
            one = one.lost(wrong or f"{name} {WHY}", strangers=True)
    else:
        sources = [each for each in sources if each is not kwargs.get("out")]
        kwargs = {key: value for key, value in kwargs.items() if key != "out"}
        one = _origins(name, args, kwargs, target, sources)[0] if sources else target.origin.lost(f"{name} wrote to it", strangers=True)
    one = _with_gradient(one, target, sources)
    target.way, target.course = way_of(name, sources), course_after(name, sources)
    now = target.origin
    now.memory.vouched |= any(each.origin.memory.vouched for each in sources)
    if one.live and not now.live:
        target._origin = now = replace(now, live=True)
    if one.memory.lost:
        _lose(now.memory, one.memory.lost, loose=one.memory.loose)
    elif (one.dim, one.rows) != (now.dim, now.rows) or not one.same_rows(now):
        _lose(now.memory, f"{name} wrote other rows to it", loose=one.live and all(each.requires_grad for each in tensors_in(args)))


def _lose(memory: Memory, why: str, *, loose: bool) -> None:
    memory.loose = loose and not memory.wrong
    memory.lost = memory.lost or why


def _origins(name: str, args: tuple, kwargs: dict, out: Any, sources: list[Drawn]) -> list[Origin]:
    """One for each tensor of `out`."""
    found, wrong = _owners(name, args, kwargs, out, sources), wrong_constant(name, args, kwargs, out, sources)
    if name in JOIN and joins_cuts(sources):
        wrong = wrong or f"{name} {WHY}"
    return [each.lost(wrong, strangers=True) for each in found] if wrong else found


def _owners(name: str, args: tuple, kwargs: dict, out: Any, sources: list[Drawn]) -> list[Origin]:
    results = tensors_in(out)
    first = sources[0].origin
    lost = next((each.origin for each in sources if each.origin.memory.lost), None)
    if why := why_strange((args, kwargs)):
        return [first.lost(f"{name} joined it with {why}", strangers=True)] * len(results)
    if lost is not None:
        strangers = name in ELEMENTWISE and any(_has_rows_of_others(each, lost.rows) for each in tensors_in((args, kwargs)))
        return [lost.lost("", strangers=strangers) for _ in results]
    pieces = [each.origin.memory.piece for each in sources if not each.origin.vouched]
    if any(piece is not pieces[0] for piece in pieces):
        apart = not all(each.requires_grad for each in sources)
        return [first.lost(f"{name} joined it with another batch of the loader", strangers=apart) for _ in results]
    if (name in ELEMENTWISE and len(results) == 1) or name == "broadcast_tensors":  # not where(mask), which gives places
        operands = sources[:1] if name in LIKE else tensors_in((args, kwargs))
        found = [elementwise(name, each, operands) for each in results]
    elif name in NEW:
        found = [first.at(first.dim, first.ids, moved=True) if len(sources) == 1 else first.lost(f"{name} took values of the batch")]
    elif name in MOVES:
        found = moved(name, args, kwargs, out, sources)
    elif name in JOINS and len(results) == 1:
        found = [joined(name, args, kwargs, results[0], sources)]
    elif name in ALONG:
        found = _along(name, args, kwargs, results, sources)
    elif name in LAYERS:
        found = [_layer(name, args, kwargs, each, sources) for each in results]
    else:
        found = [first.lost(not_known(name))] * len(results)
    return [_of_loader(each, sources) for each in found]


def _has_rows_of_others(value: torch.Tensor, rows: int) -> bool:
    """Beside rows that are not followed any more."""
    return not (isinstance(value, Drawn) or value.requires_grad or value.dim() == 0 or value.shape[0] != rows or constant(value, 0))


def _of_loader(origin: Origin, sources: list[Drawn]) -> Origin:
    """With the loader's piece, if anything in it is the loader's; and with the word of whoever vouched for any of it."""
    piece = next((each.origin.memory.piece for each in sources if not each.origin.vouched), None)
    if piece is not None and origin.vouched:
        origin = origin.within(Memory(piece, origin.memory.lost, strangers=origin.memory.strangers, vouched=True))
    elif any(each.origin.memory.vouched for each in sources) and not origin.memory.vouched:
        origin = origin.within(Memory(origin.memory.piece, origin.memory.lost, strangers=origin.memory.strangers, vouched=True))
    return origin


def _along(name: str, args: tuple, kwargs: dict, results: list[torch.Tensor], sources: list[Drawn]) -> list[Origin]:
    x = args[0] if args else kwargs["input"]
    others = [each for each in tensors_in((args[1:], kwargs)) if each is not x and each.dim() > 0]
    if others and name in ("max", "min"):
        return [elementwise(name, results[0], [x, *others])]
    if not isinstance(x, Drawn) or len(sources) > 1 or (others and name.endswith("quantile")):  # several stand in a dimension of their own
        return [sources[0].origin.lost(f"{name} joined rows")] * len(results)
    if name == "diff" and not all(constant(each, 0) for each in others):
        return [x.origin.lost("diff joined it with rows that the loader did not hand out")] * len(results)
    origin = x.origin
    if origin.dim is None:
        return [origin.at(None, origin.ids, moved=True)] * len(results)
    place, default = ALONG[name]
    dims = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else default))
    if isinstance(dims, bool):  # std(unbiased)
        dims = None
    dims = range(x.dim()) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
    along = {each % x.dim() for each in dims}
    if origin.dim in along:
        return [origin.lost(f"{name} joined its examples")] * len(results)
    if wrong := over_padding(name, x, along) or wrong_extent(name, x, along):
        return [origin.lost(wrong, strangers=True)] * len(results)
    gone = sum(each < origin.dim for each in along)
    return [origin.at(origin.dim if each.dim() == x.dim() else origin.dim - gone, origin.ids, moved=True) for each in results]


def _layer(name: str, args: tuple, kwargs: dict, out: torch.Tensor, sources: list[Drawn]) -> Origin:
    """Rows are the first dimension of every input that is known, and anything else is weights, which all rows share."""
    origin, unknown = sources[0].origin, not_known(name)
    apart = not all(each.requires_grad for each in sources)
    if name not in OF_SEVERAL and (len(sources) > 1 or sources[0] is not (args[0] if args else kwargs.get("input"))):
        return origin.lost(f"{name} took rows of the batch for weights", strangers=apart)
    plains = [each for each in tensors_in((args, kwargs)) if not isinstance(each, Drawn)]
    others = [each for each in plains if name in OF_SEVERAL and each.dim() > OF_SEVERAL[name] and not constant(each, 0)]
    if others:
        strangers = not all(each.requires_grad for each in others)
        return origin.lost(f"{name} joined it with rows that the loader did not hand out", strangers=strangers)
    if all(each.origin.dim is None for each in sources):
        same = all(each.origin.same_rows(origin) for each in sources)
        return origin.at(None, origin.ids, moved=True) if same else origin.lost(f"{name} joined rows of several examples", strangers=apart)
    dims = LAYERS[name]
    least = dims or (1 if name in ("embedding", "one_hot", "bucketize") else 2 if len(sources) == 1 else 3)
    fits = all(each.origin.dim == 0 and each.dim() >= least and each.origin.same_rows(origin) for each in sources)
    fits = fits and len({each.dim() for each in sources}) == 1  # of tensors with a batch in front the last dimensions stand below each other
    fits = fits and (dims == 0 or sources[0].dim() == dims) and out.dim() > 0 and out.shape[0] == sources[0].shape[0]
    if name in ("matmul", "cdist"):
        fits = fits and (tensors_in((args, kwargs))[0] is sources[0] or sources[0].dim() > 2)
    if name == "batch_norm":
        fits = fits and not (kwargs.get("training", args[5] if len(args) > 5 else False))
    if name == "pad":
        fits = fits and len(args[1] if len(args) > 1 else kwargs["pad"]) // 2 < sources[0].dim()
    if name in ("layer_norm", "rms_norm"):
        fits = fits and len(args[1] if len(args) > 1 else kwargs["normalized_shape"]) < sources[0].dim()
    if name == "scaled_dot_product_attention":
        fits = fits and len(sources) >= 3
    if fits and (wrong := over_padding(name, sources[0], range(1, sources[0].dim()))):
        return origin.lost(wrong, strangers=True)
    return origin.at(0, origin.ids, moved=True) if fits else origin.lost(unknown, strangers=apart)


Drawn.followed = staticmethod(followed)

__all__ = ["followed"]
