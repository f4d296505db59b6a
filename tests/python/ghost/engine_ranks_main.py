"""Whole training loops on several ranks, started by torchrun: see test_ghost_training.py.

    torchrun --nproc_per_node 2 engine_ranks_main.py results.json poisson|memory_manager|adaptive|replicas|raises|leaks|kinds
"""

from __future__ import annotations

import copy
import sys

import oracle
import torch
import torch.distributed as dist
from leaving import report_and_leave
from models import CASES, class_loss
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private import Private
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.ghost.loss import PrivateLoss

EPOCHS = 5


def task(units: int, batch_size: int):
    torch.manual_seed(3)  # the same on every rank: coins and noise must not follow from it (fault P5)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(units, 6), torch.randint(0, 3, (units,)), torch.arange(units))
    return FSDP2Wrapper(model), DataLoader(data, batch_size=batch_size)


def train(physical: int | None, **options) -> dict:
    """8 units, 2 a step: most local batches are empty or of one (fault H1)."""
    model, loader = task(8, 2)
    engine = PrivacyEngine(accountant="rdp")
    module, optimizer, criterion, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=1.0,
        max_grad_norm=1.0, grad_sample_mode="ghost_fsdp", **options,
    )  # fmt: skip
    seen: list[list[int]] = []
    clip_norms: list[float] = []

    def epoch(batches) -> None:
        for x, y, units in batches:
            seen.append(units.tolist())
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
            clip_norms.append(optimizer.max_grad_norm)

    for _ in range(EPOCHS):
        if physical is None:
            epoch(loader)
        else:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer) as batches:
                epoch(batches)
    weights = torch.cat([p.full_tensor().flatten() for p in model.parameters()])
    every: list = [None] * dist.get_world_size()
    found = {"history": engine.accountant.history, "seen": seen, "clip_norms": clip_norms, "weights": weights.sum().item()}
    dist.all_gather_object(every, found)
    return {"ranks": every}


def replicas() -> float:
    """Mode ghost: the model whole on every rank."""
    case = next(case for case in CASES if case.name == "mlp")
    torch.manual_seed(3)
    model, (first, second) = case.build(), case.batches()
    twin = copy.deepcopy(model)
    expected = oracle.clipped_sum(twin, class_loss, [first, second], case.clip_norm)
    wrapped = DifferentiallyPrivateDistributedDataParallel(model)
    loader = DataLoader(TensorDataset(torch.zeros(10, 6)), batch_size=5)
    module, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=wrapped, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), data_loader=loader, noise_multiplier=0.0,
        max_grad_norm=case.clip_norm, grad_sample_mode="ghost", poisson_sampling=False,
        criterion=nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum",
    )  # fmt: skip
    x, y = first if dist.get_rank() == 0 else second
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    criterion(module(x), y).backward()
    optimizer.step()
    return oracle.worst_difference({name: before[name] - p.detach() for name, p in model.named_parameters()}, expected)


def raises() -> None:
    """One rank meets a broken example: no rank may wait for it."""
    model, _ = task(8, 2)
    loader = DataLoader(TensorDataset(torch.zeros(8, 6)), batch_size=2)
    module, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=1.0,
        max_grad_norm=1.0, grad_sample_mode="ghost_fsdp", poisson_sampling=False,
    )  # fmt: skip
    for step in range(4):
        x, y = torch.randn(3, 6), torch.zeros(3, dtype=torch.long)
        if step == 2 and dist.get_rank() == 1:
            raise ValueError("a broken example")
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()


class MinusTheMean(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def leaks() -> list:
    """Each rank's errors with a model that mixes examples, which one rank alone can see."""
    found = []
    for sizes in ([(1, 1), (5, 0)], [(0, 1), (5, 1)]):  # (rank 0, rank 1), one microbatch after another
        model = FSDP2Wrapper(nn.Sequential(nn.Linear(6, 8), MinusTheMean(), nn.Linear(8, 3)))
        private = Private(model, 1.0)
        lived: list[str] = []
        for here in sizes:
            units = here[dist.get_rank()]
            try:
                private.step(class_loss, [(torch.randn(units, 6), torch.zeros(units, dtype=torch.long))])
                lived.append("stepped")
            except RuntimeError as error:
                lived.append(str(error))
        every: list = [None] * dist.get_world_size()
        dist.all_gather_object(every, lived)
        found.append(every)
    return found


def kinds() -> list:
    """Rank 0's first batch is packed, rank 1's is not: each rank's error, and then a step in which both are packed."""
    private = Private(FSDP2Wrapper(nn.Sequential(nn.Linear(6, 3))), 1.0)
    x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    packed = {"cu_seqlens": [0, 1, 2, 3, 4]}
    lived: list[str] = []
    for said in (packed if dist.get_rank() == 0 else {}, packed, {}):
        losses = nn.functional.cross_entropy(private.module(x, **said), y, reduction="none")
        try:
            PrivateLoss(private.engine, losses).backward()
            private.released()
            lived.append("stepped")
        except ValueError as error:
            lived.append(str(error))
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, lived)
    return every


SCENARIOS = {
    "poisson": lambda: train(None),
    "memory_manager": lambda: train(1),
    "adaptive": lambda: train(None, clipping="adaptive", unclipped_num_std=2.0),
    "replicas": replicas,
    "raises": raises,
    "leaks": leaks,
    "kinds": kinds,
}


def main() -> None:
    results, scenario = sys.argv[1:]
    dist.init_process_group("gloo")
    found = SCENARIOS[scenario]()
    report_and_leave(results, found)


if __name__ == "__main__":
    main()
