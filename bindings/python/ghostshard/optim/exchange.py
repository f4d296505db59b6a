"""Brings whole matrices to one rank each, and the results back, for rules that look at a matrix as a whole
(fsdp/optimizer/matrix_exchange.h has the same in C++).

FSDP2 gives ceil(rows/ranks) rows to a rank. Every matrix has an owner: a matrix that one rank holds whole stays there, the others are
dealt out in falling order of cost, each to the rank with the least work so far. They travel in rounds of a few matrices an owner,
by one all-to-all there and one back; while a round is computed the next one is under way. Each element travels once there and once
back, but for the rows that the owner holds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from .rows import rows_of

MATRICES_OF_A_ROUND = 4  # of one owner: enough to level the ranks' work, few enough that buffers are small beside the model

Give = Callable[[torch.Tensor], torch.Tensor]  # a parameter -> values [own rows, d], float32
Compute = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # a parameter, a matrix of its shape -> another one
Take = Callable[[torch.Tensor, torch.Tensor], None]  # a parameter, results [own rows, d]


def over_whole_matrices(
    parameters: Sequence[torch.Tensor], moving: Sequence[torch.Tensor], give: Give, compute: Compute, take: Take
) -> None:
    """For each of those parameters with two extents that are moving: give() its rows, compute() on the whole matrix on one rank, take()
    the rows of the result. Owners follow from all parameters. A collective over the ranks that share them. ValueError for a parameter
    that is cut otherwise than by rows over one axis."""
    move = {id(parameter) for parameter in moving}
    for parameter in moving:
        if sharded_axis(parameter) is None:
            take(parameter, compute(parameter, give(parameter)))
    for (mesh, axis), owned in owners_of(parameters).items():
        group, device = mesh.get_group(axis), torch.device(mesh.device_type)
        matrices = [_Matrix(p, owner, _share(p, mesh.size(axis))) for p, owner in owned if id(p) in move]
        _run([_Round(each, group, device) for each in _rounds(matrices, mesh.size(axis))], give, compute, take)


def least_of_ranks(number: int, parameters: Sequence[torch.Tensor]) -> int:
    """The least of what the ranks that share these parameters give. A collective over them, one number for each mesh and axis."""
    places = dict.fromkeys((p.device_mesh, axis) for p in parameters if (axis := sharded_axis(p)) is not None)  # type: ignore[attr-defined]
    for mesh, axis in places:
        least = torch.tensor(number, device=mesh.device_type)
        dist.all_reduce(least, dist.ReduceOp.MIN, group=mesh.get_group(axis))
        number = int(least.item())
    return number


def owners_of(parameters: Sequence[torch.Tensor]) -> dict[tuple[Any, int], list[tuple[torch.Tensor, int]]]:
    """Of those that are sharded, by mesh and axis: each with its owner's place on the axis."""
    sharded: dict[tuple[Any, int], list[torch.Tensor]] = {}
    for parameter in parameters:
        axis = sharded_axis(parameter)
        if axis is not None:
            sharded.setdefault((parameter.device_mesh, axis), []).append(parameter)  # type: ignore[attr-defined]
    found = {}
    for (mesh, axis), members in sharded.items():
        ranks = mesh.size(axis)
        fixed = [0 if _share(p, ranks) == p.shape[0] else None for p in members]
        found[mesh, axis] = list(zip(members, deal_out([cost_of(p) for p in members], fixed, ranks)))
    return found


def deal_out(costs: Sequence[float], fixed: Sequence[int | None], ranks: int) -> list[int]:
    """Owners of matrices with these costs, dearest first, each to the rank with the least work so far. fixed: who must have it."""
    work = [0.0] * ranks
    owners = [-1 if owner is None else owner for owner in fixed]
    for cost, owner in zip(costs, owners, strict=True):
        if owner >= 0:
            work[owner] += cost
    for number in sorted(range(len(costs)), key=lambda each: -costs[each]):
        if owners[number] < 0:
            owners[number] = min(range(ranks), key=lambda rank: work[rank])
            work[owners[number]] += costs[number]
    return owners


def cost_of(parameter: torch.Tensor) -> float:
    """The operations of a product of the matrix with itself."""
    rows, columns = parameter.shape
    return float(rows * columns * min(rows, columns))


def sharded_axis(parameter: torch.Tensor) -> int | None:
    """Of its mesh; None: every rank has it whole."""
    if not isinstance(parameter, DTensor):
        return None
    mesh = parameter.device_mesh
    axes = [axis for axis, placement in enumerate(parameter.placements) if not placement.is_replicate() and mesh.size(axis) > 1]
    if not axes:
        return None
    if len(axes) > 1 or parameter.placements[axes[0]] != Shard(0):
        raise ValueError(
            f"a rule on whole matrices needs them whole, or sharded by rows over one axis of the mesh as fully_shard does; a parameter "
            f"{tuple(parameter.shape)} has placements {parameter.placements}. Let it go by AdamW (a group with 'matrices': False)"
        )
    return axes[0]


def _share(parameter: torch.Tensor, ranks: int) -> int:
    """Rows that fully_shard gives to a rank, as far as there are any."""
    return -(-parameter.shape[0] // ranks)


@dataclass
class _Matrix:
    parameter: torch.Tensor
    owner: int
    share: int  # rows of a rank

    def rows(self, rank: int) -> int:
        return max(0, min(self.parameter.shape[0] - rank * self.share, self.share))

    def elements(self, rank: int) -> int:
        return self.rows(rank) * self.parameter.shape[1]


def _rounds(matrices: Sequence[_Matrix], ranks: int) -> list[list[_Matrix]]:
    """Dearest first. Within a round by owner."""
    taken = [0] * ranks
    rounds: list[list[_Matrix]] = []
    for matrix in sorted(matrices, key=lambda each: -cost_of(each.parameter)):
        number = taken[matrix.owner] // MATRICES_OF_A_ROUND
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(matrix)
        taken[matrix.owner] += 1
    return [sorted(each, key=lambda matrix: matrix.owner) for each in rounds]


class _Round:
    def __init__(self, matrices: list[_Matrix], group: Any, device: torch.device):
        self.matrices, self._group, self._device = matrices, group, device
        self._self, ranks = dist.get_rank(group), range(dist.get_world_size(group))
        self.mine = [matrix for matrix in matrices if matrix.owner == self._self]
        self._to_owners = [sum(m.elements(self._self) for m in matrices if m.owner == rank) for rank in ranks]
        self._from_ranks = [sum(m.elements(rank) for m in self.mine) for rank in ranks]
        self._travels = any(m.rows(rank) and rank != m.owner for m in matrices for rank in ranks)

    def send(self, give: Give) -> None:
        # Of a matrix that this rank has no row of, too: what give() keeps is there on all ranks, in one order.
        rows = [give(m.parameter).reshape(-1).to(self._device) for m in self.matrices]
        self._coming = self._all_to_all(rows, self._to_owners, self._from_ranks)

    def whole(self) -> list[torch.Tensor]:
        """This rank's matrices."""
        parts = [iter(torch.split(part, [m.elements(rank) for m in self.mine]))
                 for rank, part in enumerate(torch.split(self._coming(), self._from_ranks))]  # fmt: skip
        return [torch.cat([next(part) for part in parts]).view(m.parameter.shape) for m in self.mine]

    def send_back(self, results: list[torch.Tensor]) -> None:
        pieces = [torch.split(result, [m.rows(rank) for rank in range(len(self._from_ranks))]) for m, result in zip(self.mine, results)]
        rows = [of_matrix[rank].reshape(-1) for rank in range(len(self._from_ranks)) for of_matrix in pieces]
        self._coming = self._all_to_all(rows, self._from_ranks, self._to_owners)

    def take_back(self, take: Take) -> None:
        parts = torch.split(self._coming(), [m.elements(self._self) for m in self.matrices])
        for matrix, part in zip(self.matrices, parts, strict=True):
            own = rows_of(matrix.parameter)
            take(matrix.parameter, part.view(own.shape).to(own.device))

    def _all_to_all(self, rows: list[torch.Tensor], sent: list[int], received: list[int]) -> Callable[[], torch.Tensor]:
        """Under way; called, it waits."""
        out = torch.cat([torch.empty(0, device=self._device), *rows])
        if not self._travels:
            return lambda: out
        into = out.new_empty(sum(received))
        work = dist.all_to_all_single(into, out, received, sent, group=self._group, async_op=True)

        def wait() -> torch.Tensor:
            _ = out  # until then the collective reads it
            work.wait()
            return into

        return wait


def _run(rounds: list[_Round], give: Give, compute: Compute, take: Take) -> None:
    if not rounds:
        return
    rounds[0].send(give)
    for number, now in enumerate(rounds):
        if number + 1 < len(rounds):
            rounds[number + 1].send(give)
        results = [compute(m.parameter, matrix) for m, matrix in zip(now.mine, now.whole())]
        if number > 0:
            rounds[number - 1].take_back(take)
        now.send_back(results)
    rounds[-1].take_back(take)
