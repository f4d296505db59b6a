"""A weight that a layer with a rule of its class shares with a layer that has none (the head of an XLNet, whose embedding belongs to a module with parameters of its
own beside it): the engine adds up gradients of one kind alone, so the former is computed like the latter."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..layout import own_parameters
from .any_layer import per_example
from .skeleton import instantiable


def of_one_kind(ruled: list[tuple[str, nn.Module, Any]]) -> list[tuple[str, nn.Module, Any]]:
    """(name, module, rule) of every layer, per_example in the place of rules that cannot meet it."""
    instantiated = {id(parameter) for _, module, rule in ruled if rule is per_example for parameter in module.parameters() if parameter.requires_grad}

    def meets(module: nn.Module) -> bool:
        return any(id(parameter) in instantiated for _, parameter in own_parameters(module)) and instantiable(module)

    return [(name, module, per_example if rule is not per_example and next(module.children(), None) is None and meets(module) else rule) for name, module, rule in ruled]


__all__ = ["of_one_kind"]
