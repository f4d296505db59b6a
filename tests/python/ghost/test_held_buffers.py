"""Buffers that a loop writes to between two forwards: refused, unless nobody learns anything of it."""

import copy

import numpy as np
import pytest
import torch
from private_run import Run
from torch import nn

from ghostshard.ghost.checks.held_buffers import HeldBuffers

REFUSED = "is not what the last forward left"


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(6))
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("order", torch.arange(6))
        self.register_buffer("taken", torch.ones(6, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.int))

    def forward(self, x):
        self.calls += 1
        self.seen[self.calls % 4] += 1
        return self.layer((x - self.centre)[:, self.order] * self.taken) / self.temperature


def trained(run, deed):
    for step, (x, y) in enumerate(run.loader):
        deed(run.model, x, step)
        run.step(x, y)


def copies(model, x, step):
    model.centre.copy_(x.mean(0))


def assigns(model, x, step):
    model.centre = x.mean(0)


def by_numpy(model, x, step):
    model.centre.copy_(torch.from_numpy(x.numpy().mean(0)))


def orders_columns(model, x, step):
    model.order.copy_(torch.from_numpy(np.argsort(x.numpy()[step])))


def takes_columns(model, x, step):
    model.taken = torch.from_numpy(x.numpy().mean(0) > 0)


def swaps_data(model, x, step):
    model.centre.data = x.mean(0)


def one_number(model, x, step):
    model.temperature.copy_(1 + x.mean().abs())


def loads(model, x, step):
    model.load_state_dict(model.state_dict() | {"centre": torch.from_numpy(x.numpy()[step])})


@pytest.mark.parametrize("deed", [copies, assigns, by_numpy, orders_columns, takes_columns, swaps_data, one_number, loads], ids=lambda deed: deed.__name__)
def test_values_of_a_batch_are_no_buffers(deed):
    run = Run(model=Centred())
    with pytest.raises((RuntimeError, ValueError), match=f"{REFUSED}|by another way than its arguments"):  # what is followed is met in the forward before
        trained(run, deed)
    assert run.charged <= 1


def anneals(model, x, step):
    model.temperature.fill_(0.9**step)


def nothing(model, x, step):
    pass


def counts_on(model, x, step):
    model.calls += 7


class PutBack:
    """After an evaluation with others."""

    def __call__(self, model, x, step):
        before = copy.deepcopy(model.state_dict())
        model.centre.copy_(torch.arange(6.0))
        with torch.no_grad():
            model(torch.ones(2, 6))
        model.load_state_dict(before)


def before_the_first(model, x, step):
    if step == 0:
        model.centre.copy_(torch.arange(6.0))


@pytest.mark.parametrize("deed", [anneals, nothing, counts_on, PutBack(), before_the_first], ids=["anneals", "nothing", "counts", "put back", "before"])
def test_what_nobody_learns_of_is_taken(deed):
    run = Run(model=Centred())
    trained(run, deed)
    assert run.charged == 5


def test_the_users_word_is_taken():
    run = Run(model=Centred(), allow_vouched=True)
    trained(run, lambda model, x, step: model.centre.copy_(torch.arange(6.0) * step))
    assert run.charged == 5


class Turning(nn.Module):
    """Its own forward changes a buffer, by numbers of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("turned", torch.arange(6.0))

    def forward(self, x):
        out = self.layer(x + self.turned)
        self.turned.copy_(self.turned.roll(1))
        return out


def test_what_a_forward_does_to_its_buffers_is_its_own():
    run = Run(model=Turning(), attribution_check=False)
    trained(run, nothing)
    assert run.charged == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_what_an_evaluation_writes_is_seen_in_every_type(dtype):
    model = nn.Module()
    model.register_buffer("mean", torch.zeros(6).to(dtype))
    buffers = HeldBuffers(model)
    buffers.looked_on(buffers.look_on())
    assert buffers.changed() == ""
    before = buffers.look_on()
    model.mean.copy_(torch.arange(6.0).to(dtype))
    buffers.looked_on(before)
    assert "buffer 'mean'" in buffers.changed()
