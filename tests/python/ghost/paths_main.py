"""Two ranks whose model goes another way from some step on: started by torchrun, writes each rank's errors and how many forwards there were. See test_paths_of_ranks.py.

    torchrun --nproc_per_node 2 paths_main.py results.json
"""

from __future__ import annotations

import itertools
import sys
import threading
import warnings

import torch
import torch.distributed as dist
from leaving import report_and_leave
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from private import hand_out
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.ghost.checks.gradients import AttributionCheck

STEPS, FIRST = 6, 3  # FIRST: the step before which something is set
event, keeps, forwards = threading.Event(), threading.Event(), itertools.count()


class Scaled(nn.Module):
    """No rule computes it, so that its coins fall in another order."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, h):
        return functional.dropout(h * self.scale, 0.3)


class Model(nn.Module):
    """places: a parameter of its own, beside layers that are sharded apart."""

    def __init__(self, *, places: bool):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.places, self.scaled = (nn.Parameter(torch.randn(8)), Scaled()) if places else (0, nn.Identity())

    def forward(self, x):
        next(forwards)
        h = self.scaled(self.second(self.first(x).relu()).tanh() + self.places)
        if keeps.is_set():
            self.kept = h.detach().mean(0)
        return self.last(h + 0.5 * h.detach().mean(0) if event.is_set() else h)


def train(kind: str, before, after_forward=lambda: None, *, zeros: bool = False) -> None:
    torch.manual_seed(3)
    model = Model(places=kind == "by block")
    if zeros:
        nn.init.zeros_(model.last.weight)
    if kind == "by block":
        for block in (model.first, model.second, model.scaled, model):
            fully_shard(block)
    else:
        model = FSDP2Wrapper(model) if kind == "sharded" else DifferentiallyPrivateDistributedDataParallel(model)
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), batch_size=8),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost" if kind == "replicas" else "ghost_fsdp",
    )  # fmt: skip
    notes = loader.batch_sampler.stamps.begin_pass()
    for step in range(STEPS):
        hand_out(loader, 3, notes=notes)
        optimizer.zero_grad()
        before(step)
        out = module(torch.randn(3, 6))
        after_forward()
        criterion(out, torch.zeros(3, dtype=torch.long)).backward()
        optimizer.step()


def put(on: bool) -> None:
    event.set() if on else event.clear()


SCENARIOS = {
    "nothing opens": (lambda step: None, lambda: None),
    "a path opens": (lambda step: put(step >= FIRST), lambda: None),
    "a path opens on one rank": (lambda step: put(step >= FIRST and dist.get_rank() == 1), lambda: None),
    "zeros hide that it is open": (lambda step: put(True), lambda: None),
    "zeros hide nothing": (lambda step: None, lambda: None),
    "one rank keeps what it uses for nothing": (lambda step: keeps.set() if dist.get_rank() == 1 else None, lambda: None),
    "a path is open in forwards": (lambda step: put(True), lambda: put(False)),
    "a path is open in one rank's forwards": (lambda step: put(dist.get_rank() == 1), lambda: put(False)),
}


def said(scenario) -> str:
    try:
        scenario()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def main() -> None:
    warnings.simplefilter("ignore")
    AttributionCheck.again = AttributionCheck.more_calls = 0
    dist.init_process_group("gloo")
    found: dict = {}
    for kind in ("sharded", "by block", "replicas"):
        for name, (before, after_forward) in SCENARIOS.items():
            put(False)
            keeps.clear()
            began, of_all = next(forwards), [None, None]
            mine = said(lambda: train(kind, before, after_forward, zeros="zeros" in name)), next(forwards) - began - 1
            dist.all_gather_object(of_all, mine)
            found[f"{kind} {name}"] = of_all
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
