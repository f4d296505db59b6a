"""Coins and noise that follow a generator of the program's own: a run that can be repeated, and no secret to those who know the seed."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["refuse_or_warn", "sentence"]


def _given(data_loader: Any, noise_generator: Any, poisson: bool) -> dict[str, str]:
    """By name of what was given: what it decides. Batches of the caller's own are charged as if they held everything, however they are drawn."""
    coins = poisson and getattr(data_loader, "generator", None) is not None
    found = {"the data loader's generator": "which examples are drawn"} if coins else {}
    return found | ({"noise_generator": "the noise"} if noise_generator is not None else {})


def sentence(data_loader: Any, noise_generator: Any, *, poisson: bool) -> str | None:
    """What the report assumes of the seed; None if the operating system tosses every coin."""
    if not (given := _given(data_loader, noise_generator, poisson)):
        return None
    known = " and ".join(given.values())
    return f"A generator that the training program made decides {known}. Who sees the releases does not know its seed, not from the program's code either, and no other run had it."


def refuse_or_warn(data_loader: Any, noise_generator: Any, *, poisson: bool, registered: bool) -> None:
    """ValueError if there is a register: it adds runs up, and two of one seed toss the same coins and cancel each other's noise."""
    if not (given := _given(data_loader, noise_generator, poisson)):
        return
    names = " and ".join(given)
    if registered:
        raise ValueError(f"a budget register adds up runs whose coins and noise are independent, and those of one seed are not: leave out {names}")
    warnings.warn(
        f"{names} {'decides' if len(given) == 1 else 'decide'} {' and '.join(given.values())}: epsilon does not hold against those who know the seed, nor together with another "
        "run of the same seed. The report will say so. Leave it out, unless this run must be repeated to the bit",
        stacklevel=6,
    )
