"""Shampoo (arXiv:1802.09568; as arXiv:2309.06497 runs it, in blocks and grafted) and SOAP (arXiv:2409.11321). They know how noisy
their gradients are. The C++ engine has the same rules.

A matrix is cut into tiles of at most side x side elements. Each tile G [r, c] has two factors and a momentum, averages over the steps
that are corrected for their start:

    L = EMA(G·Gᵀ) [r, r],   R = EMA(Gᵀ·G) [c, c],   m = EMA(G)

    Shampoo  step = L^(-1/4)·m·R^(-1/4), scaled to the norm of AdamW's step for the tile (grafting)
    SOAP     step = Q·(Adam of Qᵀ·G·P)·Pᵀ, where Q and P are the eigenvectors of L and R

Noise of variance F in every element puts c·F·I on L and r·F·I on R. Shampoo takes it out before the root. Averages over n steps that
count leave noise alone a spectrum around that mean, between (1 ± sqrt(r/(c·n)))² of it (Marchenko and Pastur 1967): what is below the
upper edge says nothing of the gradients, so eigenvalues are raised to its distance from the mean, or to noise_floor of the mean if
that is more. A multiple of the identity changes no eigenvector, but slows orthogonal iteration down: SOAP takes the lower edge out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .adamw import KNOWN
from .base import State
from .exchange import owners_of
from .matrices import MatrixOptimizer, is_matrix
from .options import check, is_integer, is_number, is_within
from .tiles import Tiles, tiled_numbers, tiles_of

_ONE_NAME = "tiles"  # of either rule's in states written before each had its own
_LEAST = 1e-6  # of a matrix's largest eigenvalue: float32 knows nothing of smaller ones
_NOTHING = 1e-30  # of a matrix that is zero for all purposes


@dataclass
class Step:
    """number: of this step, from 1. known: the variance of the noise, averaged as the factors average."""

    number: int
    known: float
    group: dict[str, Any]

    def seen(self, beta: float) -> float:
        """How far an average with this decay has come."""
        return float(1 - beta**self.number)

    def noise(self, side: int, other: int) -> tuple[float, float, float]:
        """Mean, lower and upper edge of the spectrum of G·Gᵀ, averaged over the steps, of noise alone in G [side, other]."""
        beta = self.group["factor_beta"]
        left = beta**self.number
        steps = (1 - left) * (1 + beta) / ((1 - beta) * (1 + left))  # of equal weight
        mean, spread = self.known * other, math.sqrt(side / (other * steps))
        return mean, mean * (1 - spread) ** 2 if spread < 1 else 0.0, mean * (1 + spread) ** 2

    def without(self, factor: torch.Tensor, known: float) -> torch.Tensor:
        """The factor, corrected for its start, minus known·I."""
        rest = factor / self.seen(self.group["factor_beta"])
        rest.diagonal(0, -2, -1).sub_(known)
        return rest


class TiledOptimizer(MatrixOptimizer):
    _own_options: tuple[str, ...] = ("side", "refresh_every", "factor_beta", "matrices")
    _state_name: str  # of the tiles: the two rules keep as many numbers of a matrix, which mean different things
    _places: dict[int, tuple[Any, int, int]] | None = None  # of the matrices by id, while states are shown or taken

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        check(is_integer(group["side"], 1), "the side of a tile must be an integer of at least 1", group["side"])
        check(is_integer(group["refresh_every"], 1), "refresh_every must be an integer of at least 1", group["refresh_every"])
        check(is_within(group["factor_beta"], 0, 1), "factor_beta must be a number within [0, 1)", group["factor_beta"])

    def _largest_gradient(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        """Factors and second moments are at most the sum of a tile's squares, here 2^126: float32 ends at 2^128."""
        rows, columns = (min(extent, group["side"]) for extent in parameter.shape)
        return float(2.0**63 / math.sqrt(max(rows * columns, 1)))

    def _give(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state.update(_counters())
        self._count(state, group["factor_beta"], self._error_variance)
        return super()._give(parameter, group)

    def _step_of(self, parameter: torch.Tensor, matrix: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        state = self.state[parameter]
        if self._state_name not in state:
            state[self._state_name] = matrix.new_zeros(tiled_numbers(matrix.shape, group["side"]))
        step = Step(int(state["step"].item()), state[KNOWN].item(), group)
        state[self._state_name] = state[self._state_name].to(matrix.device)
        result = torch.empty_like(matrix)
        for tiles in tiles_of(state[self._state_name], matrix.shape, group["side"]):
            count, rows, columns = tiles.first.shape
            here = (slice(tiles.first_row, tiles.first_row + rows), slice(tiles.first_column, tiles.first_column + count * columns))
            gradient = matrix[here].reshape(rows, count, columns).transpose(0, 1).contiguous()
            _move_towards(tiles.first, gradient, group["betas"][0])
            _move_towards(tiles.left, gradient @ gradient.mT, group["factor_beta"])
            _move_towards(tiles.right, gradient.mT @ gradient, group["factor_beta"])
            result[here] = self._step_of_tiles(tiles, gradient, step).transpose(0, 1).reshape(rows, count * columns)
        return result

    def _step_of_tiles(self, tiles: Tiles, gradient: torch.Tensor, step: Step) -> torch.Tensor:
        """From [n, r, c]. First moment and factors are up to date."""
        raise NotImplementedError

    def _packed_state(self) -> dict[str, Any]:
        self._places = None
        return super()._packed_state()

    def _load(self, state_dict: dict[str, Any]) -> None:
        self._places = None  # until the groups are loaded, which say what is a matrix
        if all(("noise_floor" in group) == ("noise_floor" in self.defaults) for group in state_dict["param_groups"]):
            states = state_dict["state"].items()  # of this rule, since only Shampoo's groups have a noise_floor
            named = {key: {self._state_name if name == _ONE_NAME else name: value for name, value in state.items()} for key, state in states}
            state_dict = {**state_dict, "state": named}
        super()._load(state_dict)

    def _shown(self, parameter: torch.Tensor, group: dict[str, Any], state: State) -> State:
        if not is_matrix(parameter, group):
            return super()._shown(parameter, group, state)
        numbers = tiled_numbers(parameter.shape, group["side"])
        tiles = state.get(self._state_name)
        place = self._place(parameter)
        if place is not None:
            tiles = _dealt_out(tiles, numbers, parameter, *place)
        assert tiles is not None
        return {"step": state["step"], KNOWN: state[KNOWN], self._state_name: tiles}

    def _taken(self, parameter: torch.Tensor, group: dict[str, Any], values: State) -> State:
        if not is_matrix(parameter, group):
            return super()._taken(parameter, group, values)
        tiles, numbers = values[self._state_name], tiled_numbers(parameter.shape, group["side"])
        check(tiles.shape == (numbers,), f"tiles of side {group['side']} of a matrix {tuple(parameter.shape)} have {numbers} numbers", tiles.shape)
        whole = tiles.full_tensor() if isinstance(tiles, DTensor) else tiles
        state = _counters(float(values["step"]), float(values[KNOWN]))
        place = self._place(parameter)
        if place is None or place[0].get_local_rank(place[1]) == place[2]:
            state[self._state_name] = whole.to(parameter.device, torch.float32).clone()
        return state

    def _place(self, parameter: torch.Tensor) -> tuple[Any, int, int] | None:
        """Mesh, axis and owner of a sharded matrix."""
        if self._places is None:
            matrices = [p for p, group in self._with_groups() if is_matrix(p, group)]
            dealt = owners_of(matrices).items()
            self._places = {id(matrix): (*place, owner) for place, owned in dealt for matrix, owner in owned}
        return self._places.get(id(parameter))


class Shampoo(TiledOptimizer):
    """Matrices (parameters with two extents) are whitened from both sides; other parameters, and groups with "matrices": False, go by
    AdamW. matrix_groups() makes the groups of a model.

    Args:
        side: of a tile. refresh_every: steps between roots, from the first step on. factor_beta: decay of both factors.
        noise_floor: of the mean of the noise's spectrum, in [0, 1], that eigenvalues are raised to.
        betas, eps: of the momentum and of the AdamW whose norm a step has; and, with second_moment_floor, of the others' AdamW.
        stochastic_rounding: of all parameters in bfloat16, as AdamW's.

    A matrix goes to one rank, which keeps its tiles (6 float32 numbers an element where tiles are square) and computes its step, and
    comes back: the same bits on every number of ranks. step(), state_dict() and load_state_dict() are collectives.
    ValueError as AdamW's, and at a step, on every rank, for gradients that are not finite or whose squares are not.
    """

    _own_options = (*TiledOptimizer._own_options, "noise_floor")
    _state_name = "shampoo_tiles"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        side: int = 128,
        refresh_every: int = 20,
        factor_beta: float = 0.999,
        noise_floor: float = 0.1,
        second_moment_floor: float | None = None,
        stochastic_rounding: bool = False,
        matrices: bool = True,
    ):
        super().__init__(
            params, lr, betas, eps, weight_decay, second_moment_floor=second_moment_floor, stochastic_rounding=stochastic_rounding,
            side=side, refresh_every=refresh_every, factor_beta=factor_beta, noise_floor=noise_floor, matrices=matrices,
        )  # fmt: skip

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        floor = group["noise_floor"]
        check(is_number(floor) and 0 <= floor <= 1, "noise_floor must be a number in [0, 1]", floor)

    def _step_of_tiles(self, tiles: Tiles, gradient: torch.Tensor, step: Step) -> torch.Tensor:
        (beta1, beta2), (_, rows, columns) = step.group["betas"], gradient.shape
        _move_towards(tiles.second, gradient.square(), beta2)
        if _refreshes(step):
            tiles.left_transform.copy_(self._root(tiles.left, rows, columns, step))
            tiles.right_transform.copy_(self._root(tiles.right, columns, rows, step))
        momentum = tiles.first / step.seen(beta1)
        length = _norm_of(momentum / ((tiles.second / step.seen(beta2)).sqrt() + step.group["eps"]))
        whitened: torch.Tensor = tiles.left_transform @ momentum @ tiles.right_transform
        return whitened * (length / _norm_of(whitened).clamp(min=_NOTHING))

    def _root(self, factor: torch.Tensor, side: int, other: int, step: Step) -> torch.Tensor:
        mean, _, upper = step.noise(side, other)
        values, vectors = torch.linalg.eigh(step.without(factor, mean))
        least = max(step.group["noise_floor"] * mean, upper - mean, _NOTHING)
        roots: torch.Tensor = torch.maximum(values, (values.amax(-1, keepdim=True) * _LEAST).clamp(min=least)).pow(-0.25)
        root: torch.Tensor = vectors * roots.unsqueeze(-2) @ vectors.mT
        return root


class SOAP(TiledOptimizer):
    """Adam in the eigenvectors of both factors; otherwise as Shampoo, and with its arguments but for noise_floor. The eigenvectors are
    taken at the end of the first step, which is AdamW's, and follow the factors by one round of orthogonal iteration at the end of
    every refresh_every-th step."""

    _state_name = "soap_tiles"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        side: int = 128,
        refresh_every: int = 20,
        factor_beta: float = 0.999,
        second_moment_floor: float | None = None,
        stochastic_rounding: bool = False,
        matrices: bool = True,
    ):
        super().__init__(
            params, lr, betas, eps, weight_decay, second_moment_floor=second_moment_floor, stochastic_rounding=stochastic_rounding,
            side=side, refresh_every=refresh_every, factor_beta=factor_beta, matrices=matrices,
        )  # fmt: skip

    def _step_of_tiles(self, tiles: Tiles, gradient: torch.Tensor, step: Step) -> torch.Tensor:
        (beta1, beta2), eps = step.group["betas"], step.group["eps"]

        def turned(values: torch.Tensor) -> torch.Tensor:
            return tiles.left_transform.mT @ values @ tiles.right_transform

        if step.number > 1:
            _move_towards(tiles.second, turned(gradient).square(), beta2)
            moved = turned(tiles.first) / step.seen(beta1) / ((tiles.second / step.seen(beta2)).sqrt() + eps)
            moved = moved * _seen_along(tiles.second, -1) * _seen_along(tiles.second, -2)
            result: torch.Tensor = tiles.left_transform @ moved @ tiles.right_transform.mT
        else:
            result = gradient / (gradient.abs() + eps)
        if _refreshes(step):
            _, rows, columns = gradient.shape
            tiles.left_transform.copy_(self._basis(tiles.left, tiles.left_transform, rows, columns, step))
            tiles.right_transform.copy_(self._basis(tiles.right, tiles.right_transform, columns, rows, step))
        if step.number == 1:
            _move_towards(tiles.second, turned(gradient).square(), beta2)
        return result

    def _basis(self, factor: torch.Tensor, before: torch.Tensor, side: int, other: int, step: Step) -> torch.Tensor:
        """Eigenvectors in columns, those of the largest eigenvalues first."""
        if step.number == 1:
            vectors: torch.Tensor = torch.linalg.eigh(factor)[1]
            return vectors.flip(-1)
        basis: torch.Tensor = torch.linalg.qr(step.without(factor, step.noise(side, other)[1]) @ before)[0]
        return basis


def _counters(step: float = 0, known: float = 0) -> State:
    return {"step": torch.tensor(float(step)), KNOWN: torch.tensor(float(known), dtype=torch.float64)}


def _dealt_out(flat: torch.Tensor | None, numbers: int, parameter: torch.Tensor, mesh: Any, axis: int, owner: int) -> DTensor:
    """The owner's numbers, sharded over the axis. A collective over it."""
    assert isinstance(parameter, DTensor)
    group, ranks, place = mesh.get_group(axis), mesh.size(axis), mesh.get_local_rank(axis)
    share = -(-numbers // ranks)
    own = torch.empty(share, device=mesh.device_type)
    pieces = None
    if place == owner:
        assert flat is not None
        pieces = list(torch.cat([flat, flat.new_zeros(ranks * share - numbers)]).split(share))  # type: ignore[no-untyped-call]
    dist.scatter(own, pieces, src=dist.get_global_rank(group, owner), group=group)
    rows = own[: max(0, min(share, numbers - place * share))]
    return DTensor.from_local(rows, mesh, parameter.placements, run_check=False, shape=torch.Size([numbers]), stride=(1,))


def _refreshes(step: Step) -> bool:
    return bool((step.number - 1) % step.group["refresh_every"] == 0)


def _move_towards(average: torch.Tensor, fresh: torch.Tensor, beta: float) -> None:
    average.mul_(beta).add_(fresh * (1 - beta))


def _norm_of(tiles: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(tiles, dim=(-2, -1), keepdim=True)
    return norm


def _seen_along(second: torch.Tensor, extent: int) -> torch.Tensor:
    """0 for directions along the extent that hold nothing but rounding (2^-24 squared, of some additions), 1 for others: where a tile's
    gradients do not span all directions, Adam would make of both moments' rounding a step as long as any."""
    sums = second.sum(extent, keepdim=True)
    return sums > sums.amax((-2, -1), keepdim=True) * 1e-6
