"""Loops that read numbers of a batch, or mix examples outside of what a loop does with tensors."""

from __future__ import annotations

import numpy as np
import torch
from loop import loop
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn


def _each(run, form):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        form(x, y).backward()
        run.optimizer.step()


@loop("loss.item() and an accuracy by NumPy, before the backward")
def _metrics(run):
    def form(x, y):
        out = run.module(x)
        loss = run.criterion(out, y)
        run.seen = loss.item(), (np.argmax(out.detach().numpy(), axis=1) == y.numpy()).mean()
        return loss

    _each(run, form)


@loop("an accuracy before the criterion, and an assertion")
def _accuracy(run):
    def form(x, y):
        assert torch.isfinite(x).all()
        out = run.module(x)
        run.seen = (out.argmax(1) == y).float().mean().item()
        return 0.5 * run.criterion(out, y)

    _each(run, form)


@loop("a weight of the loss that is annealed")
def _annealed(run):
    weights = iter(0.9**i for i in range(100))
    _each(run, lambda x, y: next(weights) * run.criterion(run.module(x), y))


@loop("a mean of the batch's labels, as a weight of the loss")
def _mean(run):
    _each(run, lambda x, y: y.float().mean().item() * run.criterion(run.module(x), y))


@loop("the loss, divided by its own value")
def _own_value(run):
    def form(x, y):
        loss = run.criterion(run.module(x), y)
        return loss / loss.item()

    _each(run, form)


@loop("the loss, divided by an average of earlier ones")
def _average(run):
    average = [1.0]

    def form(x, y):
        loss = run.criterion(run.module(x), y) / average[0]
        average[0] = 0.9 * average[0] + 0.1 * loss.item()
        return loss

    _each(run, form)


@loop("a threshold that NumPy finds in the batch")
def _threshold(run):
    _each(run, lambda x, y: run.criterion(run.module(x) * (x[:, 1:2] > float(np.median(x.numpy()[:, 1]))), y))


@loop("the loss, divided by len(x)")
def _length(run):
    _each(run, lambda x, y: run.criterion(run.module(x), y) / len(x))


@loop("ReduceLROnPlateau on the batch's loss")
def _plateau(run):
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(run.optimizer)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        loss = run.criterion(run.module(x), y)
        loss.backward()
        run.optimizer.step()
        scheduler.step(loss.item())


def _mixing(examples):
    x, y = (torch.stack(each) for each in zip(*examples))
    return torch.cat([x[:, :1], 0.5 * x[:, 1:] + 0.5 * x[:, 1:].roll(1, 0)], 1), y


@loop("mixup in the collate_fn", collate=_mixing)
def _collated(run):
    for x, y in run.loader:
        run.step(x, y)


def _padding(examples):
    x = nn.utils.rnn.pad_sequence([x[: 6 - int(y)] for x, y in examples], batch_first=True)
    x = nn.functional.pad(x, (0, 6 - x.shape[1]))
    return torch.cat([x[:, :1], x[:, 1:] + 0.1 * torch.randn_like(x[:, 1:])], 1), torch.stack([y for _, y in examples])


@loop("padding and noise in the collate_fn", collate=_padding)
def _padded(run):
    for x, y in run.loader:
        run.step(x, y)


@loop("values of others in physical batches of one")
def _alone(run):
    order = iter(range(40))
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=1, optimizer=run.optimizer) as loader:
        for x, y in loader:
            if len(x):
                run.optimizer.zero_grad()
                run.criterion(run.module(x) + run.data[next(order)][0][None, :3], y).backward()
                run.optimizer.step()


@loop("a hook that divides gradients by the norm of all")
def _hooked_gradients(run):
    def form(x, y):
        out = run.module(x)
        out.register_hook(lambda gradient: gradient / gradient.norm())
        return run.criterion(out, y)

    _each(run, form)


class _Averaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x):
        self.average.lerp_(x.detach().mean(0), 0.1)
        return self.layer(x)


@loop("a buffer that averages the batches", model=_Averaging)
def _averaging(run):
    for x, y in run.loader:
        run.step(x, y)
