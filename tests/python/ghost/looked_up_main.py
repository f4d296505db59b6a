"""Two ranks whose batches have an argument that says whose rows of another argument an example sees: started by torchrun, writes each rank's
errors. See test_looked_up_ranks.py.

    torchrun --nproc_per_node 2 looked_up_main.py results.json
"""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
from leaving import report_and_leave
from together_main import Run, said_by_each
from torch import nn

UNITS = 8


class Takes(nn.Module):
    """rows: of each rank, what it makes of its arguments between two blocks."""

    def __init__(self, *rows):
        super().__init__()
        self.before, self.after = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.rows = rows[dist.get_rank() % len(rows)]

    def forward(self, x, *args):
        return self.after(self.rows(self.before(x), x, *args))


def looked_up(h, _x, table, numbers):
    return h + table[numbers % len(table)]


def apart(h, _x, table, numbers):
    return h * table + numbers[:, None] % 2


def picky(h, x, table, _numbers):
    """Takes no other pairs than those of the batch."""
    if not torch.equal(x[:, 0], table[:, 0]):
        raise ValueError("table and examples do not fit")
    return h


class EndsLate(Takes):
    """Its last block has been gathered when it refuses, and the whole has not ended."""

    def forward(self, x, *args):
        return self.rows(self.after(self.before(x)).repeat(1, 2), x, *args)[:, :3]


class Twice(Takes):
    """Calls a block once more after it refuses."""

    def forward(self, x, *args):
        return self.after(self.before(self.rows(self.before(x), x, *args)))


def batch(units):
    torch.manual_seed(8 + dist.get_rank())
    first = torch.randn(units, 1)
    return torch.cat([first, torch.randn(units, 5)], 1), torch.cat([first, torch.randn(units, 5)], 1), torch.arange(units)


def two_steps(run: Run, units) -> None:
    mine = units[dist.get_rank()]
    for _ in range(2):
        run.optimizer.zero_grad()
        run.criterion(run.module(*batch(mine)), torch.zeros(mine, dtype=torch.long)).backward()
        run.optimizer.step()


class Later(Takes):
    """Looks up rows once a flag is set."""

    mode = ""

    def forward(self, x, *args):
        self.rows = looked_up if self.mode else apart
        return super().forward(x, *args)


def a_flag_of_rank_1(run: Run) -> None:
    two_steps(run, ALL)
    for module in run.model.modules():  # one may be in a wrapper
        if isinstance(module, Later):
            module.mode = "" if dist.get_rank() == 0 else "looks up"
    two_steps(run, ALL)


ALL, ONE, NONE = (UNITS, UNITS), (UNITS, 1), (UNITS, 0)
SCENARIOS = {
    "both look up": (Takes, (looked_up,), ALL), "rank 0 looks up": (Takes, (looked_up, apart), ALL), "rank 1 looks up": (Takes, (apart, looked_up), ALL),
    "rank 0 looks up, rank 1 refuses": (Takes, (looked_up, picky), ALL), "rank 1 refuses": (Takes, (apart, picky), ALL), "rank 0 refuses": (Takes, (picky, apart), ALL),
    "both refuse": (Takes, (picky,), ALL), "rank 1 refuses late": (EndsLate, (apart, picky), ALL), "rank 1 refuses between": (Twice, (apart, picky), ALL),
    "rank 1 has one example": (Takes, (looked_up,), ONE), "rank 1 has none": (Takes, (looked_up,), NONE), "apart, rank 1 has none": (Takes, (apart,), NONE), "apart": (Takes, (apart,), ALL),
}  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found: dict = {}
    for kind, sharded in (("sharded", True), ("replicas", False)):
        for name, (model, rows, units) in SCENARIOS.items():
            print(f"rank {dist.get_rank()}: {kind} {name}", file=sys.stderr, flush=True)
            run = Run(sharded=sharded, model=model(*rows), own_batches=True)
            found[f"{kind} {name}"] = said_by_each(lambda: two_steps(run, units))
        run = Run(sharded=sharded, model=Later(apart), own_batches=True)
        found[f"{kind} later on rank 1"] = said_by_each(lambda: a_flag_of_rank_1(run))
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
