"""What make_private() refuses of its arguments before it touches the model."""

from __future__ import annotations

from itertools import chain
from typing import Any

from opacus.grad_sample import AbstractGradSampleModule
from torch import nn, optim
from torch.distributed.fsdp import FSDPModule


def check_arguments(
    generator: Any,
    secure_mode: bool,
    module: nn.Module,
    optimizer: optim.Optimizer,
    mode: str,
    max_grad_norm: Any,
    rand_on_empty: bool,
) -> None:
    if generator is not None and secure_mode:
        raise ValueError("Passing seed is prohibited in secure mode")
    if isinstance(module, AbstractGradSampleModule):
        raise ValueError("the module is wrapped for private training already: pass the model itself")
    known = set(module.parameters())
    if any(p not in known for p in chain.from_iterable(group["params"] for group in optimizer.param_groups)):
        raise ValueError(
            "Module parameters are different than optimizer Parameters: build the optimizer from this module, after "
            "FSDP2Wrapper if that is used"
        )
    if mode == "ghost_fsdp" and not isinstance(module, FSDPModule):
        raise ValueError(
            "grad_sample_mode='ghost_fsdp' needs a model under FSDP2: FSDP2Wrapper(model), or fully_shard; got "
            f"{type(module).__name__}"
        )
    if mode == "ghost" and isinstance(module, FSDPModule):
        raise ValueError("a model under FSDP2 takes grad_sample_mode='ghost_fsdp'")
    if isinstance(max_grad_norm, (list, tuple)):
        raise ValueError(
            "max_grad_norm must be one number in modes 'ghost' and 'ghost_fsdp' (per_layer shares it out), got a list"
        )
    if rand_on_empty:
        raise ValueError(
            "rand_on_empty puts a random example where nothing was drawn, so that one example more or less moves "
            "the sum by up to twice the clip norm; an empty batch is a step like any other here"
        )


__all__ = ["check_arguments"]
