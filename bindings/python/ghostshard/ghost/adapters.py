"""A model whose adapters are switched off (PEFT's disable_adapter()) is the reference that it was tuned from."""

from __future__ import annotations

import torch
from torch import nn


def adapters_are_off(model: nn.Module) -> bool:
    """In a forward without gradients, so that nothing of it trains."""
    return not torch.is_grad_enabled() and any(getattr(module, "disable_adapters", False) is True for module in model.modules())


__all__ = ["adapters_are_off"]
