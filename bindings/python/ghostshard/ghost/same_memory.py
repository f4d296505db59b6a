"""Is a tensor a view of another one? Torch's own `_base` names the first tensor of a memory, of which each of two may be another part."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def lies_within(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether every element of `part` is in the memory of an element of `whole`: whatever its shape, strides or dtype. A copy is not.
    False for tensors without strides (sparse ones), of ranks together, and without elements."""
    with torch._C.DisableTorchFunctionSubclass():
        if any(isinstance(each, DTensor) or each.layout is not torch.strided or each.is_meta or not each.numel() for each in (part, whole)):
            return False
        if part.device != whole.device or part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
            return False
        first, last = _bytes(whole)
        begin, end = _bytes(part)
        if not first <= begin < end <= last:
            return False
        held = torch.zeros(last - first, dtype=torch.bool)
        _elements(held, whole, first).fill_(True)
        return bool(_elements(held, part, first).all())


def has_rows_of(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether row u of `part` is in row u of `whole`, for every row: the tensor itself, or a column of it."""
    if part is whole:
        return True
    alike = part.dim() > 0 and whole.dim() > 0 and part.dtype == whole.dtype and (part.shape[0], part.stride(0)) == (whole.shape[0], whole.stride(0))
    return alike and lies_within(part, whole)


def is_of_buffers(value: torch.Tensor, model: nn.Module) -> bool:
    """Whether it is in the memory of a buffer of the model: a constant, which no example brought."""

    def memory(tensor: torch.Tensor) -> int:
        plain = not isinstance(tensor, DTensor) and tensor.layout is torch.strided and tensor.numel() > 0
        return tensor.untyped_storage().data_ptr() if plain else 0

    return memory(value) > 0 and any(memory(each) == memory(value) for each in model.buffers())


def _bytes(value: torch.Tensor) -> tuple[int, int]:
    """From the first to behind the last of its storage that it has."""
    width, first = value.element_size(), value.storage_offset()
    last = first + sum((extent - 1) * stride for extent, stride in zip(value.shape, value.stride()))
    return first * width, (last + 1) * width


def _elements(held: torch.Tensor, value: torch.Tensor, first: int) -> torch.Tensor:
    """The bytes of its elements, in `held`, which begins at byte `first`. An extent without a stride is one of one element."""
    width = value.element_size()
    places = [(extent, stride * width) for extent, stride in zip(value.shape, value.stride()) if stride] + [(width, 1)]
    return held.as_strided([extent for extent, _ in places], [stride for _, stride in places], value.storage_offset() * width - first)


__all__ = ["has_rows_of", "is_of_buffers", "lies_within"]
