"""A few private steps over a data set of a test's own."""

import torch
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine


def steps_of(loss, model, criterion, data, collate, count):
    """How many went through of `count`. loss(module, criterion, batch)."""
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=6, collate_fn=collate),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=criterion, grad_sample_mode="ghost",
    )  # fmt: skip
    done = 0
    for batch in loader:
        optimizer.zero_grad()
        loss(module, criterion, batch).backward()
        optimizer.step()
        done += 1
        if done == count:
            break
    return done
