"""A sharded model's forward that fails on one rank, as a check's may with inputs that the model does not take, still gathers what the
others gather within it: nobody waits.

FSDP2 calls a block's group before and after the block's forward, on all ranks in one order. What the first forward called is what
every later one must have called in the end. Only forwards without gradients are made up for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


class InStep:
    """Of the forwards within `with`, which a check makes of one model."""

    def __init__(self, model: nn.Module):
        self.begun = 0  # forwards
        self._order: list[tuple[int, bool]] | None = None  # groups of the first forward, and whether their blocks began
        self._called: list[tuple[int, bool]] = []  # of the latest
        self._groups: list[tuple[Any, Any, nn.Module]] = []  # with their states of FSDP2, and a module of each
        for module in model.modules():
            state = module._get_fsdp_state() if isinstance(module, FSDPModule) else None
            group = None if state is None else state._fsdp_param_group
            if group is not None and all(group is not known for known, _, _ in self._groups):
                self._groups.append((group, state, module))

    def __enter__(self) -> InStep:
        for number, (group, _, _) in enumerate(self._groups):
            group.pre_forward = self._noted(group.pre_forward, (number, True))
            group.post_forward = self._noted(group.post_forward, (number, False))
        return self

    def __exit__(self, *_: Any) -> None:
        for group, _, _ in self._groups:
            del group.pre_forward, group.post_forward

    def _noted(self, of_torch: Callable[..., Any], call: tuple[int, bool]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._called.append(call)
            return of_torch(*args, **kwargs)

        return noted

    def forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.begun += 1
        self._called = []
        output = forward(*args, **kwargs)
        if self._order is None:
            self._order = self._called
        return output

    def make_up(self, error: Exception) -> None:
        """The latest forward has ended with this error. Raises it if it was the first, or went another way before."""
        if self._order is None or self._called != self._order[: len(self._called)]:
            raise error
        nothing = torch.zeros(())
        for number, begins in self._order[len(self._called) :]:
            _, state, module = self._groups[number]
            if begins:
                state._pre_forward(module, (nothing,), {})
            else:
                state._post_forward(module, (), None)


__all__ = ["InStep"]
