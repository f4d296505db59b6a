"""make_private(max_batch_size=…, sampling=…, noise_bands=…, noise_chain=…): what they need, the loader that draws so, and the
accountant that counts their steps as what they are."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader

from .ghost import correlation
from .ghost.checks.charges import Charges, EachDraw, RoundsOfGroups, WholePasses
from .ghost.ranks import Ranks
from .loaders import GhostDataLoader, SamplingPlan, plan_of
from .loaders.own_draws import refuse_drawn_twice

__all__ = ["ARGUMENTS", "charges", "counted_as", "plan_asked_for", "private_loader", "settle", "take_out"]

ARGUMENTS = ("max_batch_size", "sampling", *correlation.ARGUMENTS)  # of make_private(), in our modes alone


def plan_asked_for(data_loader: DataLoader, arguments: dict[str, Any], *, poisson: bool) -> SamplingPlan:
    """How the private loader draws, as make_private()'s arguments say."""
    if "noise_blt" in arguments:
        raise ValueError(
            "noise from buffers is of ghostshard-finetune-gpt2 --noise-blt and dp::DpConfig alone: from Python give noise_bands or noise_chain"
        )
    asked = {name: arguments.get(name) for name in ("max_batch_size", "sampling")}
    groups = correlation.groups_of(arguments.get("noise_bands", 1), arguments.get("noise_chain", 1))
    return plan_of(data_loader, poisson=poisson, groups=groups, **asked)


def take_out(arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes what plan_asked_for() has read out of make_private()'s arguments; gives those that weigh the noise."""
    taken = {name: arguments.pop(name) for name in ARGUMENTS if name in arguments}
    return {name: value for name, value in taken.items() if name in correlation.ARGUMENTS}


def settle(plan: SamplingPlan, accountant: Any, *, clipping: str, registered: bool) -> None:
    """From here on the accountant counts the plan's steps. ValueError for what truncated batches and passes of balls-in-bins sampling are
    not accounted with."""
    if plan.in_bins:
        _settle_bins(plan, accountant, clipping)
        return
    if plan.groups > 1:
        _check_groups(clipping, registered)
    if not hasattr(accountant, "truncate"):
        if plan.cap is not None:
            raise ValueError(
                f"the accountant {accountant.mechanism()!r} cannot bound truncated batches: max_batch_size needs "
                'PrivacyEngine(accountant="contour")'
            )
        return
    if plan.cap is not None and clipping == "adaptive":
        raise ValueError("a clip norm that adapts is accounted for batches that are not truncated: leave max_batch_size out")
    if plan.cap is not None and registered:
        raise ValueError(
            "from Python a budget register counts steps without a largest batch: leave max_batch_size out, or attach_register()"
        )
    if plan.cap is not None and accountant.mechanism() == "prv":
        warnings.warn(
            'the accountant "prv" bounds truncated batches loosely, and perhaps not at all: PrivacyEngine(accountant="contour") does tightly',
            stacklevel=4,
        )
    accountant.deal(None)
    accountant.truncate(plan.truncation)


def _check_groups(clipping: str, registered: bool) -> None:
    if clipping == "adaptive":
        raise ValueError("correlated noise is derived for one clip norm in all steps: it cannot be combined with clipping='adaptive'")
    if registered:
        raise ValueError(
            "from Python a budget register counts steps of white noise: leave noise_bands and noise_chain out, or attach_register()"
        )


def _settle_bins(plan: SamplingPlan, accountant: Any, clipping: str) -> None:
    mechanism = accountant.mechanism()
    if mechanism not in ("contour", "prv"):
        raise ValueError(
            f"the accountant {mechanism!r} has no bound of balls-in-bins sampling: it needs PrivacyEngine(accountant=\"contour\") or \"prv\""
        )
    if clipping == "adaptive":
        raise ValueError(
            "balls-in-bins sampling is derived for one clip norm in all steps of a pass: it cannot be combined with clipping='adaptive'"
        )
    accountant.truncate(None)
    accountant.deal(plan.bins)


def counted_as(plan: SamplingPlan) -> dict[str, Any]:
    """What the accountant of its steps has, by attribute."""
    return {"truncation": plan.truncation, "bins": plan.bins}


def charges(plan: SamplingPlan, sampler: Any) -> Charges:
    """What the run is charged for."""
    if plan.in_bins:
        return WholePasses()
    return EachDraw() if plan.groups == 1 else RoundsOfGroups(plan.groups, lambda: sampler.stamps.ended)


def private_loader(
    data_loader: DataLoader, plan: SamplingPlan, ranks: Ranks, accumulation_steps: int, *, secure_mode: bool
) -> DataLoader:
    """The loader that draws as the plan says; this one, with a warning, if batches are the caller's own."""
    if not plan.poisson:
        refuse_drawn_twice(data_loader)
        warnings.warn(
            "batches of your own, without Poisson sampling of the private loader: each step is charged as if it held every "
            "example (sampling rate 1), and that no step holds an example twice, nor as several units, is your word",
            stacklevel=5,
        )
        return data_loader
    if secure_mode and data_loader.generator is not None:
        raise ValueError("secure_mode draws coins from the operating system: the data loader has a generator")
    loader = GhostDataLoader.from_data_loader(
        data_loader, rank=ranks.data_rank, world_size=ranks.data_ranks, accumulation_steps=accumulation_steps,
        process_group=ranks.data, twins=ranks.twins, max_batch_size=plan.cap,
        sampling="balls_in_bins" if plan.in_bins else "poisson", groups=plan.groups,
    )  # fmt: skip
    if (loader.batch_sampler.sample_rate, loader.batch_sampler.draws) != (plan.rate, plan.steps):
        raise ValueError(
            f"the data loader's length changed while make_private() read it, from {plan.steps} batches to {loader.batch_sampler.draws}: each draw would be "
            "charged at another rate than its own. Give a loader whose __len__ stays what it is"
        )
    return loader
