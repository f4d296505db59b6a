"""Opacus' optimizer interface over the engine: step() releases the noised mean and lets the wrapped optimizer use it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from torch.optim import Optimizer

if TYPE_CHECKING:
    from .engine import GhostEngine


class GhostOptimizer(DPOptimizerFastGradientClipping):
    """Clip norm and noise multiplier are read when a logical batch begins (schedulers may change them in between).

    `p.grad_sample` and `p.summed_grad` stay None: a gradient without noise cannot be read.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        engine: GhostEngine,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: float | None,
        loss_reduction: str = "mean",
        generator: torch.Generator | None = None,
        secure_mode: bool = False,
        **kwargs: Any,
    ):
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch_size,
            loss_reduction=loss_reduction,
            generator=generator,
            secure_mode=secure_mode,
        )
        if kwargs:
            raise TypeError(f"unknown arguments for grad_sample_mode 'ghost' and 'ghost_fsdp': {sorted(kwargs)}")
        self.engine = engine

    def terms(self) -> tuple[float, float]:
        """Clip norm and noise multiplier, as they are now."""
        return float(self.max_grad_norm), float(self.noise_multiplier)

    def set_clip_norm(self, clip_norm: float) -> None:
        """Of the next step, from what was released."""
        self.max_grad_norm = clip_norm

    @property
    def accumulated_iterations(self) -> int:
        return 1

    @property
    def grad_samples(self) -> list[torch.Tensor]:
        raise ValueError("per-sample gradients are never formed whole in grad_sample_mode 'ghost' and 'ghost_fsdp'")

    def reset_skip_queue(self) -> None:
        """Forgets steps that a BatchMemoryManager announced and that will not come, and drops their unfinished logical batch,
        because its examples may be drawn again and must not count twice."""
        self._step_skip_queue.clear()
        if self._is_last_step_skipped:
            self._is_last_step_skipped = False
            self.engine.abandon()
            warnings.warn(
                "a BatchMemoryManager was left within a logical batch: its sum is dropped, there is no step of it, and it stays "
                "charged",
                stacklevel=4,
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears `.grad`. A logical batch under way is dropped, unless its last step() was to be skipped."""
        if not self._is_last_step_skipped:
            self.engine.abandon()
        self.original_optimizer.zero_grad(set_to_none)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            self.engine.pause()
            return False
        self._is_last_step_skipped = False
        self.engine.release()
        if self.step_hook:
            self.step_hook(self)
        return True

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.pre_step():
            return None
        stepped = self.original_optimizer.step()
        return loss if stepped is None else stepped
