"""Loops as tutorials have them."""

from __future__ import annotations

import itertools
import tempfile

import torch
from loop import loop
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn

from ghostshard.ghost.loss import PrivateLoss


@loop("zero_grad, backward, step")
def _plain(run):
    for x, y in run.loader:
        run.step(x, y)


@loop("three passes")
def _passes(run):
    for _ in range(3):
        _plain(run)


@loop("zero_grad after step")
def _after(run):
    for x, y in run.loader:
        run.backward(x, y)
        run.optimizer.step()
        run.optimizer.zero_grad()


@loop("no zero_grad at all")
def _never(run):
    for x, y in run.loader:
        run.backward(x, y)
        run.optimizer.step()


@loop("two worker processes that fetch ahead", workers=2)
def _workers(run):
    _plain(run)


@loop("accumulation_steps=4, step after the last", accumulation_steps=4)
def _accumulation(run):
    for i, (x, y) in enumerate(run.loader):
        run.backward(x, y)
        if (i + 1) % 4 == 0:
            run.optimizer.step()
            run.optimizer.zero_grad()


@loop("BatchMemoryManager")
def _memory(run):
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as loader:
        for x, y in loader:
            run.step(x, y)


@loop("BatchMemoryManager, left by break")
def _memory_left(run):
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer) as loader:
        for i, (x, y) in enumerate(loader):
            run.step(x, y)
            if i == 6:
                break
    _plain(run)


@loop("evaluation on other data between steps")
def _evaluation(run):
    for x, y in run.loader:
        run.step(x, y)
        run.module.eval()
        with torch.no_grad():
            run.module(run.data[:8][0])
        run.module.train()


@loop("islice(loader, 3), twice")
def _sliced(run):
    for _ in range(2):
        for x, y in itertools.islice(run.loader, 3):
            run.step(x, y)


@loop("next(iter(loader)) at each step")
def _first(run):
    for _ in range(6):
        run.step(*next(iter(run.loader)))


@loop("scheduler of the noise")
def _scheduled(run):
    scheduler = ExponentialNoise(run.optimizer, gamma=0.9)
    for x, y in run.loader:
        run.step(x, y)
        scheduler.step()


@loop("step(closure)")
def _closure(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.backward(x, y)
        run.optimizer.step(lambda: None)


@loop("criterion of one's own, a loss per example")
def _own_criterion(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        losses = nn.functional.cross_entropy(run.module(x), y, reduction="none")
        PrivateLoss(run.module.engine, losses).backward()
        run.optimizer.step()


@loop("bfloat16 autocast")
def _autocast(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run.criterion(run.module(x), y)
        loss.backward()
        run.optimizer.step()


@loop("a checkpoint, loaded in the middle")
def _checkpoint(run):
    with tempfile.TemporaryDirectory() as folder:
        for i, (x, y) in enumerate(run.loader):
            run.step(x, y)
            if i == 1:
                run.engine.save_checkpoint(path=f"{folder}/half", module=run.module, optimizer=run.optimizer)
        run.engine.load_checkpoint(path=f"{folder}/half", module=run.module, optimizer=run.optimizer)
    _plain(run)
