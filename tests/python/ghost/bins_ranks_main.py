"""Two ranks under FSDP2 with balls-in-bins sampling, and one that goes on: see test_bins_ranks.py.

    torchrun --nproc_per_node 2 bins_ranks_main.py folder begin|go_on
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.loaders import BinsBatchSampler

FOLDER, N, BINS = Path(sys.argv[1]), 20, 5


class Run:
    def __init__(self):
        torch.manual_seed(1)
        self.model = FSDP2Wrapper(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)))
        x = torch.randn(N, 6)
        x[:, 0] = torch.arange(N)
        self.engine = PrivacyEngine(accountant="contour")
        self.engine.attach_ledger(FOLDER / "ledger.jsonl")
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.01),
            data_loader=DataLoader(TensorDataset(x, torch.randint(0, 3, (N,))), batch_size=N // BINS), noise_multiplier=1.0,
            max_grad_norm=1.0, grad_sample_mode="ghost_fsdp", sampling="balls_in_bins",
        )  # fmt: skip
        self.keys: list[str] = []
        sampler, common_key = self.loader.batch_sampler, self.loader.batch_sampler._common_key
        assert type(sampler) is BinsBatchSampler

        def noted(place: str) -> bytes:
            key = common_key(place)
            self.keys.append(key.hex())
            return key

        sampler._common_key = noted

    def train(self, steps: int | None = None) -> list[list[int]]:
        """The examples of this rank in each step."""
        seen = []
        for x, y in islice(self.loader, steps):
            seen.append([round(float(each)) for each in x.detach().as_subclass(torch.Tensor)[:, 0]])
            self.optimizer.zero_grad()
            self.criterion(self.module(x), y).backward()
            self.optimizer.step()
        return seen


def main() -> None:
    dist.init_process_group("gloo")
    run = Run()
    if sys.argv[2] == "go_on":
        run.engine.load_checkpoint(path=FOLDER / "saved", module=run.module, optimizer=run.optimizer)
        passes = [run.train()]
    else:
        passes = [run.train(), run.train(steps=2)]
        run.engine.save_checkpoint(path=FOLDER / "saved", module=run.module, optimizer=run.optimizer)
    found = {"passes": passes, "keys": run.keys, "history": list(run.engine.accountant.history)}
    (FOLDER / f"{sys.argv[2]}{dist.get_rank()}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
