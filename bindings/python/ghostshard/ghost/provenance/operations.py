"""Whose rows does a torch function give? Four kinds of functions are known; any other loses its rows' owners.

A function may keep a row in its place (elementwise), move whole rows and parts of them (moves.py), reduce or sort along other
dimensions, or compute with constant weights along the first (layers).
"""

from __future__ import annotations

from typing import Any

import torch

from ..tensor_trees import mapped, tensors_in
from .drawn import Drawn, Memory, Origin, constant, drawn, plain, version_of
from .moves import MOVES, moved

# Element by element, with broadcasting. Reversed operators, in-place ones and underscored names follow from these.
_ELEMENTWISE = set(
    "to type cpu cuda float half double bfloat16 long int short char bool byte contiguous clone detach requires_grad pin_memory data "
    "alias positive add sub subtract mul multiply div divide true_divide truediv floordiv floor_divide mod remainder fmod pow neg negative "
    "abs absolute sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan atan2 arctan2 "
    "sinh cosh tanh erf erfc erfinv sigmoid logit relu relu6 gelu silu mish elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus "
    "softsign tanhshrink softshrink hardshrink threshold clamp clamp_min clamp_max clip floor ceil round trunc fix frac nan_to_num lerp where "
    "masked_fill maximum minimum fmax fmin eq ne lt le gt ge equal_to not_equal greater greater_equal less less_equal isnan isinf isfinite "
    "isneginf isposinf logical_and logical_or logical_not logical_xor and or xor invert bitwise_and bitwise_or bitwise_xor bitwise_not lshift "
    "rshift bitwise_left_shift bitwise_right_shift addcmul addcdiv bernoulli dropout alpha_dropout feature_alpha_dropout heaviside hypot "
    "real imag conj resolve_conj resolve_neg angle deg2rad rad2deg copysign isclose rand_like randn_like randint_like zeros_like ones_like "
    "full_like empty_like zero normal uniform random exponential fill copy".split()
)
_LIKE = {name for name in _ELEMENTWISE if name.endswith("_like")}  # take no value from their argument

# Along some dimensions, by the argument `dim`: where it stands, and its default (None: all of them).
_ALONG: dict[str, tuple[int, Any]] = {
    **{name: (1, None) for name in
       "sum mean prod amax amin max min any all std var std_mean var_mean nansum nanmean logsumexp argmax argmin count_nonzero median "
       "nanmedian aminmax".split()},
    **{name: (1, None) for name in "softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp".split()},
    **{name: (1, -1) for name in "sort argsort mode glu".split()},
    **{name: (2, -1) for name in "topk kthvalue fft ifft rfft irfft diff".split()},
    "norm": (2, None), "vector_norm": (2, None), "normalize": (2, 1),
}  # fmt: skip

# With a batch in front: how many dimensions the input has with it (0: two or more). All but it is mixed; the rest are weights.
_LAYERS = {
    "linear": 0, "embedding": 0, "one_hot": 0, "layer_norm": 0, "rms_norm": 0, "group_norm": 0, "scaled_dot_product_attention": 0, "pad": 0,
    "matmul": 0, "bmm": 3, "interpolate": 0, "instance_norm": 0, "grid_sample": 4, "affine_grid": 3, "pixel_shuffle": 4, "pixel_unshuffle": 4,
    **{f"{name}{n}d": n + 2 for n in (1, 2, 3) for name in (
        "conv", "conv_transpose", "avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool", "dropout")},
}  # fmt: skip
# Layers of which several inputs have rows; how many dimensions a tensor may have that all rows share. Of the others the first alone has.
_OF_SEVERAL = {"matmul": 2, "bmm": 0, "scaled_dot_product_attention": 2, "grid_sample": 0, "affine_grid": 0}
_EXPOSING = {"numpy", "array", "untyped_storage", "storage", "dlpack", "data_ptr", "cuda_array_interface"}  # memory, to be written to unseen
_HELD = {"_base", "_grad"}  # by a tensor, not made of it
_ASIDE = {"requires_grad", "grad", "names"}  # may be set


def name_of(func: Any) -> tuple[str, bool]:
    """The function's name without underscores and without the r of reversed operators, and whether it writes to its first argument."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        return getattr(func.__self__, "__name__", name), name == "__set__"
    bare = name.strip("_")
    if name.startswith("__"):
        if bare == "setitem":
            return bare, True
        if bare[:1] in ("i", "r") and bare[1:] in _ELEMENTWISE and bare not in _ELEMENTWISE:
            return bare[1:], bare[0] == "i"
        return bare, False
    return bare.removesuffix("_with_indices"), name.endswith("_")


def followed(func: Any, args: tuple, kwargs: dict) -> Any:
    """func(*args, **kwargs), with the rows' owners in its result."""
    name, writes = name_of(func)
    if name == "iter":
        return iter(followed(torch.unbind, args[:1], {}))
    if name == "data" and not writes:
        func = torch.Tensor.detach  # the same, but writing to it counts as writing to the tensor
    with torch._C.DisableTorchFunctionSubclass():
        given = [each for each in tensors_in((args, kwargs)) if isinstance(each, Drawn)]
        if name in _EXPOSING:
            for each in given:
                each.origin.memory.expose(plain(each))
        before = [(each, version_of(each), each.origin.memory.lost) for each in given]
        out = func(*args, **kwargs)
        written = _count_writes(before)
        if not tensors_in(out) and not writes and not written or name in _HELD:
            return out
        targets = tensors_in(kwargs["out"]) if "out" in kwargs else tensors_in(args[0]) if writes else written
        for target in targets:
            if isinstance(target, Drawn):
                target.stays_here()
                _written(name, target, args, kwargs, given)
        return out if targets else _stamped(name, args, kwargs, out, given)


def _count_writes(before: list[tuple[Drawn, int, str]]) -> list[torch.Tensor]:
    """The tensors whose memory the function wrote to."""
    written = [(each, version_of(each) - version) for each, version, _ in before if version_of(each) != version]
    for memory, times in {id(each._origin.memory): (each._origin.memory, times) for each, times in written}.values():
        memory.written(times)
    return [each for each, _ in written]


def _stamped(name: str, args: tuple, kwargs: dict, out: Any, sources: list[Drawn]) -> Any:
    origins = iter(_origins(name, args, kwargs, out, sources))

    def stamp(value: torch.Tensor) -> torch.Tensor:
        origin = next(origins)
        if any(value is each for each in sources):
            return value
        shares = next((each.origin.memory for each in sources if _share(each, value)), None)
        return drawn(plain(value), origin if shares is None or origin.memory.lost else origin.within(shares))

    return mapped(stamp, out)


def _share(one: torch.Tensor, two: torch.Tensor) -> bool:
    try:
        return one.numel() > 0 and one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    except RuntimeError:  # no storage
        return True


def _written(name: str, target: Drawn, args: tuple, kwargs: dict, sources: list[Drawn]) -> None:
    """The target of a function that writes keeps its owners if what is written is of the same ones."""
    if name in _ASIDE:
        return
    if name == "data" or name == "setitem":
        one = _origin_of_setting(args) if name == "setitem" else target.origin.lost("its data were replaced")
    else:
        sources = [each for each in sources if each is not kwargs.get("out")]
        kwargs = {key: value for key, value in kwargs.items() if key != "out"}
        one = _origins(name, args, kwargs, target, sources)[0] if sources else target.origin.lost(f"{name} wrote to it")
    now = target.origin
    if one.memory.lost:
        now.memory.lost = now.memory.lost or one.memory.lost
    elif (one.dim, one.rows) != (now.dim, now.rows) or not one.same_rows(now):
        now.memory.lost = now.memory.lost or f"{name} wrote other rows to it"


def _origin_of_setting(args: tuple) -> Origin:
    """Of x[index] = value: one value for all, at places that are the same for all or of the mask of each row itself."""
    x, index, value = args[0], args[1], args[2]
    indices = index if isinstance(index, tuple) else (index,)
    others = [each for each in indices if isinstance(each, torch.Tensor)]
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        others.append(value)
        if any(isinstance(each, torch.Tensor) for each in indices) or (x.origin.dim is not None and value.shape != x[index].shape):
            return x.origin.lost("rows were written to it")
        others[-1] = value if value.dim() == x.dim() else value.expand_as(x[index])
    return _elementwise("setting of values", x, [x, *others])


def _origins(name: str, args: tuple, kwargs: dict, out: Any, sources: list[Drawn]) -> list[Origin]:
    """One for each tensor of `out`."""
    results = tensors_in(out)
    first = sources[0].origin
    lost = next((each.origin for each in sources if each.origin.memory.lost), None)
    if lost is not None:
        return [lost.lost("") for _ in results]
    pieces = [each.origin.memory.piece for each in sources if not each.origin.vouched]
    if any(piece is not pieces[0] for piece in pieces):
        return [first.lost(f"{name} joined it with another batch of the loader") for _ in results]
    if name in _ELEMENTWISE and len(results) == 1:  # not where(mask), which gives places
        found = [_elementwise(name, results[0], sources[:1] if name in _LIKE else tensors_in((args, kwargs)))]
    elif name in MOVES:
        found = moved(name, args, kwargs, out, sources)
    elif name in _ALONG:
        found = _along(name, args, kwargs, results, sources)
    elif name in _LAYERS:
        found = [_layer(name, args, kwargs, each, sources) for each in results]
    else:
        found = [first.lost(f"whether {name} keeps the rows of a batch apart is not known")] * len(results)
    return [_of_loader(each, sources) for each in found]


def _of_loader(origin: Origin, sources: list[Drawn]) -> Origin:
    """With the loader's piece, if anything in it is the loader's."""
    piece = next((each.origin.memory.piece for each in sources if not each.origin.vouched), None)
    return origin if piece is None or not origin.vouched else origin.within(Memory(piece, origin.memory.lost))


def _elementwise(name: str, out: torch.Tensor, operands: list[torch.Tensor]) -> Origin:
    stamped = [each for each in operands if isinstance(each, Drawn)]
    of_rows = [each for each in stamped if each.origin.dim is not None]
    first = (of_rows or stamped)[0]
    origin = first.origin
    if not of_rows:  # all of it is of one row
        others = [each for each in operands if not isinstance(each, Drawn) and each.dim() == first.dim() and each.numel() > 1]
        if not all(each.origin.same_rows(origin) for each in stamped):
            return origin.lost(f"{name} joined rows of several examples")
        if origin.rows > 1 and any(bool((each != each.reshape(-1)[0]).any()) for each in others):
            return origin.lost(f"{name} joined one example with values that the loader did not hand out")
        return origin.at(None, origin.ids, moved=_any_moved(stamped))
    place = origin.dim - first.dim()
    extent = first.shape[place]
    for each in operands:
        if isinstance(each, Drawn) and each.origin.dim is not None:
            if each.origin.dim - each.dim() != place or not each.origin.same_rows(origin):
                return origin.lost(f"{name} joined rows of different examples")
        elif isinstance(each, Drawn) and not each.origin.vouched:
            return origin.lost(f"{name} joined one example with the rows of all")
        elif each.dim() >= -place and not constant(each, place):
            return origin.lost(
                f"{name} joined it with a tensor {tuple(each.shape)} whose {extent} rows the loader did not hand out (for noise and the like "
                "torch.randn_like() and its kin say whose rows it has)"
            )
    dim = out.dim() + place
    return origin.at(dim, origin.ids, moved=_any_moved(stamped)) if out.shape[dim] == extent else origin.lost(f"{name} broadcast its rows")


def _any_moved(stamped: list[Drawn]) -> bool:
    return any(each.origin.moved for each in stamped)


def _along(name: str, args: tuple, kwargs: dict, results: list[torch.Tensor], sources: list[Drawn]) -> list[Origin]:
    x = args[0] if args else kwargs["input"]
    others = [each for each in tensors_in((args[1:], kwargs)) if each is not x and each.dim() > 0]
    if others and name in ("max", "min"):
        return [_elementwise(name, results[0], [x, *others])]
    if not isinstance(x, Drawn) or len(sources) > 1:
        return [sources[0].origin.lost(f"{name} joined rows")] * len(results)
    origin = x.origin
    if origin.dim is None:
        return [origin.at(None, origin.ids, moved=True)] * len(results)
    place, default = _ALONG[name]
    dims = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else default))
    if isinstance(dims, bool):  # std(unbiased)
        dims = None
    dims = range(x.dim()) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
    along = {each % x.dim() for each in dims}
    if origin.dim in along:
        return [origin.lost(f"{name} joined its examples")] * len(results)
    gone = sum(each < origin.dim for each in along)
    return [origin.at(origin.dim if each.dim() == x.dim() else origin.dim - gone, origin.ids, moved=True) for each in results]


def _layer(name: str, args: tuple, kwargs: dict, out: torch.Tensor, sources: list[Drawn]) -> Origin:
    """Rows are the first dimension of every input that is known, and anything else is weights, which all rows share."""
    origin, unknown = sources[0].origin, f"whether {name} keeps its rows apart is not known"
    if name not in _OF_SEVERAL and (len(sources) > 1 or sources[0] is not (args[0] if args else kwargs.get("input"))):
        return origin.lost(f"{name} took rows of the batch for weights")
    plains = [each for each in tensors_in((args, kwargs)) if not isinstance(each, Drawn)]
    if name in _OF_SEVERAL and not all(each.dim() <= _OF_SEVERAL[name] or constant(each, 0) for each in plains):
        return origin.lost(f"{name} joined it with rows that the loader did not hand out")
    if all(each.origin.dim is None for each in sources):
        same = all(each.origin.same_rows(origin) for each in sources)
        return origin.at(None, origin.ids, moved=True) if same else origin.lost(f"{name} joined rows of several examples")
    dims = _LAYERS[name]
    least = dims or (1 if name in ("embedding", "one_hot") else 2 if len(sources) == 1 else 3)
    fits = all(each.origin.dim == 0 and each.dim() >= least and each.origin.same_rows(origin) for each in sources)
    fits = fits and (dims == 0 or all(each.dim() == dims for each in sources)) and out.dim() > 0 and out.shape[0] == sources[0].shape[0]
    if name == "matmul":
        fits = fits and (tensors_in((args, kwargs))[0] is sources[0] or sources[0].dim() > 2)
    if name == "pad":
        fits = fits and len(args[1] if len(args) > 1 else kwargs["pad"]) // 2 < sources[0].dim()
    if name == "layer_norm":
        fits = fits and len(args[1] if len(args) > 1 else kwargs["normalized_shape"]) < sources[0].dim()
    if name == "scaled_dot_product_attention":
        fits = fits and len(sources) >= 3
    return origin.at(0, origin.ids, moved=True) if fits else origin.lost(unknown)


Drawn.followed = staticmethod(followed)

__all__ = ["followed"]
