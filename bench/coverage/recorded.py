"""A private run of a toy model that records, example by example, what takes part in its releases.

Recorded are the draws of the sampler, the examples of every backward that was kept, and the releases. A release over exactly one draw, each
of its examples once, and over a draw of its own, is a Poisson step at the loader's rate; any other is a step that may hold every
example, as often as an example was in it.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

EXAMPLES, BATCH, WIDTH, DELTA, SIGMA = 40, 8, 6, 1e-3, 1.0


class Run:
    """40 examples, the first feature of which is their number; rate 1/5. Records what takes part."""

    def __init__(self, *, workers: int = 0, model: type[nn.Module] | None = None, collate: Any = None, **options: Any):
        torch.manual_seed(5)
        x = torch.cat([torch.arange(float(EXAMPLES))[:, None], torch.randn(EXAMPLES, WIDTH - 1)], 1)
        self.data = TensorDataset(x, torch.randint(0, 3, (EXAMPLES,)))
        coins = torch.Generator().manual_seed(5)
        self.plain = DataLoader(self.data, batch_size=BATCH, shuffle=True, num_workers=workers, generator=coins, collate_fn=collate)
        self.model = model() if model else nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))
        self.engine = PrivacyEngine(accountant="rdp")
        arguments = {"noise_multiplier": SIGMA, "max_grad_norm": 0.1, "grad_sample_mode": "ghost"} | options
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.01), data_loader=self.plain, **arguments
        )
        self.recorded = Recorded(self.module.engine, self.model, self.loader)

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.criterion(self.module(x), y).backward()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.backward(x, y)
        self.optimizer.step()

    @property
    def stated(self) -> float:
        return self.engine.get_epsilon(DELTA)


class Recorded:
    def __init__(self, engine: Any, model: nn.Module, loader: Any):
        self.draws: list[frozenset[int]] = []
        self.releases: list[tuple[float, collections.Counter]] = []
        self._seen: list[int] = []
        self._kept: collections.Counter = collections.Counter()
        self._engine, self._own = engine, (engine.backward, engine.release, engine.abandon)
        engine.backward, engine.release, engine.abandon = self._backward, self._release, self._abandon
        model.register_forward_pre_hook(self._forward)
        sampler = loader.batch_sampler
        if hasattr(sampler, "draw_epoch"):
            self.rate, draw = sampler.sample_rate, sampler.draw_epoch
            sampler.draw_epoch = lambda: _Noted(draw(), self.draws)
        else:
            self.rate = 1.0

    def _forward(self, _module: nn.Module, args: tuple) -> None:
        if torch.is_grad_enabled() and args:
            self._seen = args[0].reshape(-1, args[0].shape[-1])[:, 0].round().int().tolist()

    def _backward(self, losses: torch.Tensor) -> None:
        seen = self._seen  # checks within the backward make forwards of their own
        self._own[0](losses)
        joined = len(set(seen)) == len(losses)  # units= joins rows of one example
        self._kept.update(set(seen) if joined else seen)

    def _release(self, *given: float) -> None:
        sigma = self._engine.run.terms_now()[1]
        self._own[1](*given)
        self.releases.append((sigma, self._kept))
        self._kept = collections.Counter()

    def _abandon(self) -> None:
        self._own[2]()
        self._kept = collections.Counter()

    def epsilon(self) -> float:
        """Of the releases."""
        accountant = PrivacyEngine(accountant="rdp").accountant
        free = list(self.draws)
        for sigma, examples in self.releases:
            most = max(examples.values(), default=1)
            if most == 1 and frozenset(examples) in free:
                free.remove(frozenset(examples))
                accountant.step(noise_multiplier=sigma, sample_rate=self.rate)
            else:
                accountant.step(noise_multiplier=sigma / most, sample_rate=1.0)
        return accountant.get_epsilon(DELTA) if self.releases else 0.0


class _Noted:
    """An epoch's draws, each noted when it is drawn."""

    def __init__(self, epoch: Any, draws: list):
        self._epoch, self._draws = epoch, draws
        self.first_turn = epoch.first_turn

    def sizes(self) -> np.ndarray:
        return self._epoch.sizes()

    def batches(self) -> Any:
        for batch in self._epoch.batches():
            self._draws.append(frozenset(batch.tolist()))
            yield batch


__all__ = ["Run"]
