"""Two ranks that come to two places in other orders: writes what each says and when. See test_crossing_ranks.py.

    torchrun --nproc_per_node 2 crossing_main.py folder "two runs"|"a loader that is begun twice"|"two runs in one order"
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from together_main import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]


def step(run: Run, x: torch.Tensor, y: torch.Tensor) -> None:
    run.optimizer.zero_grad()
    run.criterion(run.module(x), y).backward()
    run.optimizer.step()


def two_runs() -> None:
    """Rank 1 is slower, and comes to the second first if it is to."""
    runs = [Run(sharded=False), Run(sharded=False)]
    for batches in zip(*(run.loader for run in runs)):
        turns = list(zip(runs, batches))
        if dist.get_rank() == 1:
            time.sleep(0.5)
            turns = turns[::-1] if HOW == "two runs" else turns
        for run, batch in turns:
            step(run, *batch)


def begun_twice() -> None:
    """By rank 1; beginning is a collective there."""
    model = FSDP2Wrapper(nn.Linear(6, 3))
    data = TensorDataset(torch.randn(40, 6), torch.zeros(40, dtype=torch.long))
    module, optimizer, criterion, loader = PrivacyEngine(accountant="prv").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0, max_grad_norm=1.0,
        grad_sample_mode="ghost_fsdp", sampling="balls_in_bins",
    )  # fmt: skip
    if dist.get_rank() == 1:
        iter(loader)
    for x, y in loader:
        criterion(module(x), y).backward()
        optimizer.step()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(3)
    dist.init_process_group("gloo")
    said, began = "nothing", time.monotonic()
    try:
        begun_twice() if HOW.startswith("a loader") else two_runs()
    except RuntimeError as error:
        said = f"{type(error).__name__}: {error}"
    (FOLDER / f"{dist.get_rank()}.json").write_text(json.dumps({"said": said, "seconds": time.monotonic() - began}))
    os._exit(0)  # a group of torch's waits at the end of its process for what never came


if __name__ == "__main__":
    main()
