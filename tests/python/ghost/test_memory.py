"""The memory that a private step keeps, and when it gives it back."""

import pytest
import torch
from private import Private
from torch import nn

from ghostshard.ghost.cross_entropy import cross_entropy


def resident_mib() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("evaluation", [False, True])
def test_memory_of_logits_is_used_again_and_goes_back_before_the_next_forward(evaluation):
    private = Private(nn.Sequential(nn.Linear(4, 16384)), 1.0)
    batch = torch.randn(4, 512, 4), torch.randint(16384, (4, 512))  # 128 MiB of logits, as many of their gradients

    def loss(module, batch):
        return cross_entropy(module(batch[0]).transpose(1, 2), batch[1]).mean(1)

    private.step(loss, [batch])
    kept = resident_mib()
    private.step(loss, [batch, batch])
    assert abs(resident_mib() - kept) < 48, "later steps use the same memory"
    with torch.set_grad_enabled(not evaluation):
        private.module(batch[0][:1, :1])
    assert kept - resident_mib() > 200
