"""Numbers that were read from a private batch, where plain tensors meet them: what comes of it holds values of the batch.

torch asks an operand's `__torch_function__`, so this is seen wherever a number may stand in the place of a tensor (arithmetic, fill_, x[i] = number),
and not where torch takes nothing but a number (torch.tensor, torch.full, alpha=). Whole numbers have none: torch would not take them as extents.
"""

from __future__ import annotations

from typing import Any

import torch

from ..tensor_trees import mapped, tensors_in
from .constants import Read
from .drawn import Drawn, Memory, Origin, drawn, plain, version_of
from .functions import name_of
from .operations import followed
from .strangers import refuse_parameters, write_to_strangers

_WHY = "a number that was read from a private batch was brought into a tensor"


def meets(_: type, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    kwargs, (name, writes) = kwargs or {}, name_of(func)
    with torch._C.DisableTorchFunctionSubclass():
        given = tensors_in((args, kwargs))
        followed_ones = [each for each in given if isinstance(each, Drawn)]
        before = [(each, version_of(each)) for each in given]
        if not followed_ones:
            refuse_parameters(given[:1] if writes else [])  # before anything is written
            out = func(*args, **kwargs)
    if followed_ones:
        return followed(func, args, kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        written = [each for each, version in before if version_of(each) != version]
        refuse_parameters(written)
        if written:
            write_to_strangers(name, written, [_lost(written[0])], lambda _: None)
        return mapped(lambda value: value if any(value is each for each in written) else _lost(value), out)


def _lost(value: torch.Tensor) -> Drawn:
    found: Any = drawn(plain(value), Origin(Memory(None, _WHY, strangers=True), 1, None, None, True, live=True))
    return found


Read.__torch_function__ = classmethod(meets)  # type: ignore[attr-defined]
