"""A private run of 40 examples, with draws that tests prescribe."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.loaders import GhostDataLoader

N, BATCH = 40, 8


class Run:
    """40 examples, 5 draws a pass, which are never empty unless `draws` says so: units of each draw."""

    def __init__(self, *, draws=(8, 7, 9, 8, 6), noise=1.0, workers=0, ledger=None, collate=None, model=None, engine=None, data=None, **options):
        torch.manual_seed(5)
        self.data = data or TensorDataset(torch.randn(N, 6), torch.randint(0, 3, (N,)))
        self.plain = DataLoader(self.data, batch_size=BATCH, num_workers=workers, collate_fn=collate)
        self.model = nn.Linear(6, 3) if model is None else model
        self.engine = engine or PrivacyEngine(accountant="rdp")
        if ledger is not None:
            self.engine.attach_ledger(ledger)
        arguments = {"noise_multiplier": noise, "max_grad_norm": 0.1, "grad_sample_mode": "ghost"} | options
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1), data_loader=self.plain, **arguments
        )
        if isinstance(self.loader, GhostDataLoader) and draws:
            prescribe(self.loader, draws)

    def backward(self, x, y) -> None:
        self.criterion(self.module(x), y).backward()

    def step(self, x, y) -> None:
        self.optimizer.zero_grad()
        self.backward(x, y)
        self.optimizer.step()

    @property
    def charged(self) -> int:
        return sum(steps for _, _, steps in self.engine.accountant.history)


def prescribe(loader, sizes) -> None:
    class Prescribed:
        first_turn = 0

        def batches(self):
            return iter([np.arange(size) for size in sizes])

        def sizes(self):
            return np.array(sizes)

    sampler = loader.batch_sampler
    sampler.draws, sampler.steps = len(sizes), len(sizes) * sampler.accumulation_steps
    sampler.draw_epoch = Prescribed
