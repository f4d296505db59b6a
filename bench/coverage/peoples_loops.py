"""Loops as tutorials, trainers and wrappers have them: early stops, averages of weights, finders of learning rates, prefetchers."""

from __future__ import annotations

import copy

import torch
from loop import loop
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel


@loop("early stopping on held-out data")
def _early_stop(run):
    held = run.data[:8]
    for _ in range(3):
        for i, (x, y) in enumerate(run.loader):
            run.step(x, y)
            with torch.no_grad():
                loss = functional.cross_entropy(run.module(held[0]), held[1])
            if loss < 100 and i == 2:
                break


@loop("max_steps, over as many passes as it takes")
def _max_steps(run):
    done, batches = 0, iter(run.loader)
    while done < 7:
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(run.loader)
            continue
        run.step(x, y)
        done += 1


@loop("a finder of learning rates, which puts the weights back")
def _finder(run):
    weights, state, lr = copy.deepcopy(run.model.state_dict()), copy.deepcopy(run.optimizer.state_dict()), 1e-5
    for x, y in run.loader:
        for group in run.optimizer.param_groups:
            group["lr"] = lr
        run.step(x, y)
        lr *= 3
    run.model.load_state_dict(weights)
    run.optimizer.load_state_dict(state)
    for x, y in run.loader:
        run.step(x, y)


@loop("stochastic weight averaging, with its scheduler")
def _averaged(run):
    average, scheduler = AveragedModel(run.model), SWALR(run.optimizer, swa_lr=0.005)
    for x, y in run.loader:
        run.step(x, y)
        average.update_parameters(run.model)
        scheduler.step()


@loop("a copy of the weights that follows them (EMA), and is evaluated")
def _followed(run):
    slow = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    for x, y in run.loader:
        run.step(x, y)
        with torch.no_grad():
            for mine, theirs in zip(slow.parameters(), run.model.parameters()):
                mine.lerp_(theirs, 0.1)
            slow(x)


@loop("weights clamped after each step (WGAN)")
def _clamped(run):
    for x, y in run.loader:
        run.step(x, y)
        with torch.no_grad():
            for p in run.model.parameters():
                p.clamp_(-0.5, 0.5)


@loop("another optimizer beneath, from the middle on")
def _swapped_beneath(run):
    for i, (x, y) in enumerate(run.loader):
        if i == 2:
            run.optimizer.original_optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01)
        run.step(x, y)


@loop("a plain optimizer in the place of the private one, from the middle on")
def _swapped(run):
    optimizer = run.optimizer
    for i, (x, y) in enumerate(run.loader):
        if i == 2:
            optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01)
        run.backward(x, y)
        optimizer.step()


@loop("a second optimizer after each step")
def _second(run):
    other = torch.optim.SGD(run.model[2].parameters(), lr=0.01)
    for x, y in run.loader:
        run.step(x, y)
        other.step()


@loop("zero_grad(set_to_none=False)")
def _zeros(run):
    for x, y in run.loader:
        run.optimizer.zero_grad(set_to_none=False)
        run.backward(x, y)
        run.optimizer.step()


@loop("step(closure), with zero_grad, forward and backward in it")
def _whole_closure(run):
    for x, y in run.loader:

        def closure():
            run.optimizer.zero_grad()
            loss = run.criterion(run.module(x), y)
            loss.backward()
            return loss

        run.optimizer.step(closure)


@loop("clip_grad_norm_ before the step, and by pre_step() before the optimizer beneath")
def _clipped(run):
    for i, (x, y) in enumerate(run.loader):
        run.optimizer.zero_grad()
        run.backward(x, y)
        nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)  # there is nothing yet
        if i % 2:
            run.optimizer.step()
        elif run.optimizer.pre_step():
            nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            run.optimizer.original_optimizer.step()


@loop("a look at the batch in evaluation mode and without gradients, before and after the step")
def _looked_at(run):
    for x, y in run.loader:
        run.module.eval()
        with torch.inference_mode():
            run.module(x)
        run.module.train()
        run.step(x, y)
        with torch.no_grad():
            run.module(x).argmax(1).eq(y).sum()


@loop("trained in evaluation mode")
def _eval(run):
    run.module.eval()
    for x, y in run.loader:
        run.step(x, y)


@loop("batches by a generator function, on a device (accelerate)")
def _generated(run):
    def batches():
        for batch in run.loader:
            yield tuple(each.to("cpu", non_blocking=True) for each in batch)

    for x, y in batches():
        run.step(x, y)


@loop("a prefetcher that holds the next batch")
def _prefetched(run):
    batches = iter(run.loader)
    ahead = next(batches)
    while ahead is not None:
        now, ahead = ahead, next(batches, None)
        run.step(*now)


class _Wrapped:
    """As progress bars and DataLoader2 wrap a loader."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        yield from self.loader


@loop("a loader wrapped in an object with a length")
def _wrapped(run):
    for _ in range(2):
        for x, y in _Wrapped(run.loader):
            run.step(x, y)


@loop("random batches by index, own_batches=True (nanoGPT's get_batch)", own_batches=True)
def _get_batch(run):
    for step in range(3):
        at = torch.randperm(40, generator=torch.Generator().manual_seed(step))[:8]
        x, y = run.data[at]
        run.step(x, y)


@loop("training_step gives a dict, the trainer divides its loss by accumulation_steps (Lightning)", accumulation_steps=2)
def _trained(run):
    def training_step(batch):
        x, y = batch
        return {"loss": run.criterion(run.module(x), y)}

    for i, batch in enumerate(run.loader):
        (training_step(batch)["loss"] / 2).backward()
        if (i + 1) % 2 == 0:
            run.optimizer.step()
            run.optimizer.zero_grad()
