"""A model without dropout, but else as in training, and its outputs in another rounding: for forwards that are compared (padding.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..tensor_trees import mapped, tensors_in


class Computed:
    """In which precision modules are called."""

    eps = 0.0

    def __init__(self, modules: Sequence[nn.Module]):
        self.modules = modules

    @contextmanager
    def rounded_otherwise(self) -> Iterator[None]:
        """Every module's outputs are others by up to a unit in their last place, from coins of their own; but for infinities, masks and whole numbers
        (lengths, places), which are as they are in any rounding."""
        generators: dict[torch.device, torch.Generator] = {}

        def shake(value: torch.Tensor) -> torch.Tensor:
            if not value.is_floating_point() or isinstance(value, (DTensor, nn.Parameter)):
                return value
            generator = generators.setdefault(value.device, torch.Generator(value.device).manual_seed(0))
            units, number = torch.empty(value.shape, device=value.device).uniform_(-1, 1, generator=generator), torch.finfo(value.dtype)
            fraction = value.isfinite() & (value != value.round())  # so no mask of -1e9, or of the least number, which would become infinite
            return torch.where(fraction, (value * (1 + units * number.eps)).to(value.dtype), value)

        handles = [module.register_forward_hook(lambda _module, _args, output: mapped(shake, output)) for module in self.modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __call__(self, _module: nn.Module, args: tuple) -> None:
        dtypes = [value.dtype for value in tensors_in(args) if value.is_floating_point()]
        dtypes += [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        self.eps = max([self.eps, *(torch.finfo(dtype).eps for dtype in dtypes)])


@contextmanager
def without_coins(model: nn.Module) -> Iterator[Computed]:
    """Without dropout, and without the attention that torch takes in evaluation, which puts zeros at padded places."""
    compiled = any("_orig_mod" in module._modules or module._compiled_call_impl is not None for module in model.modules())
    computed = Computed([] if compiled else list(model.modules()))
    if compiled:  # it would be compiled again, with hooks
        computed.eps = torch.finfo(torch.bfloat16).eps
    handles = [module.register_forward_pre_hook(computed) for module in computed.modules]
    training = [module for module in model.modules() if module.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield computed
    finally:
        for handle in handles:
            handle.remove()
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in training:
            module.training = True


__all__ = ["Computed", "without_coins"]
