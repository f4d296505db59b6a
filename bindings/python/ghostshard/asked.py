"""What make_private() was asked for in modes "ghost" and "ghost_fsdp", and the keywords that ask for it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import opacus
import torch
from torch.utils.data import DataLoader

from . import kind_of_steps
from .checked_call import MODES, refuse_unknown_mode
from .ghost import clip_quantile, correlation
from .keywords import refuse_unknown
from .loaders import SamplingPlan

__all__ = ["Asked", "asked_for", "refuse_ours"]

_OF_THE_ENGINE = {"memory_budget": None, "accumulate": None, "attribution_check": True}
_OF_THE_BATCHES = {"accumulation_steps": 1, "own_batches": False, "allow_vouched": False}
_OPACUS = tuple(inspect.signature(opacus.PrivacyEngine.make_private).parameters)
_OURS = {**dict.fromkeys(kind_of_steps.ARGUMENTS), **_OF_THE_ENGINE, **_OF_THE_BATCHES}  # that Opacus' modes do not have, and what they are if left out


@dataclass(frozen=True)
class Asked:
    """The arguments of one call, beside model, optimizer, criterion and data."""

    mode: str
    noise_multiplier: float
    max_grad_norm: Any
    batch_first: bool
    loss_reduction: str
    clipping: str
    generator: torch.Generator | None
    accumulation_steps: int
    own_batches: bool
    allow_vouched: bool
    of_the_engine: dict[str, Any]  # those of GhostEngine that were given
    plan: SamplingPlan
    weighing: dict[str, Any]  # of correlated noise
    rest: dict[str, Any]  # what clipping="adaptive" takes, and what nobody knows

    def quantile(self) -> clip_quantile.ClipQuantile | None:
        """Of clipping="adaptive". TypeError for keywords that nobody knows."""
        rest = dict(self.rest)
        found = clip_quantile.taken(
            self.clipping, rest, start=self.max_grad_norm, noise_multiplier=self.noise_multiplier, expected_batch=self.plan.expected_batch
        )
        refuse_unknown(rest, f"make_private() in mode {self.mode!r}", (*_OPACUS, *_OURS, *clip_quantile.NAMES))
        return found

    def noise(self, optimizer: Any) -> correlation.Correlation:
        """Of all steps. optimizer: the plain one, whose momenta the weights of correlated noise serve."""
        return correlation.chosen(optimizer, self.plan.steps, generator=self.generator is not None, **self.weighing)

    def arguments(self) -> dict[str, object]:
        """All ranks must have them alike."""
        plan = self.plan
        return {
            **self.of_the_engine, "grad_sample_mode": self.mode, "noise_multiplier": self.noise_multiplier, "max_grad_norm": self.max_grad_norm,
            "clipping": self.clipping, "loss_reduction": self.loss_reduction, "batch_first": self.batch_first, "own_batches": self.own_batches,
            "allow_vouched": self.allow_vouched, "accumulation_steps": self.accumulation_steps, "noise_generator": self.generator is not None,
            "the data loader's sampling": (plan.rate, plan.steps, plan.expected_batch, plan.cap, plan.in_bins),
        }  # fmt: skip


def asked_for(data_loader: DataLoader, keywords: dict[str, Any], *, poisson_sampling: bool, **named: Any) -> Asked:
    """named: arguments that make_private() names, as Asked has them; keywords: its others. ValueError for a sampling that there is not."""
    given = dict(keywords)
    of_the_engine = {name: given.pop(name) for name in _OF_THE_ENGINE if name in given}
    of_the_batches = {name: given.pop(name, default) for name, default in _OF_THE_BATCHES.items()}
    of_the_batches["own_batches"] = of_the_batches["own_batches"] or not poisson_sampling
    steps = of_the_batches["accumulation_steps"]
    if isinstance(steps, bool) or not (isinstance(steps, int) and steps >= 1):
        raise ValueError(f"accumulation_steps must be a whole number >= 1, got {steps!r}")
    plan = kind_of_steps.plan_asked_for(data_loader, given, poisson=not of_the_batches["own_batches"])
    weighing = kind_of_steps.take_out(given)
    given.pop("epsilon_tolerance", None)
    return Asked(**named, **of_the_batches, of_the_engine=of_the_engine, plan=plan, weighing=weighing, rest=given)


def refuse_ours(keywords: dict[str, Any], mode: str) -> None:
    """For Opacus' modes, whose optimizers drop keywords that they do not know. ValueError for one of ours that asks for something; others of
    ours are taken out. So for a mode that there is not."""
    refuse_unknown_mode(mode)
    for name, default in _OURS.items():
        if (value := keywords.pop(name, None)) is not None and value != default:
            raise ValueError(f"{name} is of our modes alone: {', '.join(MODES)}; got grad_sample_mode={mode!r}")
