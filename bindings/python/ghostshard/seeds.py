"""Coins and noise that follow a generator of the program's own: a run that can be repeated, and no secret to those who know the seed."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["refuse_or_warn", "sentence"]


def _followers(data_loader: Any, noise_generator: Any) -> list[str]:
    coins = getattr(data_loader, "generator", None) is not None
    return ["which examples are drawn"] * coins + ["the noise"] * (noise_generator is not None)


def sentence(data_loader: Any, noise_generator: Any) -> str | None:
    """What the report assumes of the seed; None if the operating system tosses every coin."""
    if not (known := " and ".join(_followers(data_loader, noise_generator))):
        return None
    return f"A generator that the training program made decides {known}. Who sees the releases does not know its seed, not from the program's code either, and no other run had it."


def refuse_or_warn(data_loader: Any, noise_generator: Any, *, poisson: bool, registered: bool) -> None:
    """ValueError if there is a register: it adds runs up, and two of one seed toss the same coins and cancel each other's noise."""
    data_loader = data_loader if poisson else None  # batches of the caller's own are charged as if they held everything
    if not (known := " and ".join(_followers(data_loader, noise_generator))):
        return
    names = ["the data loader's generator"] * (getattr(data_loader, "generator", None) is not None) + ["noise_generator"] * (noise_generator is not None)
    given = " and ".join(names)
    if registered:
        raise ValueError(f"a budget register adds up runs whose coins and noise are independent, and those of one seed are not: leave out {given}")
    warnings.warn(
        f"{given} {'decides' if len(names) == 1 else 'decide'} {known}: epsilon does not hold against those who know the seed, nor together with another run of the same seed. The report "
        "will say so. Leave it out, unless this run must be repeated to the bit",
        stacklevel=6,
    )
