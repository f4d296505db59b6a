"""What the optimizers of this package have in common: states of a rank's own rows, and the known variance of the noise."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer

from .options import OF_TORCH, check, check_foreign, check_origin, check_rate, is_within

State = dict[str, torch.Tensor]

_HOOKS = tuple(f"_optimizer_{of}_{when}_hooks" for of in ("state_dict", "load_state_dict") for when in ("pre", "post"))


class RowOptimizer(Optimizer):
    """Keeps flat tensors for the rows that this rank owns, in whatever form. `state_dict()` has them as torch's optimizers do: of the
    parameter's shape, float32, sharded like it. So torch.distributed.checkpoint saves them on any number of ranks and loads them on
    any other."""

    _error_variance = 0.0  # of the gradients of the step to come

    def set_error_variance(self, variance: float, *, correlated: bool = False) -> None:
        """Each element of the next step's gradient is off by an independent error of this variance, a public number; 0: none that is
        known. A PrivacyEngine's optimizer says it before every step: (noise multiplier · clip norm / expected batch)². ValueError
        unless finite and >= 0.

        correlated: an element's errors in different steps hang together, as with make_private(noise_bands=, noise_chain=). See
        refuse_correlated_errors()."""
        if not (variance >= 0 and math.isfinite(variance)):
            raise ValueError(f"the error variance must be finite and >= 0, got {variance}")
        if correlated:
            self.refuse_correlated_errors()
        self._error_variance = float(variance)

    def refuse_correlated_errors(self) -> None:
        """ValueError if an option takes an average of gradients for as noisy as one of independent errors is: errors that take each other
        back leave less of themselves in it, and the option would drop what is gradient."""
        for group in self.param_groups:
            for name in self._counting_on_independence(group):
                raise ValueError(
                    f"{name} must be left out with correlated noise (noise_bands, noise_chain), got {group[name]!r}: it counts on errors "
                    "that are independent from step to step"
                )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """TypeError or ValueError for options and parameters that the rule does not take; the groups then are as before."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_foreign(type(self).__name__, group)
            self._check(group)
            self._check_parameters(group)
        except BaseException:
            self.param_groups.pop()
            raise

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
        for group in self.param_groups:  # schedules and model.double() change them after construction
            check_rate(group)
            self._check_dtypes(group["params"])
        self._update()
        return loss

    def state_dict(self) -> dict[str, Any]:
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        packed = self._packed_state()
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, packed)
            packed = packed if changed is None else changed
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of this optimizer; AdamW and AdamW8bit take those of each other and of torch.optim.AdamW. ValueError for a state that lacks a
        part, has another shape or comes of another rule, and for options that this optimizer has not; it then is as before."""
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        self._load(state_dict)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _packed_state(self) -> dict[str, Any]:
        with self._without_hooks():
            packed = super().state_dict()
        own = dict(enumerate(self._with_groups()))
        packed["state"] = {number: self._shown(*own[number], state) for number, state in packed["state"].items()}
        return packed

    @torch.no_grad()
    def _load(self, state_dict: dict[str, Any]) -> None:
        before = {"state": self.state, "param_groups": self.param_groups}
        try:
            with self._without_hooks():
                super().load_state_dict({**state_dict, "state": {}})  # states below, unrounded: torch casts to the parameters' dtype
            for group in self.param_groups:
                self._check_loaded(group)
            saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
            own = dict(zip(saved, self._with_groups(), strict=True))
            for number, values in state_dict["state"].items():
                check(number in own, "states must be of the parameters in the groups", number)
                parameter, group = own[number]
                self.state[parameter] = self._taken_by_name(number, parameter, group, values)
        except BaseException:
            self.__setstate__(before)
            raise

    @contextmanager
    def _without_hooks(self) -> Iterator[None]:
        """Hooks of states see what state_dict() gives. torch's own methods, within, would show them the tensors behind it."""
        hooks = {name: getattr(self, name) for name in _HOOKS}
        self.__dict__.update({name: OrderedDict() for name in _HOOKS})
        try:
            yield
        finally:
            self.__dict__.update(hooks)

    def _check_loaded(self, group: dict[str, Any]) -> None:
        kind = type(self).__name__
        check_origin(kind, group)
        check_foreign(kind, group, is_loaded=True)
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        for name in OF_TORCH:
            group.pop(name, None)  # they say nothing here, and would be checked again with what is changed in the group
        self._check(group)
        self._check_parameters(group)

    def _taken_by_name(self, number: Any, parameter: torch.Tensor, group: dict[str, Any], values: State) -> State:
        step = values.get("step", 0)
        check(is_within(step, 0), f"the step of {self._title(parameter)} must be finite and >= 0", step)
        try:
            return self._taken(parameter, group, values)
        except KeyError as error:
            raise ValueError(
                f"the state of parameter {number} {tuple(parameter.shape)} has no {error.args[0]!r}: it is not one of "
                f"{type(self).__name__}, it has {sorted(values)}"
            ) from error

    def _with_groups(self) -> list[tuple[torch.Tensor, dict[str, Any]]]:
        return [(p, group) for group in self.param_groups for p in group["params"]]

    def _title(self, parameter: torch.Tensor) -> str:
        """For sentences."""
        every = [(each, name) for group in self.param_groups for each, name in zip(group["params"], _names_in(group), strict=True)]
        number = next(number for number, (each, _) in enumerate(every) if each is parameter)
        return f"parameter {number if every[number][1] is None else every[number][1]} {tuple(parameter.shape)}"

    def _check_parameters(self, group: dict[str, Any]) -> None:
        """Those of a group that the optimizer has."""
        self._check_dtypes(group["params"])

    def _check_dtypes(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if not parameter.dtype.is_floating_point or parameter.dtype.itemsize > 4:
                raise ValueError(
                    f"{type(self).__name__} computes in float32: parameters must be float32 or of fewer bits, got {parameter.dtype} for "
                    f"{self._title(parameter)}. Convert the model (model.float()), or take an optimizer of torch.optim"
                )

    def _check(self, group: dict[str, Any]) -> None:
        """ValueError for options out of their range."""
        raise NotImplementedError

    def _counting_on_independence(self, group: dict[str, Any]) -> list[str]:
        """Options in use that refuse_correlated_errors() names."""
        raise NotImplementedError

    def _update(self) -> None:
        raise NotImplementedError

    def _shown(self, parameter: torch.Tensor, group: dict[str, Any], state: State) -> State:
        """A parameter's state as state_dict() has it."""
        raise NotImplementedError

    def _taken(self, parameter: torch.Tensor, group: dict[str, Any], values: State) -> State:
        """The reverse. KeyError for a value that is missing."""
        raise NotImplementedError


def _names_in(group: dict[str, Any]) -> list[str | None]:
    """Of its parameters, if the optimizer was given names."""
    names: list[str | None] = group.get("param_names") or [None] * len(group["params"])
    return names
