"""Ranks under FSDP2 whose noise hangs together, by bands or as a chain: see test_correlated_ranks.py.

    torchrun --nproc_per_node 2 correlated_ranks_main.py folder noise_bands|noise_chain straight|begin|begin_and_save|go_on
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from hashlib import sha256
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine, _native
from ghostshard.loaders import BatchMemoryManager

FOLDER, KIND, WHAT = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
N, DRAWS, GROUPS, DELTA = 40, 10, 4, 1e-5
KEY = bytes(range(32))


def same_noise_in_every_process() -> None:
    """Under a known key, so that what is left to differ is the number of ranks."""
    engine = _native.load("engine")
    make = engine.Session
    engine.Session = lambda **options: make(**options | {"key": KEY})


class Run:
    def __init__(self, ledger: str = "ledger.jsonl", silent: bool = False):
        """silent: examples have no gradients, so the weights move by the noise alone."""
        torch.manual_seed(1)
        self.model = FSDP2Wrapper(nn.Sequential(nn.Linear(6, 9, bias=False), nn.ReLU(), nn.Linear(9, 3, bias=False)))
        x = torch.zeros(N, 6) if silent else torch.randn(N, 6)
        self.engine = PrivacyEngine(accountant="contour")
        self.engine.attach_ledger(FOLDER / ledger)
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9),
            data_loader=DataLoader(TensorDataset(x, torch.randint(0, 3, (N,))), batch_size=N // DRAWS), noise_multiplier=1.0,
            max_grad_norm=1.0, grad_sample_mode="ghost_fsdp", **{KIND: GROUPS},
        )  # fmt: skip

    def step(self, x, y) -> None:
        self.optimizer.zero_grad()
        self.criterion(self.module(x), y).backward()
        self.optimizer.step()

    def train(self, steps: int | None = None) -> None:
        for x, y in islice(self.loader, steps):
            self.step(x, y)

    def train_in_pieces(self) -> int:
        """One pass in batches of two examples at most; how many there were."""
        with BatchMemoryManager(data_loader=self.loader, max_physical_batch_size=2, optimizer=self.optimizer) as physical:
            pieces = 0
            for x, y in physical:
                self.step(x, y)
                pieces += 1
        return pieces

    def weights(self) -> list[float]:
        return torch.cat([each.full_tensor().flatten() for each in self.model.parameters()]).tolist()

    def save(self) -> None:
        self.engine.save_checkpoint(path=FOLDER / "saved", module=self.module, optimizer=self.optimizer)

    def load(self) -> list[str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.engine.load_checkpoint(path=FOLDER / "saved", module=self.module, optimizer=self.optimizer)
        return [str(each.message) for each in said]


def straight() -> dict:
    """Two passes in pieces, of noise alone and of gradients."""
    same_noise_in_every_process()
    found = {}
    for ledger in ("silent.jsonl", "ledger.jsonl"):
        run = Run(ledger, silent=ledger == "silent.jsonl")
        run.loader.batch_sampler._common_key = lambda place: sha256(place.encode()).digest()
        found["pieces"] = sum(run.train_in_pieces() for _ in range(2))
        found[ledger] = run.weights()
    return found | reported(run)


def reported(run: Run) -> dict:
    found = {"history": list(run.engine.accountant.history), "epsilon": run.engine.get_epsilon(DELTA)}
    run.engine.report(FOLDER, delta=DELTA)
    return found


def killed(run: Run, after: int) -> None:
    run.train(steps=after)
    dist.barrier()
    os._exit(0)


def go_on() -> dict:
    run = Run()
    said = run.load()
    run.train(steps=3)
    return {"said": said} | reported(run)


def main() -> None:
    dist.init_process_group("gloo")
    if WHAT == "begin":
        killed(Run(), 6)
    if WHAT == "begin_and_save":
        run = Run()
        run.train(steps=3)
        run.save()
        killed(run, 4)
    found = go_on() if WHAT == "go_on" else straight()
    (FOLDER / f"{WHAT}{dist.get_world_size()}_{dist.get_rank()}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
