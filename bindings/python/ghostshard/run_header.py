"""The terms of a private run as its ledger states them."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime
from typing import Any

from torch import optim

from .code_id import code_commit, code_id
from .ghost.engine import GhostEngine
from .ghost.optimizer import GhostOptimizer
from .loaders import SamplingPlan
from .registered_budget import RegisteredBudget

__all__ = ["OF_THE_PROGRAM", "ledger_header", "report_facts"]


_FLAT = "flat, per example, over all trainable parameters"
_CLIPPINGS = {
    "flat": _FLAT,
    "per_layer": "per layer: each of K groups gathered together by clip_norm/sqrt(K)",
    "automatic": "automatic, per example, over all trainable parameters: each is scaled by clip_norm/(its norm + 0.01)",
    "adaptive": f"{_FLAT}; clip_norm, of the first step, follows a quantile of the norms (arXiv:1905.03871)",
}


# What no program can tell of the one that trains: docs/guarantee.md, "Known gaps".
OF_THE_PROGRAM = (
    "What the training program computed from private data where the engine does not follow it (numbers by float() or NumPy, such as losses that were read and means that inputs are "
    "scaled by; attributes of objects; another model that was trained on the data) entered no loss, no other example's input, no weights and no setting of the model, the optimizer "
    "or the loader, and decided neither which batches were passed over, nor how losses were formed and settings changed, nor when the training ended. Each item of the data set "
    "was made of one example alone."
)


def ledger_header(plan: SamplingPlan, optimizer: GhostOptimizer, engine: GhostEngine, *, allow_vouched: bool, seeded: str | None) -> dict:
    """seeded: what is assumed of a seed (seeds.py). The engine refuses every batch that contradicts what stands here of the sampler, so the report may repeat it."""
    sampler = {
        "executed": "poisson",
        "seen": "by the engine: each step was made of one whole draw of the private loader, and each draw was charged",
    }
    if plan.cap is not None:
        sampler["executed"] = "truncated-poisson"
        sampler["truncation"] = f"of more than {plan.cap} drawn examples a uniformly random part of {plan.cap} stays (arXiv:2508.15089)"
    if plan.in_bins:
        sampler = {
            "executed": "balls-in-bins",
            "seen": "by the engine: each step was made of one whole draw of the latest pass over the private loader, and each pass was "
            "charged before its first step",
        }
    if plan.groups > 1:
        sampler["executed"] = "cyclic-poisson"
        sampler["groups"] = (
            f"example u of the data set, counted from 0, belongs to group u mod {plan.groups}, and in a session that goes on to group u - r mod {plan.groups}, r drawn at random; "
            f"step t draws from group t mod {plan.groups}, and such a session begins with group 0"
        )
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
    sampler["of_the_program"] = OF_THE_PROGRAM
    if seeded:
        sampler["of_the_seed"] = seeded
    header: dict[str, Any] = {
        "adjacency": "zero-out",
        "unit_of_privacy": "example",
        "units": plan.units,
        "expected_batch": int(plan.exact_batch) if plan.exact_batch.is_integer() else plan.exact_batch,
        "sampling_rate": plan.charged_rate,
        "clip_norm": float(optimizer.max_grad_norm),
        "clipping": _CLIPPINGS[engine.clipping],
        "facts": {"sampler": sampler},
    }
    if plan.cap is not None:
        header["maximum_batch"] = plan.cap
    header |= engine.run.correlation.for_header()
    if plan.groups > 1:
        header["facts"]["mechanism"] = {"correlated_noise": engine.run.correlation.in_words()}
    if plan.in_bins:
        header["bins"] = plan.bins
        del header["sampling_rate"]
    if optimizer.noise_multiplier > 0:
        header["noise_multiplier"] = float(optimizer.noise_multiplier)
    if (quantile := engine.run.clip_quantile) is not None:
        header["clip_quantile"] = quantile.for_header()
        header["noise_multiplier"] = quantile.gradient_noise(optimizer.noise_multiplier)
    header["facts"]["provenance"] = {"config_hash": _digest(header), **_beginning(engine)}
    return header


def _digest(terms: dict) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()


def _beginning(engine: GhostEngine) -> dict:
    """Of the first session; the digest of the weights joins it when the ledger begins. The day alone: how long private steps took is
    not for everybody."""
    replicate, shard, model = engine.ranks.shape
    return {
        "code": code_id(),
        "code_commit": code_commit(),
        "begun_on": datetime.now(UTC).date().isoformat(),
        "ranks": replicate * shard * model,
        "mesh": f"{replicate}x{shard}x{model}",
        "checkpoint_lineage": "the model as the caller built or loaded it; weights_before is its digest",
    }


def report_facts(optimizer: optim.Optimizer, budget: RegisteredBudget | None, weights: str) -> dict:
    """What the ledger does not hold: the optimizer's settings as they are now, the digest of the weights, other runs in the register."""
    settings: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for name, value in optimizer.param_groups[0].items():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if name != "params" and all(isinstance(number, (bool, int, float)) and math.isfinite(number) for number in numbers):
            settings[name] = value
    provenance = {
        "code_of_report": code_id(),
        "weights_after": weights,
        "data_fingerprint": "none: a key is needed, of a budget register (attach_register)",
    }
    facts: dict[str, dict] = {"hyper_parameters": settings, "provenance": provenance}
    for section, statements in ({} if budget is None else budget.facts()).items():
        facts[section] = facts.get(section, {}) | statements
    return facts
