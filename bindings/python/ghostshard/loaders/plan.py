"""How a data loader samples: the one object that planning, drawing and charging take rate and steps from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import DataLoader, IterableDataset

from .. import _native

ITERABLE = "an IterableDataset cannot be Poisson-sampled: its units have no index to draw them by"


SAMPLINGS = ("poisson", "balls_in_bins")


@dataclass(frozen=True)
class SamplingPlan:
    units: int  # of the data set, all ranks together
    rate: float  # with which a unit is drawn; 1 / batches if batches are the caller's own
    steps: int  # draws of a pass over the loader
    poisson: bool  # False: batches are the caller's own, drawn in some other way
    cap: int | None = None  # of a draw's units at most so many stay (truncated.py); rate is then one that coins have exactly
    in_bins: bool = False  # each unit is in exactly one of a pass's steps, which is what is charged (bins.py)
    groups: int = 1  # that units are dealt to, of which a step draws from one (cyclic.py); rate is that over all units

    @property
    def bins(self) -> int | None:
        """Steps of a pass of balls-in-bins sampling, as accountants and sessions take it."""
        return self.steps if self.in_bins else None

    @property
    def charges(self) -> int:
        """Of a pass over the loader: one for each step, or one in all."""
        return 1 if self.in_bins else self.steps

    def charges_of(self, passes: int) -> int:
        """The same of so many passes; of groups one for each turn of all of them."""
        return -(-passes * self.charges // self.groups)

    @property
    def truncation(self) -> tuple[int, int] | None:
        """(units, cap), as accountants and sessions take it."""
        return None if self.cap is None else (self.units, self.cap)

    @property
    def charged_rate(self) -> float:
        """1 for batches of the caller's own: nothing is known of how they were drawn."""
        return rate_in_group(self.rate, self.groups) if self.poisson else 1.0

    @property
    def exact_batch(self) -> float:
        """units · rate, without the error of 1 / batches in floating point: 49 · (1/49) is 1."""
        exact = self.units * self.rate
        return float(round(exact)) if math.isclose(exact, round(exact), rel_tol=1e-12) else exact

    @property
    def expected_batch(self) -> int:
        """The divisor, to the nearest whole number. ValueError if a step draws less than one half of a unit."""
        expected = round(self.exact_batch)
        if expected < 1:
            raise ValueError(
                f"the data set must fill at least one example per step, got {self.units} examples at rate {self.rate}"
            )
        return expected


def plan_of(
    data_loader: DataLoader, *, poisson: bool, max_batch_size: int | None = None, sampling: str | None = None, groups: int | None = None
) -> SamplingPlan:
    """How `data_loader` samples once it is private, or as it is (poisson=False).

    A loader that shuffles: rate 1 / batches, as many steps as it has batches. One that is Poisson-sampled keeps its rate, its steps
    and its largest batch. ValueError for a data set without a length, for a loader without batches, and for a largest batch below
    the expected one, above the number of units, or of batches of the caller's own.

    sampling: "poisson" or "balls_in_bins"; None: as the loader draws already, or Poisson. ValueError for balls-in-bins sampling with a
    largest batch, with batches of the caller's own, of a loader that draws in another way, and with fewer than 2 steps in a pass.

    groups: into how many units are dealt; None: as the loader deals them already, or one. ValueError for several with anything but
    Poisson samples of the private loader, of a loader that draws in another way, and for more than the steps of a pass.
    """
    plan = _plan_of(data_loader, poisson)
    if sampling is None:
        sampling = "balls_in_bins" if poisson and _own_bins(data_loader.batch_sampler) else "poisson"
    if sampling not in SAMPLINGS:
        raise ValueError(f"sampling must be one of {', '.join(map(repr, SAMPLINGS))}, got {sampling!r}")
    if groups is None:
        groups = getattr(data_loader.batch_sampler, "groups", 1) if poisson and draws_already(data_loader.batch_sampler) else 1
    if groups > 1:
        _check_groups(groups, plan, data_loader.batch_sampler, max_batch_size, sampling)
        return replace(plan, groups=groups)
    if sampling == "balls_in_bins":
        _check_bins(plan, data_loader.batch_sampler, max_batch_size)
        return replace(plan, in_bins=True)
    cap = _own_cap(data_loader.batch_sampler) if max_batch_size is None else max_batch_size
    if cap is None:
        return plan
    if not poisson:
        raise ValueError("max_batch_size cuts the draws of the private loader: batches of your own are not drawn by it")
    if not (isinstance(cap, int) and plan.expected_batch <= cap <= plan.units):
        raise ValueError(
            f"max_batch_size must be a whole number from the expected batch ({plan.expected_batch}) to the number of examples "
            f"({plan.units}), got {cap!r}"
        )
    return replace(plan, rate=coin_rate(plan.rate), cap=cap)


def draws_already(drawn_by: Any) -> bool:
    """Whether a batch sampler is Opacus' or one of ours, so that its loader is private as it is."""
    return isinstance(drawn_by, UniformWithReplacementSampler | DistributedUniformWithReplacementSampler)


def _check_groups(groups: int, plan: SamplingPlan, drawn_by: Any, max_batch_size: int | None, sampling: str) -> None:
    if not plan.poisson:
        raise ValueError("correlated noise needs draws of the private loader: batches of your own are not drawn by it")
    if sampling != "poisson" or max_batch_size is not None:
        raise ValueError(
            "correlated noise is derived for Poisson samples that are not truncated: it can be combined neither with sampling='balls_in_bins' "
            "nor with max_batch_size"
        )
    if draws_already(drawn_by) and getattr(drawn_by, "groups", 1) != groups:
        raise ValueError("this loader draws batches already, from other groups: give noise_bands or noise_chain the loader that shuffles, "
                         "from which it was made")  # fmt: skip
    if groups > plan.steps:
        raise ValueError(
            f"noise bands, and a noise chain's steps, must be at most the {plan.steps} batches of a pass over the data: each step draws its "
            f"batch from one of as many groups of examples, got {groups}"
        )


def rate_in_group(rate: float, groups: int) -> float:
    """With which a unit is drawn when it is its group's turn, so that a batch is as large as one at `rate` from all units."""
    q = rate * groups
    return 1.0 if q > 1 or math.isclose(q, 1, rel_tol=1e-12) else q


def _own_bins(drawn_by: Any) -> bool:
    return isinstance(drawn_by, UniformWithReplacementSampler) and hasattr(drawn_by, "bins")


def _check_bins(plan: SamplingPlan, drawn_by: Any, max_batch_size: int | None) -> None:
    if not plan.poisson:
        raise ValueError("sampling='balls_in_bins' is of the private loader: batches of your own are not drawn by it")
    if max_batch_size is not None:
        raise ValueError("balls-in-bins sampling takes every example of a bin: it cannot be combined with max_batch_size")
    if draws_already(drawn_by) and not _own_bins(drawn_by):
        raise ValueError(
            "this loader draws Poisson batches already: give sampling='balls_in_bins' the loader that shuffles, from which it was made"
        )
    most = _native.load("accountant").most_bins
    if not 2 <= plan.steps <= most:
        raise ValueError(f"balls-in-bins sampling needs from 2 to {most} batches in a pass over the data, got {plan.steps}")


def _own_cap(drawn_by: Any) -> int | None:
    """Of a sampler that draws units by coins. Others may have a max_batch_size that means something else."""
    return getattr(drawn_by, "max_batch_size", None) if isinstance(drawn_by, UniformWithReplacementSampler) else None


def coin_rate(rate: float) -> float:
    """The largest rate up to this one that 64-bit coins have exactly: dp/mechanism/truncation.h says why."""
    return math.ldexp(math.floor(math.ldexp(rate, 64)), -64)


def _plan_of(data_loader: DataLoader, poisson: bool) -> SamplingPlan:
    if isinstance(data_loader.dataset, IterableDataset):
        reason = ITERABLE if poisson else "an IterableDataset has no examples by number, and how many there are is in the divisor and in the report"
        raise ValueError(f"{reason}: give a data set with __getitem__ and __len__")
    drawn_by: Any = data_loader.batch_sampler
    units = len(data_loader.dataset)  # type: ignore[arg-type]
    if draws_already(drawn_by):
        own = getattr(drawn_by, "draws", None)  # PoissonBatchSampler's
        return SamplingPlan(units, drawn_by.sample_rate, steps_at(drawn_by.sample_rate) if own is None else own, poisson)
    if len(data_loader) == 0:
        raise ValueError("the data loader has no batches: no units, or fewer than a batch with drop_last")
    return SamplingPlan(units, 1 / len(data_loader), len(data_loader), poisson)


def steps_at(rate: float) -> int:
    """Draws of a pass if nobody says how many: 1 / rate. int(1 / rate) would say 92 for 1/93. Down for other rates, so that
    epochs · steps stay within epochs / rate."""
    exact = 1 / rate
    return round(exact) if math.isclose(exact, round(exact), rel_tol=1e-12) else math.floor(exact)


__all__ = ["ITERABLE", "SAMPLINGS", "SamplingPlan", "draws_already", "plan_of", "rate_in_group", "steps_at"]
