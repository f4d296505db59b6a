"""What the checks of the Python path cost: CPU time within them beside that of whole steps, counted in one process.

    .venv/bin/python bench/check_cost.py                    # a GPT-2 of 21M parameters, T=100 and T=512, and a small network
    .venv/bin/python bench/check_cost.py --steps 10 --shape gpt2_512

Counted are all that follow a batch (ghost/provenance, without the torch functions that it lets through), what is asked before every forward,
backward and step (ghost/checks/gate.py), and the guards of layers. The check with other examples (ghost/checks/gradients.py) comes at
the first batch and at one in 600: it is timed once, and a 600th of it stands beside a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import torch
from gpt2_like import Gpt2Like
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.ghost.checks.gate import Gate
from ghostshard.ghost.checks.gradients import AttributionCheck
from ghostshard.ghost.checks.guard import Guard
from ghostshard.ghost.provenance import Drawn, Provenance


class Clock:
    """CPU seconds of this thread within functions that were wrapped, each second once, without what they let through."""

    def __init__(self) -> None:
        self.within = 0.0
        self._since: float | None = None  # when the outermost of them began

    @contextlib.contextmanager
    def running(self) -> Any:
        outermost, self._since = self._since is None, time.thread_time() if self._since is None else self._since
        try:
            yield
        finally:
            if outermost and self._since is not None:
                self.within += time.thread_time() - self._since
                self._since = None

    @contextlib.contextmanager
    def paused(self) -> Any:
        counted, since = self._since is not None, time.thread_time()
        try:
            yield
        finally:
            if counted:
                self.within -= time.thread_time() - since

    def wrap(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.running():
                return original(*args, **kwargs)

        setattr(owner, name, timed)


class LetThrough:
    """A torch function, as followed() calls it: its time is not the check's."""

    def __init__(self, function: Any, clock: Clock):
        self._function, self._clock = function, clock
        self.__name__ = getattr(function, "__name__", str(function))
        if hasattr(function, "__self__"):
            self.__self__ = function.__self__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._clock.paused():
            return self._function(*args, **kwargs)


def watch(clock: Clock) -> None:
    followed = Drawn.followed

    def timed(function: Any, args: tuple, kwargs: dict) -> Any:
        with clock.running():
            return followed(LetThrough(function, clock), args, kwargs)

    Drawn.followed = staticmethod(timed)
    for name in ("hand_out", "read", "taken", "targets", "met", "give_back", "losses", "mark", "check"):
        clock.wrap(Provenance, name)
    for name in ("forward", "backward", "step"):
        clock.wrap(Gate, name)
    clock.wrap(Guard, "__call__")


def gpt2(length: int = 100, batch: int = 8) -> tuple[nn.Module, TensorDataset, int]:
    ids = torch.randint(8192, (64, length + 1))
    return Gpt2Like(4, 512, 8, 8192, length), TensorDataset(ids[:, :-1], ids[:, 1:]), batch


def small() -> tuple[nn.Module, TensorDataset, int]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10)), TensorDataset(torch.randn(512, 256), torch.randint(10, (512,))), 64


SHAPES: dict[str, Callable[[], tuple[nn.Module, TensorDataset, int]]] = {"gpt2": gpt2, "gpt2_512": lambda: gpt2(512, 4), "small": small}


def measured(shape: str, steps: int, clock: Clock) -> dict[str, Any]:
    torch.manual_seed(1)
    model, data, batch = SHAPES[shape]()
    rate, AttributionCheck.again = AttributionCheck.again, 0.0  # at the first batch alone
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5), data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip

    def batches() -> Any:
        while True:
            yield from loader

    lot, check = [0.0], AttributionCheck.__call__

    def timed(*args: Any, **kwargs: Any) -> None:
        since = time.thread_time()
        check(*args, **kwargs)
        lot[0] += time.thread_time() - since

    AttributionCheck.__call__ = timed  # type: ignore[method-assign]
    counted, begun = 0, 0.0
    for x, y in batches():
        if counted == 3:  # the first ones settle plans and memory
            begun, clock.within = time.process_time(), 0.0
        optimizer.zero_grad()
        logits = module(x)
        loss = criterion(logits.flatten(0, -2), y.flatten(), shape=logits.shape) if shape.startswith("gpt2") else criterion(logits, y)
        loss.backward()
        optimizer.step()
        counted += 1
        if counted == steps + 3:
            break
    step = (time.process_time() - begun) / steps
    AttributionCheck.__call__, AttributionCheck.again = check, rate  # type: ignore[method-assign]
    parameters = sum(each.numel() for each in model.parameters())
    every = clock.within / steps
    return {
        "shape": shape, "parameters": parameters, "batch": batch, "steps": steps, "step_ms": 1e3 * step, "checks_ms": 1e3 * every,
        "checks_percent": 100 * every / step, "with_other_examples_ms": 1e3 * lot[0], "a_600th_percent": 100 * lot[0] * rate / step,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    clock = Clock()
    watch(clock)
    for shape in args.shape or SHAPES:
        print(json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in measured(shape, args.steps, clock).items()}))


if __name__ == "__main__":
    main()
