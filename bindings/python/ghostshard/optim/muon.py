"""Muon (Jordan et al. 2024; arXiv:2502.16982) over FSDP2's shards. fsdp/optimizer.h has the rule in C++:

    v = momentum·v + (1 − momentum)·g;  u = momentum·v + (1 − momentum)·g (nesterov) or v
    w = (1 − lr·weight_decay)·w − lr·0.2·sqrt(max(p, d))·orthogonalised(u)

A step has the root mean square of AdamW's steps, 0.2 (arXiv:2502.16982, section 2.2), so both take the same learning rate.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .above_noise import orthogonalised_above
from .base import State
from .matrices import MatrixOptimizer, Pieces, is_matrix
from .options import check, check_flag, is_integer, is_pair, is_within
from .orthogonalised import orthogonalised
from .rows import flat_rows, placed_like, rows_of

_ROOT_MEAN_SQUARE = 0.2
_MOMENTUM = "momentum_buffer"  # as in torch.optim.Muon
_VARIANCE = "momentum_variance"  # of the noise in each of its elements
_STEP = "step"  # if weights are rounded by it
_NOISE = ("keep", "drop", "correct")


class Muon(MatrixOptimizer):
    """Matrices (parameters with two extents) move along their momentum with all singular values made about equal; other parameters,
    and groups with "matrices": False, go by AdamW. matrix_groups() makes the groups of a model.

    Args:
        pieces: (extent, count): equal pieces along an extent of 0 or 1 are matrices of their own, such as fused queries, keys and values
            ((0, 3) in an nn.Linear, (1, 3) in GPT-2's Conv1D) or each head of them. None: the matrix is one.
        noise: "drop": of a matrix only the directions that stand out of the noise, of which the private optimizer says the variance
            before every step; "keep" makes those of the noise as long as the others. "correct": as drop, and longer by what noise takes
            off on average (fsdp/optimizer.h). Both take singular values, which are slower.
        betas, eps, second_moment_floor: of AdamW. lr, weight_decay and stochastic_rounding are of both; a group may have its own.

    The momentum is sharded as the parameter. Once a step each matrix goes to one rank, is orthogonalised there and comes back
    (exchange.py), so the weights are those of whole matrices to the bit, for every number of ranks. step() is a collective.
    ValueError for options out of their range, pieces that leave a remainder, and matrices that are cut otherwise than by rows; of "drop"
    and "correct" also for gradients that are not finite, on every rank.
    """

    _own_options = ("momentum", "nesterov", "matrices", "pieces", "noise")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        second_moment_floor: float | None = None,
        stochastic_rounding: bool = False,
        matrices: bool = True,
        pieces: Pieces = None,
        noise: str = "keep",
    ):
        super().__init__(
            params, lr, betas, eps, weight_decay, second_moment_floor=second_moment_floor, stochastic_rounding=stochastic_rounding,
            momentum=momentum, nesterov=nesterov, matrices=matrices, pieces=pieces, noise=noise,
        )  # fmt: skip

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        check(is_within(group["momentum"], 0, 1), "momentum must be a number within [0, 1)", group["momentum"])
        check(group["noise"] in _NOISE, "noise must be keep, drop or correct", group["noise"])
        check_flag(group, "nesterov")
        pieces = group["pieces"]
        is_cut = is_pair(pieces) and is_integer(pieces[0], 0) and is_integer(pieces[1], 1)
        check(pieces is None or is_cut, "pieces must be an extent of 0 or 1 and a count of at least 1, or None", pieces)

    def _check_parameters(self, group: dict[str, Any]) -> None:
        super()._check_parameters(group)
        extent, count = group["pieces"] or (0, 1)
        for parameter in group["params"]:
            if is_matrix(parameter, group):
                fits = extent in (0, 1) and parameter.shape[extent] % count == 0
                check(fits, f"pieces must divide one of the two extents of {tuple(parameter.shape)}", group["pieces"])

    def _counting_on_independence(self, group: dict[str, Any]) -> list[str]:
        return [*super()._counting_on_independence(group), *(["noise"] if group["noise"] != "keep" else [])]

    def _largest_gradient(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        """A singular value decomposition takes finite matrices alone; the other rule makes of NaN one."""
        return math.inf if group["noise"] == "keep" else torch.finfo(torch.float32).max

    def _give(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Updates the momentum. Every operation is rounded by itself, so that no bit depends on where a rank's rows begin."""
        assert parameter.grad is not None
        own, state, share = rows_of(parameter), self.state[parameter], group["momentum"]
        fresh = flat_rows(parameter, parameter.grad).mul(1 - share)
        if not state:
            state[_MOMENTUM] = torch.zeros_like(fresh)
        if group["stochastic_rounding"]:
            state.setdefault(_STEP, torch.tensor(0.0)).add_(1)
        if group["noise"] != "keep":
            variance = state.setdefault(_VARIANCE, torch.tensor(0.0, dtype=torch.float64))
            variance.mul_(share**2).add_((1 - share) ** 2 * self._error_variance)
        momentum = state[_MOMENTUM].mul_(share).add_(fresh)
        direction: torch.Tensor = momentum.mul(share).add_(fresh) if group["nesterov"] else momentum
        return direction.view(own.shape)

    def _step_of(self, parameter: torch.Tensor, matrix: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        extent, count = group["pieces"] or (0, 1)
        pieces = torch.stack(matrix.chunk(count, extent)) if count > 1 else matrix.unsqueeze(0)
        scale = _ROOT_MEAN_SQUARE * math.sqrt(max(pieces.shape[1:]))
        variance = 0.0 if group["noise"] == "keep" else self._variance_of_step(parameter, group)
        if variance > 0:
            moved = orthogonalised_above(pieces, variance, corrected=group["noise"] == "correct").mul_(scale)
        else:
            moved = orthogonalised(pieces, scale)
        return torch.cat(list(moved), extent) if count > 1 else moved[0]

    def _variance_of_step(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        """Of the noise in what was given: u = momentum²·v_before + (1 − momentum)·(1 + momentum)·g if it is Nesterov's, else v."""
        share, now = group["momentum"], self.state[parameter][_VARIANCE].item()
        if not group["nesterov"]:
            return float(now)
        fresh = (1 - share) ** 2 * self._error_variance
        return float(share**2 * (now - fresh) + (1 + share) ** 2 * fresh)

    def _shown(self, parameter: torch.Tensor, group: dict[str, Any], state: State) -> State:
        if _MOMENTUM not in state:
            return super()._shown(parameter, group, state)
        return {**state, _MOMENTUM: placed_like(parameter, state[_MOMENTUM])}

    def _taken(self, parameter: torch.Tensor, group: dict[str, Any], values: State) -> State:
        if not is_matrix(parameter, group):
            return super()._taken(parameter, group, values)
        known = {name: values[name].clone() for name in (_VARIANCE, _STEP) if name in values}
        return {_MOMENTUM: flat_rows(parameter, values[_MOMENTUM]).clone(), **known}
