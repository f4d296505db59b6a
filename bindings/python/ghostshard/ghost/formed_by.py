"""Whose code forms a Transformers model's loss, and what of a call decides which loss it is.

A form of ours may take the place of Transformers' own code (own_loss.py), which forms the same loss in every batch. Code of others may form another one later: a
term whose weight is 0 at first is not seen in the batch that is compared.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from .batch import loss_kind
from .layout import original_class

_KNOWN = ("transformers", "peft", "accelerate", "trl", "lightning", "pytorch_lightning", "torch", "ghostshard")  # they hand on what Transformers' code gives
_SETTINGS = ("output_router_logits", "router_aux_loss_coef", "num_labels")


def by_transformers(model: Any) -> bool:
    """Whether neither a forward nor a loss function of the user's own, of a subclass or put in its place, forms it."""
    own = inspect.getattr_static(original_class(model), "loss_function", None)
    own = own.fget if isinstance(own, property) else own
    functions = [model.forward, original_class(model).forward, *(each for each in (own, getattr(model, "loss_function", None)) if each is not None)]
    return all(_root(each) in _KNOWN for function in functions for each in _wrapped(function))


def asks_for_another(kwargs: dict) -> bool:
    """Whether a call hands on settings to Transformers' loss functions, of which our forms know none."""
    return any(kwargs.get(name) is not None for name in ("ignore_index", "shift_labels"))


def refuse_another_forward(model: Any) -> None:
    """ValueError if a function of the user's stands in the place of its forward: it computes with the model, so no example's rows can be put into that."""
    own = set(_wrapped(original_class(model).forward))
    if any(each not in own and _root(each) not in _KNOWN for each in _wrapped(model.forward)):
        raise ValueError(
            f"{original_class(model).__name__} has a forward of its own in the place of its class's (model.forward = ...), so the loss that it forms is not told apart "
            "example by example: make it the forward of a subclass"
        )


def deciding(model: Any, kwargs: dict) -> tuple:
    """What decides in a call which loss the model's own code forms."""
    named = tuple(sorted((name, value if isinstance(value, bool | str) else None) for name, value in kwargs.items()))
    settings = tuple(repr(getattr(holder, name, None)) for holder in (model, getattr(model, "config", None)) for name in _SETTINGS)
    return by_transformers(model), loss_kind(model), settings, named


def _wrapped(function: Any) -> Iterator[Any]:
    """The function, and those that it wraps, by any of the usual ways."""
    while function is not None:
        function = getattr(function, "__func__", function)
        yield function
        function = getattr(function, "__wrapped__", None)


def _root(function: Any) -> str:
    """The package whose code it is. (functools.wraps copies the name of another's module.)"""
    name = getattr(function, "__globals__", {}).get("__name__") or type(function).__module__
    return name.partition(".")[0]


__all__ = ["asks_for_another", "by_transformers", "deciding", "refuse_another_forward"]
