"""`clipping="adaptive"`: the clip norm follows a quantile of the examples' norms. The C++ side is dp/mechanism/clip_quantile.h."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import _native

NAMES = ("target_unclipped_quantile", "clipbound_learning_rate", "max_clipbound", "min_clipbound", "unclipped_num_std")


@dataclass(frozen=True)
class ClipQuantile:
    """Under the names of Opacus' AdaClipDPOptimizer. The count of examples below the clip norm is divided by the expected batch,
    never by the true one."""

    target_unclipped_quantile: float
    clipbound_learning_rate: float
    max_clipbound: float
    min_clipbound: float
    unclipped_num_std: float  # of the count's noise, in examples

    def for_session(self) -> tuple[float, float, float, float, float]:
        return (
            self.target_unclipped_quantile, self.clipbound_learning_rate, self.unclipped_num_std, self.min_clipbound, self.max_clipbound
        )  # fmt: skip

    def for_header(self) -> dict[str, float]:
        names = ("target", "rate", "count_noise", "least", "most")
        return dict(zip(names, self.for_session(), strict=True))

    def gradient_noise(self, noise_multiplier: float) -> float:
        """What is left for gradients of a noise multiplier for both parts, as the session splits it."""
        return _native.load("engine").gradient_noise(self.for_session(), noise_multiplier)


@dataclass(frozen=True)
class Adaptation:
    """Of one run. set_clip_norm: what terms() of the run gives from then on."""

    quantile: ClipQuantile
    expected_batch: float
    set_clip_norm: Callable[[float], None]


def taken(clipping: str, arguments: dict[str, Any], *, start: Any, noise_multiplier: float, expected_batch: float) -> ClipQuantile | None:
    """Takes its arguments out of those of make_private(); what is not given is as in the paper. ValueError: the rule and the value."""
    given = {name: arguments.pop(name) for name in NAMES if name in arguments}
    if clipping != "adaptive":
        if given:
            raise ValueError(f"{', '.join(given)}: for clipping='adaptive', got clipping={clipping!r}")
        return None
    defaults = {
        "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 1000 * start, "min_clipbound": start / 1000,
        "unclipped_num_std": expected_batch / 20,
    }  # fmt: skip
    found = ClipQuantile(**{name: float(value) for name, value in (defaults | given).items()})
    for name in NAMES:
        value = getattr(found, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be finite and > 0, got {value}")
    if not found.target_unclipped_quantile < 1:
        raise ValueError(f"target_unclipped_quantile must lie strictly between 0 and 1, got {found.target_unclipped_quantile}")
    if not found.min_clipbound <= start <= found.max_clipbound:
        raise ValueError(f"max_grad_norm must lie between min_clipbound {found.min_clipbound} and max_clipbound {found.max_clipbound}, got {start}")
    if not 0 < noise_multiplier < 2 * found.unclipped_num_std:
        raise ValueError(
            f"noise_multiplier must be > 0 and smaller than 2 * unclipped_num_std = {2 * found.unclipped_num_std} (arXiv:1905.03871, "
            f"Theorem 1), got {noise_multiplier}"
        )
    return found


__all__ = ["NAMES", "Adaptation", "ClipQuantile", "taken"]
