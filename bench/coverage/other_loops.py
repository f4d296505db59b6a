"""Loops whose steps are not simply one draw each."""

from __future__ import annotations

import itertools

import torch
from loop import loop
from torch import nn

from ghostshard import vouch_for
from ghostshard.ghost.loss import PrivateLoss


@loop("a step for every second draw")
def _two_draws(run):
    for i, (x, y) in enumerate(run.loader):
        run.backward(x, y)
        if i % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()


@loop("a loader of one's own")
def _own_loader(run):
    for x, y in run.plain:
        run.step(x, y)


@loop("a loader of one's own beside the private one")
def _beside(run):
    for (x, y), (x2, y2) in zip(run.loader, run.plain):
        run.step(torch.cat([x2, x])[: len(x) + 1], torch.cat([y2, y])[: len(y) + 1])


@loop("as many examples of one's own in the place of the private loader's")
def _replaced(run):
    for drawn, (x, y) in zip(run.loader, run.plain):
        run.step(x[: len(drawn[0])], y[: len(drawn[0])])


@loop("the first half of each batch replaced by other examples")
def _half_replaced(run):
    for (x, y), (x2, y2) in zip(run.loader, run.plain):
        half = len(x) // 2
        run.step(torch.cat([x2[:half], x[half:]]), torch.cat([y2[:half], y[half:]]))


@loop("mixup within the batch")
def _mixup(run):
    for x, y in run.loader:
        run.step(0.5 * x + 0.5 * x[torch.randperm(len(x))], y)


@loop("mixup with a second loader")
def _mixup_with_others(run):
    for (x, y), (x2, _) in zip(run.loader, run.plain):
        run.step(0.5 * x + 0.5 * x2[: len(x)], y)


@loop("statistics of the batch")
def _statistics(run):
    for x, y in run.loader:
        run.step((x - x.mean(0)) / x.std(0), y)


@loop("labels of other examples")
def _other_labels(run):
    for (x, y), (_, y2) in zip(run.loader, run.plain):
        run.step(x, y2[: len(y)])


def _others(run, x):
    return run.data[:][0][: len(x)]


@loop("statistics of the batch, of the model's outputs")
def _centred_outputs(run):
    for x, y in run.loader:
        out = run.module(x)
        run.criterion(out - out.detach().mean(0), y).backward()


@loop("values of other examples, added to the model's outputs")
def _others_in_outputs(run):
    for x, y in run.loader:
        run.criterion(run.module(x) + _others(run, x)[:, :3], y).backward()


@loop("labels of other examples, in losses of one's own")
def _others_in_losses(run):
    for (x, y), (_, y2) in zip(run.loader, run.plain):
        losses = nn.functional.cross_entropy(run.module(x), y2[: len(y)], reduction="none")
        PrivateLoss(run.module.engine, losses).backward()


@loop(
    "statistics of the batch, within a criterion",
    criterion=lambda out, y: nn.functional.cross_entropy(out - out.detach().mean(0), y, reduction="none"),
)
def _centring_criterion(run):
    for x, y in run.loader:
        run.step(x, y)


@loop("a forward pre-hook that puts other examples in")
def _hooked(run):
    run.model.register_forward_pre_hook(lambda _, args: (_others(run, args[0]),))
    for x, y in run.loader:
        run.step(x, y)


@loop("weights, margins and noise of each example, between model and criterion")
def _between(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        out = run.module(x)
        weights = (1 - out.detach().softmax(1).gather(1, y[:, None])) ** 2
        run.criterion((out - 0.3 * torch.eye(3)[y] + 0.1 * torch.randn_like(out)) * weights, y).backward()
        run.optimizer.step()


@loop("the batch in another order")
def _permuted(run):
    for x, y in run.loader:
        order = torch.randperm(len(x))
        run.step(x[order], y[order])


@loop("noise, casts and crops of each example (augmentation in the loop)")
def _augmented(run):
    for x, y in run.loader:
        noisy = x.double() + 0.1 * torch.randn_like(x.double()) * (torch.rand_like(x[:, :1].double()) < 0.5)
        run.step(torch.cat([x[:, :1], noisy[:, 1:].clamp(-3, 3).float()], 1), y)


@loop("through NumPy and back")
def _numpy(run):
    for x, y in run.loader:
        run.step(torch.from_numpy(x.numpy().copy()), torch.from_numpy(y.numpy().copy()))


@loop("changed by NumPy")
def _changed_by_numpy(run):
    for x, y in run.loader:
        run.step(torch.from_numpy(x.numpy() + 0.01), y)


@loop("changed by NumPy, and vouched for", allow_vouched=True)
def _vouched(run):
    for x, y in run.loader:
        run.step(vouch_for(torch.from_numpy(x.numpy() + 0.01)), y)


@loop("own_batches=True", own_batches=True)
def _own_batches(run):
    _own_loader(run)


@loop("poisson_sampling=False", poisson_sampling=False)
def _uniform(run):
    for x, y in run.loader:
        run.step(x, y)


@loop("own_batches=True, one batch at every step", own_batches=True)
def _one_batch(run):
    x, y = run.data[:8]
    for _ in range(5):
        run.step(x, y)


@loop("the same batch for three steps")
def _thrice(run):
    for x, y in run.loader:
        for _ in range(3):
            run.step(x, y)


@loop("two backwards over one batch (discriminator and generator)")
def _twice(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.backward(x, y)
        run.backward(x, y)
        run.optimizer.step()


@loop("the sum of two losses of one batch")
def _two_losses(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        logits = run.module(x)
        (run.criterion(logits, y) + 0.5 * run.criterion(2 * logits, y)).backward()
        run.optimizer.step()


@loop("continue after a backward, if the loss is large")
def _continue(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        loss = run.criterion(run.module(x), y)
        loss.backward()
        if loss.item() > 0.5:
            continue
        run.optimizer.step()


@loop("continue before a backward, if the loss is large")
def _passed_over(run):
    for i, (x, y) in enumerate(run.loader):
        if i % 2:
            continue
        run.step(x, y)


@loop("zero_grad drops a batch")
def _dropped(run):
    for i, (x, y) in enumerate(run.loader):
        run.optimizer.zero_grad()
        run.backward(x, y)
        if i == 2:
            run.optimizer.zero_grad()
            continue
        run.optimizer.step()


@loop("half of each batch")
def _half(run):
    for x, y in run.loader:
        run.step(x[: len(x) // 2], y[: len(y) // 2])


@loop("two batches in one")
def _joined(run):
    for (x, y), (x2, y2) in zip(run.loader, run.loader):
        run.step(torch.cat([x, x2]), torch.cat([y, y2]))


@loop("list(loader)")
def _listed(run):
    for x, y in list(run.loader):
        run.step(x, y)


@loop("itertools.cycle(loader)")
def _cycled(run):
    for x, y in itertools.islice(itertools.cycle(run.loader), 12):
        run.step(x, y)


@loop("a batch kept for replay")
def _replayed(run):
    kept = None
    for x, y in run.loader:
        run.step(*(kept or (x, y)))
        kept = kept or (x, y)


@loop("two copies of each example, as augmentation")
def _copies(run):
    for x, y in run.loader:
        run.step(x.repeat(2, 1), y.repeat(2))


@loop("two copies of each example, with units=")
def _joined_copies(run):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.criterion(run.module(x.repeat(2, 1), units=torch.arange(len(x)).repeat(2)), y.repeat(2)).backward()
        run.optimizer.step()


@loop("a new layer after make_private")
def _late(run):
    for i, (x, y) in enumerate(run.loader):
        if i == 1:
            run.model.append(nn.Linear(3, 3))
            run.optimizer.add_param_group({"params": list(run.model[-1].parameters())})
        run.step(x, y)


@loop("an error in the middle of a pass, and on")
def _error(run):
    for i, (x, y) in enumerate(run.loader):
        try:
            run.step(x[:, :3] if i == 1 else x, y)
        except (RuntimeError, ValueError):
            if i != 1:
                raise
