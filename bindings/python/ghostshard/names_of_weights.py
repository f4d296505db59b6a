"""Names in a checkpoint's file: those of a wrapped model begin with "_module.", those of one that stayed the user's own (wrap_model=False) do not."""

from __future__ import annotations

from typing import Any

from opacus.grad_sample import AbstractGradSampleModule
from torch import nn

__all__ = ["NamedEitherWay", "holder_of"]

_PREFIX = "_module."


def holder_of(module: Any) -> Any:
    """What has the weights: a handle beside a model stands for it."""
    return module if isinstance(module, nn.Module) else getattr(module, "_module", module)


class NamedEitherWay:
    """In the place of a module that Opacus' load_checkpoint() loads into: takes the weights of a wrapped model and of a plain one."""

    def __init__(self, module: Any):
        self._holder = holder_of(module)

    def load_state_dict(self, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self._holder.load_state_dict(self._named(state), *args, **kwargs)

    def _named(self, state: dict[str, Any]) -> dict[str, Any]:
        """As they are if one of them is the module's: a model of one's own may have a part of that name."""
        wraps = isinstance(self._holder, AbstractGradSampleModule)
        if self._holder.state_dict().keys() & state.keys() or not (wraps or all(name.startswith(_PREFIX) for name in state)):
            return state
        named = type(state)((_PREFIX + name if wraps else name.removeprefix(_PREFIX), value) for name, value in state.items())
        if (versions := getattr(state, "_metadata", None)) is not None:
            name_of = (lambda name: f"{_PREFIX}{name}".rstrip(".")) if wraps else (lambda name: f"{name}.".removeprefix(_PREFIX).rstrip("."))
            named._metadata = type(versions)((name_of(name), value) for name, value in versions.items())  # type: ignore[attr-defined]
        return named
