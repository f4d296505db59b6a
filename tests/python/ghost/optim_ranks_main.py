"""ghostshard.optim over FSDP2's shards beside whole parameters: see test_optim_ranks.py.

    torchrun --nproc_per_node 2 optim_ranks_main.py results.json 2 [folder]
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import optim_twins as twins
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from leaving import report_and_leave
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from private import hand_out
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.optim import SOAP, AdamW, AdamW8bit, Muon, Shampoo, exchange, matrix_groups

LR, VARIANCE = 0.01, 0.01
KINDS = {
    "adamw": lambda model: AdamW(model.parameters(), LR, second_moment_floor=0.5),
    "adamw8bit": lambda model: AdamW8bit(model.parameters(), LR, least_coded=1000),
    "adamw_rounded": lambda model: AdamW(model.bfloat16().parameters(), LR, stochastic_rounding=True),
    "muon_rounded": lambda model: Muon(matrix_groups(model.bfloat16()), LR, stochastic_rounding=True),
    "shampoo_rounded": lambda model: Shampoo(model.bfloat16().parameters(), LR, side=32, stochastic_rounding=True),
    "soap_rounded": lambda model: SOAP(model.bfloat16().parameters(), LR, side=32, stochastic_rounding=True),
    "muon": lambda model: Muon(matrix_groups(model, adamw=lambda name, _: name.endswith("3.weight")), LR),
    "shampoo": lambda model: Shampoo(model.parameters(), LR, side=32, refresh_every=2),
    "soap": lambda model: SOAP(matrix_groups(model), LR, side=32, refresh_every=2),
}

EXACT = {  # of decompositions, which NaN breaks
    "shampoo": KINDS["shampoo"],
    "soap": lambda model: SOAP(model.parameters(), LR, side=32),
    "muon_drop": lambda model: Muon(model.parameters(), LR, noise="drop"),
}

PRIVATE = {name: make for name, make in KINDS.items() if not name.endswith("_rounded")} | {
    "torchs_adamw": lambda model: torch.optim.AdamW(model.parameters(), LR),
    "torchs_muon": lambda model: torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], LR, adjust_lr_fn="match_rms_adamw"),
}


def build(width: int = 64) -> nn.Module:
    """Rows that no number of ranks divides, and one row that one rank has; widths of 64 let shards begin at a multiple of 256."""
    torch.manual_seed(5)
    layers = [nn.Linear(width, 96), nn.Linear(96, 64, bias=False), nn.Linear(64, 7), nn.Linear(7, 1)]
    return nn.Sequential(*layers, nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, width))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for number, p in enumerate(model.parameters()):
            whole = twins.gradient(p, number, step).to(p.dtype)
            placed = hasattr(p, "placements")
            p.grad = distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None) if placed else whole
        if hasattr(optimizer, "set_error_variance"):
            optimizer.set_error_variance(VARIANCE)
        optimizer.step()
        optimizer.zero_grad()


def whole_of(model: nn.Module) -> list[torch.Tensor]:
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]


def difference(one: nn.Module, two: nn.Module) -> float:
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(whole_of(one), whole_of(two), strict=True))


def beside_whole(mesh: Any, make: Any, width: int = 64) -> float:
    """Of the distance that the weights have gone."""
    whole, start = build(width), build(width)
    sharded = FSDP2Wrapper(copy.deepcopy(whole), mesh=mesh)
    for model in (whole, sharded):
        take_steps(model, make(model), range(4))
    weights = zip(whole_of(sharded), whole_of(whole), whole_of(start), strict=True)
    return max(((a - b).norm() / (b - first).norm()).item() for a, b, first in weights)


def bytes_of(mesh: Any) -> dict[str, int]:
    """What this rank gives to all-to-alls in a step, without what it gives itself; and of how many matrices."""
    model = FSDP2Wrapper(build(), mesh=mesh)
    optimizer, sent, calls = KINDS["muon"](model), 0, 0
    original = dist.all_to_all_single

    def counted(into: torch.Tensor, out: torch.Tensor, received: list[int], given: list[int], group: Any, **options: Any) -> Any:
        nonlocal sent, calls
        sent, calls = sent + 4 * (sum(given) - given[dist.get_rank(group)]), calls + 1
        return original(into, out, received, given, group=group, **options)

    exchange.dist.all_to_all_single = counted
    take_steps(model, optimizer, range(1))
    exchange.dist.all_to_all_single = original
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, sent)
    return {"sent": sum(every), "calls": calls}


def torchs_muon(mesh: Any, float32: bool) -> float:
    class Matrices(nn.Sequential):
        pass

    def matrices() -> nn.Module:
        torch.manual_seed(5)
        return Matrices(*(nn.Linear(d, p, bias=False) for p, d in ((24, 16), (7, 24), (9, 1), (1, 5))))

    original = torch.Tensor.bfloat16
    if float32:
        torch.Tensor.bfloat16 = torch.Tensor.clone  # its iteration is in bfloat16, whose roundings hide everything else
    whole = matrices()
    sharded = FSDP2Wrapper(copy.deepcopy(whole), mesh=mesh)
    for model in (whole, sharded):
        take_steps(model, torch.optim.Muon(model.parameters(), LR, adjust_lr_fn="match_rms_adamw"), range(3))
    torch.Tensor.bfloat16 = original
    return difference(sharded, whole)


def cut_by_columns(mesh: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    whole = nn.Linear(8, 8, bias=False)
    by_columns = lambda: fully_shard(copy.deepcopy(whole), mesh=mesh, shard_placement_fn=lambda p: Shard(1))
    try:
        model = by_columns()
        take_steps(model, Muon(model.parameters()), range(1))
        said = ""
    except ValueError as error:
        said = str(error)
    model = by_columns()
    for each in (whole, model):
        take_steps(each, KINDS["adamw"](each), range(3))
    return {"muon": said, "adamw": difference(model, whole)}


def not_finite(mesh: Any, make: Any) -> list[str]:
    """What each rank says of a gradient that is NaN in one row of the other's, and then whether it steps."""
    model = FSDP2Wrapper(build(), mesh=mesh)
    optimizer = make(model)
    take_steps(model, optimizer, range(1))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if dist.get_rank() == 1:
        list(model.parameters())[2].grad.to_local()[3] = float("nan")
    before = whole_of(model)
    try:
        optimizer.step()
        said = ""
    except ValueError as error:
        said = str(error)
    assert all(torch.equal(a, b) for a, b in zip(whole_of(model), before, strict=True))
    take_steps(model, optimizer, range(1, 2))
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, said)
    return every


# Private -------------------------------------------------------------------------------------------------------------


def private_weights(mesh: Any, make: Any, units: int) -> list[torch.Tensor]:
    """After three private steps on batches of so many examples, whose noise follows from a seed. mesh None: of one process;
    "replicas": the model whole on every rank."""
    model = build()
    if mesh == "replicas":
        model = DifferentiallyPrivateDistributedDataParallel(model)
    elif mesh is not None:
        model = FSDP2Wrapper(model, mesh=mesh)
    data = TensorDataset(torch.zeros(40, 64), torch.zeros(40, dtype=torch.long))
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=make(model), data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0, max_grad_norm=0.1,
        grad_sample_mode="ghost" if mesh in (None, "replicas") else "ghost_fsdp", noise_generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    here = slice(None) if mesh is None else slice(dist.get_rank(), None, dist.get_world_size())
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(units, 64, generator=torch.Generator().manual_seed(step))[here]
        y = (torch.arange(units) % 64)[here]
        hand_out(loader, len(x))
        criterion(module(x), y).backward()
        optimizer.step()
    return whole_of(model)


# Checkpoints ---------------------------------------------------------------------------------------------------------


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, **how: Any) -> None:
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=folder, **how)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, **how: Any) -> None:
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=folder, **how)
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def checkpoints(mesh: Any, folder: Path) -> dict[str, float]:
    """Saves ours after two steps for test_optim_ranks.py, and goes on from what it saved after two steps of one rank."""
    found = {}
    for name, make in KINDS.items():
        model = FSDP2Wrapper(build(), mesh=mesh)
        optimizer = make(model)
        take_steps(model, optimizer, range(2))
        save(model, optimizer, folder / f"ranks_{name}")
        again = make(model)
        load(model, again, folder / f"one_{name}")
        take_steps(model, again, range(2, 4))
        whole = build()
        take_steps(whole, make(whole), range(4))
        found[name] = difference(model, whole)
    return found


def main() -> None:
    dist.init_process_group("gloo")
    shape = tuple(map(int, sys.argv[2].split("x")))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    found: dict[str, Any] = {"whole": {name: beside_whole(mesh, make) for name, make in KINDS.items()}}
    found["cut_stretches"] = beside_whole(mesh, KINDS["adamw8bit"], width=50)
    found["bytes"] = bytes_of(mesh)
    if len(sys.argv) > 3:
        found["torchs_muon"] = [torchs_muon(mesh, float32) for float32 in (True, False)]
        found["cut_by_columns"] = cut_by_columns(mesh)
        found["not_finite"] = {name: not_finite(mesh, make) for name, make in EXACT.items()}
        folder = Path(sys.argv[3])
        found["checkpoints"] = checkpoints(mesh, folder)
        weights = {name: {units: private_weights(mesh, make, units) for units in (0, 8)} for name, make in PRIVATE.items()}
        weights["muon_of_replicas"] = {units: private_weights("replicas", KINDS["muon"], units) for units in (0, 8)}
        if dist.get_rank() == 0:
            torch.save(weights, folder / "private.pt")
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
