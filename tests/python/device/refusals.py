"""Scenarios of one_rank_main.py in which a model is refused, or must not be: each gives the sentence, or "" if none came."""

from __future__ import annotations

from collections.abc import Callable

import torch
from models import CASES, class_loss
from on_device import DEVICE, there, tossed
from private import Private
from torch import nn

MLP = next(case for case in CASES if case.name == "mlp")


def sentence(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def partly() -> str:
    model = MLP.build()
    model[2].to(DEVICE)
    return sentence(lambda: Private(model, 1.0))


def on_meta() -> str:
    model = MLP.build()
    model[2].to("meta")
    return sentence(lambda: Private(model.to("meta"), 1.0))


class Mask(nn.Module):
    """Dropout with coins of the device's own generator; meeting: one row of coins decides for all examples' values."""

    def __init__(self, *, meeting: bool):
        super().__init__()
        self.meeting = meeting

    def forward(self, x):
        mask = tossed(x.shape) < 0.5
        y = x * mask
        return y + y.mean(0, keepdim=True).detach() if self.meeting else y


def coins_of_the_device(*, meeting: bool) -> str:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 8), Mask(meeting=meeting), nn.Linear(8, 3)).to(DEVICE)
    private = Private(model, 1.0)
    return sentence(lambda: private.step(class_loss, there(MLP.batches())))


def moved_within_a_step() -> str:
    torch.manual_seed(7)
    model, batches = MLP.build(), MLP.batches()
    private = Private(model, 1.0)
    private.backward(MLP.loss, batches[0])
    model.to(DEVICE)
    return sentence(lambda: private.backward(MLP.loss, there(batches[1])))


SCENARIOS = {
    "partly_on_the_device": partly,
    "on_meta": on_meta,
    "coins_come_again": lambda: coins_of_the_device(meeting=False),
    "examples_meet": lambda: coins_of_the_device(meeting=True),
    "moved_within_a_step": moved_within_a_step,
}
