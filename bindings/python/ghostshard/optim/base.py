"""What the optimizers of this package have in common: states of a rank's own rows, and the known variance of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer

State = dict[str, torch.Tensor]


class RowOptimizer(Optimizer):
    """Keeps flat tensors for the rows that this rank owns, in whatever form. `state_dict()` has them as torch's optimizers do: of the
    parameter's shape, float32, sharded like it. So torch.distributed.checkpoint saves them on any number of ranks and loads them on
    any other."""

    _error_variance = 0.0  # of the gradients of the step to come

    def set_error_variance(self, variance: float) -> None:
        """Each element of the next step's gradient is off by an independent error of this variance, a public number; 0: none that is
        known. A PrivacyEngine's optimizer says it before every step: (noise multiplier · clip norm / expected batch)². ValueError
        unless finite and >= 0."""
        if not (variance >= 0 and math.isfinite(variance)):
            raise ValueError(f"the error variance must be finite and >= 0, got {variance}")
        self._error_variance = float(variance)

    def state_bytes(self) -> int:
        """What the states take on this rank."""
        return sum(value.nbytes for state in self.state.values() for value in state.values())

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Parameters without a gradient stay. Rules that need whole matrices communicate: every rank calls it for the same step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update()
        return loss

    def state_dict(self) -> dict[str, Any]:
        packed = super().state_dict()
        own = dict(enumerate(self._with_groups()))
        packed["state"] = {number: self._shown(*own[number], state) for number, state in packed["state"].items()}
        return packed

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of this optimizer; AdamW and AdamW8bit take those of each other and of torch.optim.AdamW. ValueError for a state that lacks a
        part or has another shape, and for options that this optimizer has not; it then is as before."""
        before = {"state": self.state, "param_groups": self.param_groups}
        try:
            super().load_state_dict({**state_dict, "state": {}})  # states below, unrounded: torch casts to the parameters' dtype
            for group in self.param_groups:
                self._check_loaded(group)
            saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
            own = dict(zip(saved, self._with_groups(), strict=True))
            for number, values in state_dict["state"].items():
                parameter, group = own[number]
                self.state[parameter] = self._taken_by_name(number, parameter, group, values)
        except BaseException:
            self.__setstate__(before)
            raise

    def _check_loaded(self, group: dict[str, Any]) -> None:
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        for name in ("amsgrad", "maximize"):  # of torch.optim.AdamW
            check(not group.get(name), f"{name} is not an option of {type(self).__name__}", group.get(name))

    def _taken_by_name(self, number: Any, parameter: torch.Tensor, group: dict[str, Any], values: State) -> State:
        try:
            return self._taken(parameter, group, values)
        except KeyError as error:
            raise ValueError(
                f"the state of parameter {number} {tuple(parameter.shape)} has no {error.args[0]!r}: it is not one of "
                f"{type(self).__name__}, it has {sorted(values)}"
            ) from error

    def _with_groups(self) -> list[tuple[torch.Tensor, dict[str, Any]]]:
        return [(p, group) for group in self.param_groups for p in group["params"]]

    def _update(self) -> None:
        raise NotImplementedError

    def _shown(self, parameter: torch.Tensor, group: dict[str, Any], state: State) -> State:
        """A parameter's state as state_dict() has it."""
        raise NotImplementedError

    def _taken(self, parameter: torch.Tensor, group: dict[str, Any], values: State) -> State:
        """The reverse. KeyError for a value that is missing."""
        raise NotImplementedError


def check(rule: bool, text: str, found: object) -> None:
    if not rule:
        raise ValueError(f"{text}, got {found}")
