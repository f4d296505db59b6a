"""The memory that a private step keeps and uses again."""

import torch
from private import Private
from torch import nn

from ghostshard.ghost.cross_entropy import cross_entropy


def resident_mib() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def test_memory_of_logits_is_used_again():
    private = Private(nn.Sequential(nn.Linear(4, 8192)), 1.0)
    batch = torch.randn(4, 256, 4), torch.randint(8192, (4, 256))  # 32 MiB of logits, as many of their gradients

    def loss(module, batch):
        return cross_entropy(module(batch[0]).transpose(1, 2), batch[1]).mean(1)

    private.step(loss, [batch, batch])
    kept = resident_mib()
    for _ in range(3):
        private.step(loss, [batch, batch])
    assert abs(resident_mib() - kept) < 12, "later steps use the same memory"
