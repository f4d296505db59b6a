"""Scenario of one_rank_main.py: a run as users write it, on the device, with a ledger, and continued from a checkpoint."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from on_device import DEVICE
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine


def private(folder: Path):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(DEVICE)
    data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    engine = PrivacyEngine(accountant="rdp")
    engine.attach_ledger(folder / "ledger.jsonl")
    return engine, *engine.make_private(
        module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip


def whole_run() -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine, module, optimizer, criterion, loader = private(folder)

        def epoch() -> None:
            for x, y in loader:
                optimizer.zero_grad()
                criterion(module(x.to(DEVICE)), y.to(DEVICE)).backward()
                optimizer.step()

        epoch()
        engine.save_checkpoint(path=folder / "state.pt", module=module, optimizer=optimizer)
        saved = [p.detach().cpu() for p in module.parameters()]
        epoch()
        engine._engine().let_go_of_ledger()  # as the end of its process would

        again, module, optimizer, criterion, loader = private(folder)
        again.load_checkpoint(path=folder / "state.pt", module=module, optimizer=optimizer)
        loaded = [p.detach().cpu() for p in module.parameters()]
        epoch()
        states = [value for state in optimizer.original_optimizer.state.values() for value in state.values()]
        lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        return {
            "weights_come_back": all(torch.equal(a, b) for a, b in zip(saved, loaded, strict=True)),
            "on_the_device": all(p.device.type == DEVICE and p.grad.device.type == DEVICE for p in module.parameters()),
            "states_on_the_device": sorted({value.device.type for value in states if value.dim() > 0}),
            "finite": all(bool(torch.isfinite(p.cpu()).all()) for p in module.parameters()),
            "steps_charged": sum(steps for _, _, steps in again.accountant.history),
            "lines_of_the_ledger": sum("attempt" in line for line in lines),
        }
