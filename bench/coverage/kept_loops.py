"""Loops in which things are kept between batches, or train beside the model."""

from __future__ import annotations

import copy

import torch
from loop import loop
from torch import nn
from torch.nn import functional


def _each(run, form):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        form(x, y).backward()
        run.optimizer.step()


class _Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.before = nn.Linear(6, 3), 0.0

    def forward(self, x):
        out = self.layer(x) + self.before
        self.before = 0.1 * out.detach().mean(0)
        return out


@loop("a memory of the batch before, in an attribute of the model", model=_Remembering)
def _remembering(run):
    for x, y in run.loader:
        run.step(x, y)


class _Logging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.log = nn.Linear(6, 3), 0, []

    def forward(self, x):
        self.calls += 1
        self.log.append(x.detach().mean())
        return self.layer(x)


@loop("a counter and a log, in attributes of the model", model=_Logging)
def _logging(run):
    for x, y in run.loader:
        run.step(x, y)
    assert run.model.calls == len(run.model.log) == 5


@loop("a learnt temperature with an optimizer of its own")
def _temperature(run):
    scale = nn.Parameter(torch.ones(()))
    beside = torch.optim.SGD([scale], lr=0.1)

    def form(x, y):
        beside.zero_grad()
        return run.criterion(run.module(x) * scale, y)

    for x, y in run.loader:
        form(x, y).backward()
        run.optimizer.step()
        beside.step()


@loop("an encoder before the model, which trains beside it")
def _encoder(run):
    encoder = nn.Linear(6, 6)
    _each(run, lambda x, y: run.criterion(run.module(torch.tanh(encoder(x))), y))


@loop("torch.func.functional_call with other weights")
def _functional(run):
    weights = {name: 2 * value for name, value in run.model.named_parameters()}
    _each(run, lambda x, y: run.criterion(torch.func.functional_call(run.model, weights, (x,)), y))


@loop("a mask on a weight's gradient, by register_hook")
def _masked(run):
    next(run.model.parameters()).register_hook(lambda gradient: gradient * 0)
    _each(run, lambda x, y: run.criterion(run.module(x), y))


@loop("if not torch.isfinite(loss): raise")
def _finite(run):
    def form(x, y):
        loss = run.criterion(run.module(x), y)
        if not torch.isfinite(loss):
            raise FloatingPointError
        return loss

    _each(run, form)


@loop("a teacher that is an average of the model's weights", criterion=lambda out, targets: (out - targets).pow(2).sum(1))
def _teacher(run):
    teacher = copy.deepcopy(run.model)

    def form(x, y):
        with torch.no_grad():
            targets = functional.softmax(teacher(x), 1)
        return run.criterion(run.module(x), targets)

    for x, y in run.loader:
        run.optimizer.zero_grad()
        form(x, y).backward()
        run.optimizer.step()
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), run.model.parameters()):
                mine.lerp_(its, 0.1)
