"""Ways in which people write a training loop, with the epsilon that the engine states beside the epsilon of what was executed
(recorded.py)."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from one_step import judged
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from recorded import Run
from torch import nn

from ghostshard.ghost.loss import PrivateLoss


# Not noticed: docs/guarantee.md says so.
GAP = "as many examples of one's own in the place of the private loader's"


@dataclass(frozen=True)
class Loop:
    name: str
    body: Callable[[Run], None]
    options: dict


LOOPS: list[Loop] = []


def loop(name: str, **options: Any) -> Callable:
    def keep(body: Callable[[Run], None]) -> Callable[[Run], None]:
        LOOPS.append(Loop(name, body, options))
        return body

    return keep


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


@loop(GAP)
def _replaced(run):
    for drawn, (x, y) in zip(run.loader, run.plain):
        run.step(x[: len(drawn[0])], y[: len(drawn[0])])


@loop("own_batches=True", own_batches=True)
def _own_batches(run):
    _own_loader(run)


@loop("poisson_sampling=False", poisson_sampling=False)
def _uniform(run):
    _plain(run)


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


def outcome(each: Loop) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(**each.options)

        def ran() -> float:
            each.body(run)
            return 0.0

        verdict = judged(ran)
        kind = "taken" if verdict.kind == "right" else verdict.kind
        return {"loop": each.name, "kind": kind, "said": verdict.said, "stated": run.stated, "executed": run.recorded.epsilon(),
                "releases": len(run.recorded.releases)}  # fmt: skip


__all__ = ["GAP", "LOOPS", "outcome"]
