"""One process group's part of a run that is saved, killed and continued: see test_checkpoints.py.

    torchrun --nproc_per_node 2 checkpoint_ranks_main.py folder save|load|stateful|torn|raises
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from leaving import leave
from private import hand_out
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine, checkpoint
from ghostshard.ghost import device
from ghostshard.ghost import ranks as ranks_module

FOLDER = Path(sys.argv[1])
WHOLE = StateDictOptions(full_state_dict=True)


class Run:
    def __init__(self, seed: int, ledger: bool = True, accountant: str = "rdp"):
        torch.manual_seed(seed)
        self.model = FSDP2Wrapper(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)))
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(20, 6), torch.randint(0, 3, (20,)))
        self.engine = PrivacyEngine(accountant=accountant)
        if ledger:
            self.engine.attach_ledger(FOLDER / "ledger.jsonl")
        # The same seed in every process: noise and coins of a run that is resumed must not follow from it alone.
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=self.inner, data_loader=DataLoader(data, batch_size=4), noise_multiplier=1.0,
            max_grad_norm=1.0, grad_sample_mode="ghost_fsdp", noise_generator=torch.Generator().manual_seed(3),
        )  # fmt: skip

    def backward(self, units: int = 0) -> None:
        self.optimizer.zero_grad()
        hand_out(self.loader, units)
        x, y = torch.ones(units, 6), torch.zeros(units, dtype=torch.long)
        self.criterion(self.module(x), y).backward()

    def noise(self) -> list[float]:
        """A step of no examples: it releases noise alone."""
        self.backward()
        self.optimizer.step()
        return self.model[0].weight.grad.full_tensor().flatten().tolist()

    def whole(self) -> dict:
        return {
            "model": get_model_state_dict(self.model, options=WHOLE),
            "optimizer": get_optimizer_state_dict(self.model, self.inner, options=WHOLE),
        }

    def found(self) -> dict:
        return {"epsilon": self.engine.get_epsilon(1e-5), "history": list(self.engine.accountant.history)}


def write(name: str, results: dict) -> None:
    if dist.get_rank() == 0:
        (FOLDER / name).write_text(json.dumps(results))


def save() -> None:
    run = Run(1)
    noises = [run.noise() for _ in range(3)]
    run.backward(2)
    try:
        run.engine.save_checkpoint(path=FOLDER / "half", module=run.module, optimizer=run.optimizer)
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    run.optimizer.step()
    run.engine.save_checkpoint(
        path=FOLDER / "step4", module=run.module, optimizer=run.optimizer, checkpoint_dict={"epoch": 7}
    )
    try:
        run.engine.save_checkpoint(path=FOLDER / "step4", module=run.module, optimizer=run.optimizer)
        twice = ""
    except ValueError as error:
        twice = str(error)
    whole = run.whole()
    if dist.get_rank() == 0:
        torch.save(whole, FOLDER / "whole.pt")
    noises += [run.noise() for _ in range(2)]  # lost
    write("save.json", run.found() | {"noises": noises, "refused": refused, "twice": twice})
    dist.barrier()
    os._exit(0)  # killed


def load() -> None:
    run = Run(2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        extra = run.engine.load_checkpoint(path=FOLDER / "step4", module=run.module, optimizer=run.optimizer)
    expected, whole = torch.load(FOLDER / "whole.pt"), run.whole()
    same = all(torch.equal(expected["model"][name], value) for name, value in whole["model"].items())
    state = {}
    for name, values in whole["optimizer"]["state"].items():
        for key, value in values.items():
            state[f"{name} {key}"] = torch.equal(expected["optimizer"]["state"][name][key], value)
    before = run.found()
    noises = [run.noise() for _ in range(3)]
    write(
        f"load{dist.get_world_size()}.json",
        {"weights": same, "state": state, "extra": extra, "before": before, "noises": noises, "after": run.found(),
         "warned": [str(each.message) for each in said]},
    )  # fmt: skip


def stateful() -> None:
    """As loops do that put everything into one dcp.save."""
    run = Run(1, ledger=False)
    run.noise()

    def parts() -> dict:
        model, optimizer = (get_model_state_dict(run.model), get_optimizer_state_dict(run.model, run.inner))
        return {"model": model, "optimizer": optimizer, "privacy": run.engine}

    dcp.save(parts(), checkpoint_id=FOLDER / "stateful")
    saved = run.whole()
    run = Run(2, ledger=False)
    loaded = parts()
    dcp.load(loaded, checkpoint_id=FOLDER / "stateful")
    set_model_state_dict(run.model, loaded["model"])
    set_optimizer_state_dict(run.model, run.inner, loaded["optimizer"])
    same = all(torch.equal(value, run.whole()["model"][name]) for name, value in saved["model"].items())
    # And by the engine's own call.
    run = Run(3, ledger=False)
    run.engine.load_checkpoint(path=FOLDER / "stateful", module=run.module, optimizer=run.optimizer)
    again = all(torch.equal(value, run.whole()["model"][name]) for name, value in saved["model"].items())
    found = run.found()
    # Back to a checkpoint of its own, on all ranks alike: steps since then are counted once.
    run.noise()
    dcp.save({"privacy": run.engine}, checkpoint_id=FOLDER / "own")
    run.noise()
    run.noise()
    dcp.load({"privacy": run.engine}, checkpoint_id=FOLDER / "own")
    histories: list = [None] * dist.get_world_size()
    dist.all_gather_object(histories, run.engine.accountant.history)
    write("stateful.json", {"weights": same, "again": again, "back": histories} | found)


def torn() -> None:
    """Whole folders with one part missing or cut."""
    said = {}
    for name in sorted(path.name for path in FOLDER.glob("torn_*")):
        run = Run(2)
        try:
            run.engine.load_checkpoint(path=FOLDER / name, module=run.module, optimizer=run.optimizer)
            said[name] = "nothing"
        except ValueError as error:
            said[name] = str(error)
    write("torn.json", said)


def raises() -> None:
    """What each rank raises where one alone has an error: nobody waits."""
    ranks_module.TIMEOUT = timedelta(seconds=20)
    rank, said = dist.get_rank(), {}

    def note(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
            found = "nothing"
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        said[name] = [None] * dist.get_world_size()
        dist.all_gather_object(said[name], found)

    run = Run(1, ledger=False)
    for error in (ValueError("v"), TypeError("t"), RuntimeError("r"), KeyError("k"), OSError("o")):

        def fail(error: Exception = error) -> None:
            raise error

        note(type(error).__name__, lambda: checkpoint.on_rank_0(run.engine._ghost.ranks, fail))
    run.noise()
    note("path", lambda: run.engine.save_checkpoint(path=io.BytesIO(), module=run.module, optimizer=run.optimizer))
    run.engine.save_checkpoint(path=FOLDER / "raises", module=run.module, optimizer=run.optimizer)
    other = Run(2, ledger=False)
    if rank == 1:
        other.engine.accountant.mechanism = lambda: "prv"
    note("accountant", lambda: other.engine.load_checkpoint(path=FOLDER / "raises", module=other.module, optimizer=other.optimizer))
    device_of = device.device_of
    if rank == 1:
        device.device_of = lambda layout: layout.no_such_name
    note("device", lambda: Run(3, ledger=False))
    device.device_of = device_of
    write("raises.json", said)


def main() -> None:
    dist.init_process_group("gloo")
    {"save": save, "load": load, "stateful": stateful, "torn": torn, "raises": raises}[sys.argv[2]]()
    leave()


if __name__ == "__main__":
    main()
