"""Attributes that a loop sets on what make_private() returned: a wrapper does not compute with them, so they would change nothing."""

from __future__ import annotations

from typing import Any

from torch import nn


def is_of(wrapper: Any, wrapped: Any, name: str) -> bool:
    """Whether an attribute is one that the wrapped object computes with, and none of the wrapper's own."""
    own = name.startswith("_") or name in vars(wrapper) or hasattr(type(wrapper), name)
    return not own and wrapped is not None and hasattr(wrapped, name)


class SettingsHandedOn(nn.Module):
    """A wrapper of a criterion, by the same name in most scripts: what is read or set on it (`criterion.beta = 0.1`) is the criterion's."""

    criterion: Any

    def _wrapped(self) -> Any:
        return vars(self).get("criterion", vars(self).get("_modules", {}).get("criterion"))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if not is_of(self, self._wrapped(), name):
                raise
            return getattr(self._wrapped(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if is_of(self, self._wrapped(), name) and name not in self._parameters and name not in self._modules:
            setattr(self._wrapped(), name, value)
        else:
            super().__setattr__(name, value)


__all__ = ["SettingsHandedOn", "is_of"]
