"""Two ranks that evaluate between a backward and its step: started by torchrun, writes what each loop saw. See test_gathered.py.

    torchrun --nproc_per_node 2 gathered_main.py results.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from private import hand_out
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine


class Net(nn.Module):
    """The first and the last layer are the root's, which FSDP2 leaves gathered after a forward."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.fails = False

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x.tanh())
        if self.fails:
            raise ValueError("half way")
        return self.last(x)


class Run:
    def __init__(self, **options):
        torch.manual_seed(3)
        self.net = FSDP2Wrapper(Net(), **options)
        self.plain = Net()
        data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
        self.engine = PrivacyEngine(accountant="rdp")
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.net, optimizer=torch.optim.SGD(self.net.parameters(), lr=1.0), data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0, max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost_fsdp",
        )  # fmt: skip
        self.owned = [entry.parameter for entry in self.module.engine.layout.parameters]
        self.names = [entry.name for entry in self.module.engine.layout.parameters]

    def off(self, found: torch.Tensor, x: torch.Tensor) -> float:
        """Between an output and that of the weights whose rows the ranks hold."""
        whole = {name: own.full_tensor() if isinstance(own, DTensor) else own for name, own in zip(self.names, self.owned)}
        with torch.no_grad():
            return (torch.func.functional_call(self.plain, whole, x) - found.detach()).abs().max().item()

    def evaluate(self) -> torch.Tensor:
        with torch.no_grad():
            return self.module(torch.ones(2, 6))

    def backward(self) -> float:
        hand_out(self.loader, 4)
        self.optimizer.zero_grad()
        return self.microbatch()

    def microbatch(self) -> float:
        x = torch.ones(4, 6) + torch.arange(4.0)[:, None]
        found = self.module(x)
        self.criterion(found, torch.zeros(4, dtype=torch.long)).backward()
        return self.off(found, x)


def evaluates_before_each_step(run: Run) -> list:
    """Of each step: how far the training forward and an evaluation after it are off."""
    found = []
    for _ in range(3):
        found.append(run.backward())
        run.evaluate()
        run.optimizer.step()
        found.append(run.off(run.evaluate(), torch.ones(2, 6)))
    return found


def evaluation_fails_before_a_step(run: Run) -> list:
    """What the step says, and how far the next forwards are off."""
    run.backward()
    run.net.fails = True
    try:
        run.evaluate()
    except ValueError:
        run.net.fails = False
    said = "nothing"
    try:
        run.optimizer.step()
    except RuntimeError as error:
        said = str(error)
        run.evaluate()
        run.optimizer.step()
    return [said, run.off(run.evaluate(), torch.ones(2, 6)), run.backward()]


def counts_what_is_gathered(run: Run) -> list:
    """Collectives of the second step, of three microbatches; how far their forwards are off; what the plan says."""
    original, calls = dist.all_gather_into_tensor, []

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    dist.all_gather_into_tensor = counted
    try:
        for _ in range(2):
            calls.clear()
            hand_out(run.loader, 4, 4, 4)
            off = []
            for part in range(3):
                run.optimizer.signal_skip_step(do_skip=part < 2)
                run.optimizer.zero_grad()
                off.append(run.microbatch())
                run.optimizer.step()
    finally:
        dist.all_gather_into_tensor = original
    return [len(calls), max(off), run.engine.explain_plan()]


def main() -> None:
    dist.init_process_group("gloo")
    loops = (evaluates_before_each_step, evaluation_fails_before_a_step, counts_what_is_gathered)
    kinds: dict = {"unsaid": {}, "freed": {"reshard_after_forward": True}, "kept": {"reshard_after_forward": False}}
    found = {f"{loop.__name__} {kind}": loop(Run(**options)) for loop in loops for kind, options in kinds.items()}
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps({name: [each[name] for each in every] for name in found}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
