"""The terms of a private run as its ledger states them, and the rules that a call of make_private() must keep."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import nn, optim
from torch.distributed.fsdp import FSDPModule

from . import __version__
from .ghost.engine import GhostEngine
from .ghost.optimizer import GhostOptimizer
from .loaders import SamplingPlan
from .registered_budget import RegisteredBudget

__all__ = ["check_call", "ledger_header", "report_facts"]


def ledger_header(plan: SamplingPlan, optimizer: GhostOptimizer, engine: GhostEngine, allow_vouched: bool) -> dict:
    """The engine refuses every batch that contradicts what stands here of the sampler, so the report may repeat it."""
    per_layer = "per layer: each of K groups gathered together by clip_norm/sqrt(K)"
    sampler = {
        "executed": "poisson",
        "seen": "by the engine: each step was made of one whole draw of the private loader, and each draw was charged",
    }
    if allow_vouched:
        sampler["seen"] += (
            "; that tensors which the loop vouched for (allow_vouched=True) hold nothing of other examples than their rows' own is the "
            "caller's word"
        )
    if not plan.poisson:
        sampler = {
            "executed": "batches of the caller's own: each step is charged as if it held every unit",
            "seen": "by nobody: that no step held an example twice, nor as several units, is the caller's word",
        }
    header = {
        "adjacency": "zero-out",
        "unit_of_privacy": "example",
        "units": plan.units,
        "expected_batch": int(plan.exact_batch) if plan.exact_batch.is_integer() else plan.exact_batch,
        "sampling_rate": plan.charged_rate,
        "clip_norm": float(optimizer.max_grad_norm),
        "clipping": "flat, per example, over all trainable parameters" if engine.clipping == "flat" else per_layer,
        "facts": {"sampler": sampler},
    }
    if optimizer.noise_multiplier > 0:
        header["noise_multiplier"] = float(optimizer.noise_multiplier)
    return header


def report_facts(optimizer: optim.Optimizer, budget: RegisteredBudget | None) -> dict:
    """What the ledger does not hold: code, the optimizer's settings as they are now, other runs in the register."""
    settings: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for name, value in optimizer.param_groups[0].items():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if name != "params" and all(isinstance(number, (bool, int, float)) and math.isfinite(number) for number in numbers):
            settings[name] = value
    facts: dict[str, dict] = {"hyper_parameters": settings, "provenance": {"code": f"ghostshard {__version__}, torch {torch.__version__}"}}
    for section, statements in ({} if budget is None else budget.facts()).items():
        facts[section] = facts.get(section, {}) | statements
    return facts


def check_call(
    generator: Any,
    secure_mode: bool,
    module: nn.Module,
    optimizer: optim.Optimizer,
    mode: str,
    max_grad_norm: Any,
    rand_on_empty: bool,
) -> None:
    if generator is not None and secure_mode:
        raise ValueError("Passing seed is prohibited in secure mode")
    if isinstance(module, AbstractGradSampleModule):
        raise ValueError("the module is wrapped for private training already: pass the model itself")
    known = set(module.parameters())
    if any(p not in known for p in chain.from_iterable(group["params"] for group in optimizer.param_groups)):
        raise ValueError(
            "Module parameters are different than optimizer Parameters: build the optimizer from this module, after "
            "FSDP2Wrapper if that is used"
        )
    if mode == "ghost_fsdp" and not isinstance(module, FSDPModule):
        raise ValueError(
            "grad_sample_mode='ghost_fsdp' needs a model under FSDP2: FSDP2Wrapper(model), or fully_shard; got "
            f"{type(module).__name__}"
        )
    if mode == "ghost" and isinstance(module, FSDPModule):
        raise ValueError("a model under FSDP2 takes grad_sample_mode='ghost_fsdp'")
    if isinstance(max_grad_norm, (list, tuple)):
        raise ValueError(
            "max_grad_norm must be one number in modes 'ghost' and 'ghost_fsdp' (per_layer shares it out), got a list"
        )
    if rand_on_empty:
        raise ValueError(
            "rand_on_empty puts a random example where nothing was drawn, so that one example more or less moves "
            "the sum by up to twice the clip norm; an empty batch is a step like any other here"
        )
