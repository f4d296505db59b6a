"""AdamW (arXiv:1711.05101) that may know the variance of its gradients' noise, with moments in float32 or in 8 bits.

The kernel is the C++ programs' (kernels/quantised_moments.h, which derives codes and errors): 256 consecutive elements share a
scale, and of the second moment what the noise explains is not stored. For a noise of variance F_t in step t

    d_t = beta2·d_(t−1) + (1−beta2)·(g²−F_t),   v_t/(1−beta2^t) = d_t/(1−beta2^t) + K_t,

where K_t is the average of F_1 … F_t with the weights that v_t gives to squares. It is a number beside the moments, so clip norms
and noise multipliers that change are followed exactly.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import _native
from .base import RowOptimizer, State
from .options import check, check_flag, check_given, check_rate, is_above_0, is_pair, is_within
from .rows import first_element_of, flat_rows, placed_like, rows_of

# Of torch.optim.AdamW's names. "exp_avg_sq" is d_t, which is the whole second moment where no variance is known; K_t is beside it.
_MOMENTS = ("exp_avg", "exp_avg_sq")
KNOWN = "noise_variance"


class AdamW(RowOptimizer):
    """torch.optim.AdamW's rule and arguments, and its steps unless there is a floor.

    Args:
        second_moment_floor: subtracts the known variance of the noise from the corrected second moment, but leaves at least this
            much of it, relative to the variance; > 0. Steps are those that AdamW would take without noise where the signal is larger
            than the noise, and up to 1/sqrt(floor) times as long where it is not (arXiv:2304.11208). Results are mixed: 2304.11208
            reports gains, arXiv:2511.07843 none once the learning rate is tuned.
        stochastic_rounding: rounds bfloat16 parameters to one of their neighbours, at random and without bias, where steps smaller than
            half their distance would be lost (kernels/rounded_weights.h). The bits follow from the parameter's place among the optimizer's,
            element and step, so any number of ranks rounds alike, and so does a run that is gone on with. Sharded by rows.

    Parameters may be plain, or DTensors of FSDP2 in any layout; float32, or of fewer bits (computed in float32, rounded at the end, to
    the nearest unless stochastic_rounding says otherwise).
    Options of torch.optim.AdamW that are not named here may be False or None, which leaves the rule as it is.
    TypeError or ValueError for other options, options out of their range and parameters of more bits, at a step for a device that this
    build has no kernels for.
    """

    _own_options: tuple[str, ...] = ()  # of a subclass, which hands them on by name

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        second_moment_floor: float | None = None,
        stochastic_rounding: bool = False,
        **options: Any,
    ):
        given = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "second_moment_floor": second_moment_floor,
                 "stochastic_rounding": stochastic_rounding}  # fmt: skip
        given |= {name: options.pop(name) for name in self._own_options if name in options}
        check_given(type(self).__name__, options, given)
        super().__init__(params, given)

    def _check(self, group: dict[str, Any]) -> None:
        check_rate(group)
        betas = group["betas"]
        check(is_pair(betas) and all(is_within(beta, 0, 1) for beta in betas), "betas must be two numbers within [0, 1)", betas)
        check(is_above_0(group["eps"]), "eps must be finite and > 0", group["eps"])
        check(is_within(group["weight_decay"], 0), "weight_decay must be finite and >= 0", group["weight_decay"])
        floor = group["second_moment_floor"]
        check(floor is None or is_above_0(floor), "second_moment_floor must be finite and > 0, or None", floor)
        check_flag(group, "stochastic_rounding")

    def _counting_on_independence(self, group: dict[str, Any]) -> list[str]:
        return [] if group["second_moment_floor"] is None else ["second_moment_floor"]

    def _is_coded(self, parameter: torch.Tensor, group: dict[str, Any]) -> bool:
        """Its moments are kept in 8 bits."""
        return False

    def _variance(self, group: dict[str, Any]) -> float:
        """F_t, if the rule makes use of it."""
        return self._error_variance if group["second_moment_floor"] is not None else 0.0

    def _update(self) -> None:
        for number, (parameter, group) in enumerate(self._with_groups()):
            if parameter.grad is not None:
                self._move(parameter, group, number)

    def _move(self, parameter: torch.Tensor, group: dict[str, Any], number: int) -> None:
        assert parameter.grad is not None
        own = rows_of(parameter)
        state = self.state[parameter]
        if not state:
            state.update(self._packed(own.new_zeros(own.numel(), dtype=torch.float32), None, self._is_coded(parameter, group)))
        variance = self._variance(group)
        known = self._count(state, group["betas"][1], variance)
        in_place = own.dtype == torch.float32 and own.is_contiguous()
        weights = own.view(-1) if in_place else own.reshape(-1).float()
        scales = (state["exp_avg_scale"], state["exp_avg_sq_scale"]) if "exp_avg_scale" in state else None
        kernels_for(own.device).adamw_step(
            weights=weights, gradient=flat_rows(parameter, parameter.grad), first=state["exp_avg"], second=state["exp_avg_sq"],
            scales=scales, step=int(state["step"].item()), learning_rate=float(group["lr"]), betas=tuple(group["betas"]),
            epsilon=group["eps"], weight_decay=group["weight_decay"], error_variance=variance, known_variance=known,
            floor=group["second_moment_floor"],
        )  # fmt: skip
        if in_place:
            torch.autograd.graph.increment_version(own)
            return
        self._store(parameter, weights, group, number)

    def _store(self, parameter: torch.Tensor, weights: torch.Tensor, group: dict[str, Any], number: int) -> None:
        """This rank's rows, flat float32 and contiguous, after the step that the parameter's state counts. number: its place among the
        optimizer's."""
        own = rows_of(parameter)
        if group["stochastic_rounding"] and own.dtype == torch.bfloat16:
            values, weights = weights, torch.empty_like(weights, dtype=torch.bfloat16)
            step, first = int(self.state[parameter]["step"].item()), first_element_of(parameter)
            kernels_for(own.device).round_weights(values=values, parameter=number, step=step, first_element=first, stored=weights)
        own.copy_(weights.view(own.shape))

    def _count(self, state: State, beta2: float, variance: float) -> float:
        """Counts the step; returns K_t. A variance that becomes known later than the first step gives the second moment a sign."""
        state["step"] += 1
        before = state[KNOWN].item()
        weight = (1 - beta2) / (1 - beta2 ** state["step"].item())
        known = before + weight * (variance - before)
        if before == 0 < known and "exp_avg_scale" in state:
            second = self._values(state, "exp_avg_sq")
            state.update(_coded("exp_avg_sq", second, is_signed=True))
        state[KNOWN].fill_(known)
        return known

    def _values(self, state: State, moment: str) -> torch.Tensor:
        """Flat float32, where the rows are."""
        kept = state[moment]
        if f"{moment}_scale" not in state:
            return kept
        is_signed = moment == "exp_avg" or state[KNOWN].item() > 0
        values: torch.Tensor = _native.load("engine").decode_moments(kept.cpu(), state[f"{moment}_scale"].cpu(), is_signed)
        return values.to(kept.device)

    def _packed(self, first: torch.Tensor, second: torch.Tensor | None, coded: bool, step: float = 0, known: float = 0) -> State:
        second = torch.zeros_like(first) if second is None else second
        state = {"step": torch.tensor(float(step)), KNOWN: torch.tensor(float(known), dtype=torch.float64)}
        if not coded:
            return state | {"exp_avg": first, "exp_avg_sq": second}
        return state | _coded("exp_avg", first, is_signed=True) | _coded("exp_avg_sq", second, is_signed=known > 0)

    def _shown(self, parameter: torch.Tensor, group: dict[str, Any], state: State) -> State:
        moments = {name: placed_like(parameter, self._values(state, name)) for name in _MOMENTS}
        return {"step": state["step"], KNOWN: state[KNOWN], **moments}

    def _taken(self, parameter: torch.Tensor, group: dict[str, Any], values: State) -> State:
        first, second = (flat_rows(parameter, values[name]).clone() for name in _MOMENTS)
        known = float(values.get(KNOWN, torch.tensor(0.0)))
        return self._packed(first, second, self._is_coded(parameter, group), step=float(values["step"]), known=known)


class AdamW8bit(AdamW):
    """AdamW whose moments take 2·(1 + 4/256) bytes an element instead of 8 (the idea: arXiv:2110.02861).

    Args:
        least_coded: parameters of fewer elements keep moments in float32.

    Where a variance is known, the corrected second moment stays above 1/64 of it, or above the given floor.

    256 elements share a scale, counted from the first row that a rank owns. Their bits do not depend on the number of ranks if each
    rank's rows begin at a multiple of 256 elements: widths that are multiples of 256, or FSDP2Wrapper(granule=). Otherwise they
    differ by the codes' rounding.
    """

    _own_options = ("least_coded",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        second_moment_floor: float | None = None,
        stochastic_rounding: bool = False,
        least_coded: int = 4096,
    ):
        super().__init__(
            params, lr, betas, eps, weight_decay, second_moment_floor=second_moment_floor, stochastic_rounding=stochastic_rounding,
            least_coded=least_coded,
        )  # fmt: skip

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        least = group["least_coded"]
        check(is_within(least, 0) or least == math.inf, "least_coded must be a number >= 0", least)

    def _variance(self, group: dict[str, Any]) -> float:
        return self._error_variance

    def _is_coded(self, parameter: torch.Tensor, group: dict[str, Any]) -> bool:
        return bool(parameter.numel() >= group["least_coded"])


def kernels_for(device: torch.device) -> Any:
    """The compiled engine. ValueError if it has no kernels for the device."""
    engine = _native.load("engine")
    if not engine.has_kernels(device):
        raise ValueError(
            f"parameters are on {device}, but this build of ghostshard has no kernels for {device.type}: build it with them "
            "(docs/cuda.md), or take an optimizer of torch.optim"
        )
    return engine


def _coded(moment: str, values: torch.Tensor, *, is_signed: bool) -> State:
    codes, scales = _native.load("engine").encode_moments(values.cpu(), is_signed)
    return {moment: codes.to(values.device), f"{moment}_scale": scales.to(values.device)}
