"""Two ranks whose report has digests of the weights: see test_report_provenance.py.

    torchrun --nproc_per_node 2 weights_ranks_main.py results.json folder
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import report_and_leave
from private import hand_out
from together_main import said_by_each
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine, digest_of_weights

FOLDER = Path(sys.argv[2])
MESHES = {"1x2": (1, 2), "2x1": (2, 1)}  # replicate x shard


def begin(mesh: str, seed: int = 3) -> tuple:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3, bias=False))
    model = FSDP2Wrapper(model, mesh=init_device_mesh("cpu", MESHES[mesh], mesh_dim_names=("replicate", "shard")))
    engine = PrivacyEngine(accountant="rdp")
    engine.attach_ledger(FOLDER / f"{mesh}_{seed}.jsonl")
    loader = DataLoader(TensorDataset(torch.ones(40, 6), torch.zeros(40, dtype=torch.long)), batch_size=8)
    return engine, model, engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, grad_sample_mode="ghost_fsdp",
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip


def step(run: tuple) -> None:
    module, optimizer, criterion, loader = run
    hand_out(loader, 2)
    optimizer.zero_grad()
    criterion(module(torch.ones(2, 6)), torch.zeros(2, dtype=torch.long)).backward()
    optimizer.step()


def reported(mesh: str) -> dict:
    engine, model, run = begin(mesh)
    found = {"before": digest_of_weights(model)}
    step(run)
    found["after"] = digest_of_weights(run[0])  # of the wrapper
    summaries: list = [None] * dist.get_world_size()
    dist.all_gather_object(summaries, engine.report(FOLDER / f"{mesh}_every", delta=1e-5, every_rank=True))
    found["summaries"] = summaries
    if dist.get_rank() == 0:
        engine.report(FOLDER / f"{mesh}_one", delta=1e-5)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(whole, FOLDER / f"{mesh}.pt")
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found = {mesh: reported(mesh) for mesh in MESHES}
    found["unlike replicas"] = said_by_each(lambda: step(begin("2x1", seed=10 + dist.get_rank())[2]))
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
