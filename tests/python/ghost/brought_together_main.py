"""Two ranks that bring values of their batches together, and ranks that set a criterion or autocast otherwise: writes each rank's errors. See test_brought_together.py.

    torchrun --nproc_per_node 2 brought_together_main.py results.json
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as with_gradients
from leaving import report_and_leave
from private_run import prescribe
from together_main import Run, said_by_each
from torch import nn

SIZES = (4, 4, 4, 4, 4, 4, 4, 4)
Deed = Callable[[Run, torch.Tensor, torch.Tensor], Any]


def rank_1() -> bool:
    return dist.get_rank() == 1


def other() -> int:
    return 1 - dist.get_rank()


def sent_and_received(given: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    works = [dist.isend(given.clone(), other()), dist.irecv(into, other())]
    for work in works:
        work.wait()
    return into


def received_by_one(x: torch.Tensor) -> None:
    dist.recv(x, 0) if rank_1() else dist.send(x, 1)


def gathered(value: Any) -> list:
    every: list = [None, None]
    dist.all_gather_object(every, value)
    return every


def sent_by_the_first(value: Any) -> Any:
    every = [value]
    dist.broadcast_object_list(every, 0)
    return every[0]


def summed(value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)
    return value


def on_the_input(call: Callable[[torch.Tensor], Any]) -> Deed:
    def deed(run: Run, x: torch.Tensor, y: torch.Tensor) -> Any:
        found = call(x)
        return run.criterion(run.module(found if isinstance(found, torch.Tensor) else x), y)

    return deed


def on_the_output(call: Callable[[torch.Tensor], torch.Tensor]) -> Deed:
    return lambda run, x, y: run.criterion(call(run.module(x)), y)


def chosen_by(call: Callable[[Any], Any]) -> Deed:
    """The loss, twice where what ranks brought together of it is larger than in the draw before."""

    def deed(run: Run, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = run.criterion(run.module(x), y)
        before, run.latest = getattr(run, "latest", 0.0), call(loss)
        return loss * 2 if run.latest > before else loss

    return deed


def the_rate_follows(run: Run, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = run.criterion(run.module(x), y)
    run.optimizer.param_groups[0]["lr"] = 0.1 * summed(torch.tensor(loss.item())).item()
    return loss


REFUSED: dict[str, Deed] = {
    "all_reduce of the input": on_the_input(lambda x: dist.all_reduce(x)),
    "broadcast of the input": on_the_input(lambda x: dist.broadcast(x, 0)),
    "broadcast of its data": on_the_input(lambda x: dist.broadcast(x.data, 0)),
    "recv into the input": on_the_input(received_by_one),
    "irecv into the input": on_the_input(lambda x: sent_and_received(x, x)),
    "irecv into one like it": on_the_input(lambda x: sent_and_received(x, torch.empty_like(x))),
    "all_to_all of the input": on_the_input(lambda x: dist.all_to_all_single(found := torch.empty_like(x), x) or found),
    "all_reduce of the outputs' memory": on_the_output(lambda out: out + 0 * summed(out.detach())),
    "all_reduce of a copy of the outputs": on_the_output(lambda out: out + 0.1 * summed(out.detach().clone())),
    "a group's own method": on_the_output(lambda out: dist.group.WORLD.allreduce([found := out.detach().clone()]).wait() and out + 0.1 * found),
    "all_reduce with gradients": on_the_output(with_gradients.all_reduce),
    "broadcast with gradients": on_the_output(lambda out: with_gradients.broadcast(out, 0)),
    "functional all_reduce": on_the_output(lambda out: out - functional.all_reduce(out.detach(), "avg", [0, 1])),
    "functional all_gather with gradients": on_the_output(lambda out: functional.all_gather_tensor_autograd(out, 0, [0, 1])[:4]),
    "an object": on_the_output(lambda out: out + 0.1 * gathered(out.detach())[other()]),
    "a weight of read losses": lambda run, x, y: (loss := run.criterion(run.module(x), y)) * summed(torch.tensor(loss.item())),
    "a choice by read losses": chosen_by(lambda loss: summed(torch.tensor(loss.item())).item()),
    "a choice by gathered losses": chosen_by(lambda loss: max(gathered(loss.item()))),
    "a choice by a sent loss": chosen_by(lambda loss: sent_by_the_first(loss.item())),
    "a learning rate of read losses": the_rate_follows,
}


def shown(call: Callable[[Any, torch.Tensor], Any]) -> Deed:
    """What is called with losses and outputs once the loss is formed, for people."""

    def deed(run: Run, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = run.module(x)
        loss = run.criterion(out, y)
        assert str(call(loss, out))
        return loss

    return deed


GO_ON: dict[str, Deed] = {
    "a mean loss": shown(lambda loss, out: summed(torch.tensor(loss.item())).item() / 2),
    "a copied loss": shown(lambda loss, out: summed(loss.detach().clone()).item() / 2),
    "losses and a count": shown(lambda loss, out: summed(torch.tensor([loss.item(), 4.0])).tolist()),
    "gathered means of outputs": shown(lambda loss, out: with_gradients.all_gather(out.detach().mean(0))[0].sum()),
    "a functional mean": shown(lambda loss, out: functional.all_reduce(out.detach().mean(0), "avg", [0, 1]).sum().item()),
    "an object": shown(lambda loss, out: gathered({"loss": loss.item(), "out": out.detach()})[0]["loss"]),
    "received outputs": shown(lambda loss, out: sent_and_received(out.detach(), torch.empty(4, 3)).sum().item()),
    "a public weight": lambda run, x, y: run.criterion(run.module(x), y) * summed(torch.tensor(0.3141)).item(),
    "a public rate": lambda run, x, y: run.optimizer.param_groups[0].update(lr=summed(torch.tensor(0.05)).item()) or run.criterion(run.module(x), y),
}


def every_batch(run: Run, deed: Deed) -> None:
    prescribe(run.loader, SIZES)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        deed(run, x, y).backward()
        run.optimizer.step()


def from_the_third_on(run: Run, change: Callable[[Run], Any]) -> None:
    prescribe(run.loader, SIZES)
    for number, (x, y) in enumerate(run.loader):
        if number == 2:
            change(run)
        run.step_of(x, y)
    torch.set_autocast_enabled("cpu", False)


class OnBatches(Run):
    def step_of(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.criterion(self.module(x), y).backward()
        self.optimizer.step()


def smooth(run: Run) -> None:
    run.criterion.label_smoothing = 0.3


def weigh(run: Run) -> None:
    run.criterion.weight = torch.tensor([1.0, 5.0, 1.0])


def cast(_run: Run) -> None:
    torch.set_autocast_enabled("cpu", True)


def double(run: Run) -> None:
    run.model.double()


def evaluate_otherwise(run: Run) -> None:
    """With another criterion's settings and autocast, which are put back."""
    with torch.no_grad(), torch.autocast("cpu"):
        run.criterion.label_smoothing = 0.0
        run.criterion(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    run.criterion.label_smoothing = 0.1


class Counting(nn.CrossEntropyLoss):
    """Keeps its own loss and a word of it, which ranks have each their own of."""

    latest, seen = 0.0, ""

    def forward(self, *args: Any) -> torch.Tensor:
        losses = super().forward(*args)
        self.latest, self.seen = float(losses.detach().sum()), f"{dist.get_rank()}"
        return losses


UNLIKE = {"smooth": smooth, "weigh": weigh, "cast": cast, "double": double}


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found: dict = {}
    for name, deed in REFUSED.items():
        found[f"refused {name}"] = said_by_each(lambda: every_batch(Run(sharded=False), deed))
    for name, deed in GO_ON.items():
        found[f"goes on {name}"] = said_by_each(lambda: every_batch(Run(sharded=False), deed))
    for kind, sharded in (("sharded", True), ("replicas", False)):
        for name, change in UNLIKE.items():
            if sharded or change is not double:
                found[f"unlike {kind} {name}"] = said_by_each(lambda: from_the_third_on(OnBatches(sharded=sharded), lambda run: change(run) if rank_1() else None))
                torch.set_autocast_enabled("cpu", False)
            if change is not double:
                found[f"alike {kind} {name}"] = said_by_each(lambda: from_the_third_on(OnBatches(sharded=sharded), change))
        smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
        one = OnBatches(sharded=sharded, criterion=smoothed)
        found[f"alike {kind} an evaluation by one"] = said_by_each(lambda: from_the_third_on(one, lambda run: evaluate_otherwise(run) if rank_1() else None))
        counting = OnBatches(sharded=sharded, criterion=Counting())
        found[f"alike {kind} what a criterion keeps"] = said_by_each(lambda: from_the_third_on(counting, lambda run: None))
    found["static graph"] = said_by_each(lambda: Run(sharded=False, wrap=functools.partial(nn.parallel.DistributedDataParallel, static_graph=True)))
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
