"""How the noise of different steps hangs together, as make_private(noise_bands=…) or (noise_chain=…) asks for it: weights that serve
the run best, from public numbers alone. dp/mechanism/noise_bands.h and noise_chain.h say what is done with them."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _native
from ..optim.base import RowOptimizer
from ..optim.matrices import MatrixOptimizer, is_matrix

ARGUMENTS = ("noise_bands", "noise_chain", "noise_rates")  # of make_private()


@dataclass(frozen=True)
class Correlation:
    """Noise bands, a noise chain, or white noise, which has neither."""

    ratios: tuple[float, ...] = ()  # a_1 … a_{b-1} of noise bands, as float32 has them
    chain: tuple[int, float] = (1, 0.0)  # steps b and decay of a noise chain
    steps: int = 1  # of the run that the weights were chosen for

    @property
    def groups(self) -> int:
        """b, into which the examples are dealt."""
        return max(len(self.ratios) + 1, self.chain[0])

    @functools.cached_property  # every step asks, and all steps of the run are gone through for it
    def variance(self) -> float:
        """Of an element of a step's noise, relative to white noise's: that of the last step, or the mean of a chain's."""
        if self.groups == 1:
            return 1.0
        return _native.load("engine").correlated_variance(self.for_session(), self.steps)

    def for_session(self) -> tuple[list[float], int, float]:
        return list(self.ratios), *self.chain

    def for_header(self) -> dict[str, Any]:
        """Under the names of the C++ program's ledger."""
        if self.groups == 1:
            return {}
        how: dict[str, Any] = {"noise_bands": [1.0, *self.ratios]} if self.ratios else {"noise_chain": dict(zip(("steps", "decay"), self.chain))}
        return {"sampling_groups": self.groups, **how}

    def in_words(self) -> str:
        if self.ratios:
            return (
                "banded matrix mechanism (arXiv:2306.08153): the noise of a step takes back parts of the "
                f"{len(self.ratios)} steps before, by noise_bands in the ledger's header; a session takes back none of an earlier session's"
            )
        return (
            f"lambda-CGD (arXiv:2601.22334) in chains of {self.groups} steps: the noise of a step takes back a part of the noise of the step "
            "before, which is drawn again from the key; a session takes back none of an earlier session's"
        )


WHITE = Correlation()


def groups_of(noise_bands: Any, noise_chain: Any) -> int:
    """Into how many groups the examples are dealt. ValueError for numbers that cannot be, and for both."""
    for name, value in (("noise_bands", noise_bands), ("noise_chain", noise_chain)):
        if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    if noise_bands > 1 and noise_chain > 1:
        raise ValueError("give one of noise_bands and noise_chain: one of them correlates the noise")
    return max(noise_bands, noise_chain)


def chosen(
    optimizer: torch.optim.Optimizer, steps: int, *, generator: bool, noise_bands: int = 1, noise_chain: int = 1, noise_rates: Any = None
) -> Correlation:
    """The weights for this optimizer's momenta and noise_rates, the learning rate of each step of the run, in any unit (None: `steps` equal
    ones). generator: noise comes from a generator of the caller's. ValueError for rates that cannot be, and for what the noise cannot
    go with."""
    if groups_of(noise_bands, noise_chain) == 1:
        if noise_rates is not None:
            raise ValueError("noise_rates weigh correlated noise: give noise_bands or noise_chain with them")
        return WHITE
    if isinstance(optimizer, RowOptimizer):
        optimizer.refuse_correlated_errors()
    if noise_chain > 1 and generator:
        raise ValueError(
            "noise_chain draws the noise of the step before again, by the run's own key: it cannot be combined with a noise_generator"
        )
    rates = [1.0] * steps if noise_rates is None else _rates(noise_rates)
    engine, momenta = _native.load("engine"), momenta_of(optimizer)
    if noise_bands > 1:
        return Correlation(ratios=tuple(engine.band_ratios(noise_bands, rates, momenta)), steps=len(rates))
    return Correlation(chain=(noise_chain, engine.chain_decay(noise_chain, rates, momenta)), steps=len(rates))


def equal_rates(groups: int, steps: int) -> dict[str, list[float]]:
    """make_private()'s argument for a run of so many steps, if its noise is correlated."""
    return {"noise_rates": [1.0] * int(steps)} if groups > 1 else {}


def momenta_of(optimizer: torch.optim.Optimizer) -> list[tuple[float, float]]:
    """(momentum, elements of the parameters that are trained with it), ascending."""
    found: Counter[float] = Counter()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                found[_momentum_of(optimizer, parameter, group)] += parameter.numel()
    return [(momentum, float(count)) for momentum, count in sorted(found.items()) if count] or [(0.0, 1.0)]


def _momentum_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, group: dict[str, Any]) -> float:
    """How much of a step's gradient is left in the next step: "momentum" of SGD and of Muon's matrices, the first of Adam's betas."""
    by_adam = isinstance(optimizer, MatrixOptimizer) and not is_matrix(parameter, group)
    if "momentum" in group and not by_adam:
        return float(group["momentum"])
    return float(group["betas"][0]) if "betas" in group else 0.0


def _rates(rates: Sequence[float]) -> list[float]:
    try:
        found = [float(rate) for rate in rates]
    except (TypeError, ValueError) as error:
        raise ValueError(f"noise_rates must be a learning rate for each step of the run: {error}") from error
    if not found or not all(rate > 0 and math.isfinite(rate) for rate in found):
        raise ValueError("noise_rates must be finite and > 0, one for each step of the run")
    return found


__all__ = ["ARGUMENTS", "WHITE", "Correlation", "chosen", "equal_rates", "groups_of", "momenta_of"]
