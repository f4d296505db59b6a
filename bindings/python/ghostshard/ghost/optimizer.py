"""Opacus' optimizer interface over the engine: step() releases the noised mean and lets the wrapped optimizer use it."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..optim.base import RowOptimizer
from ..set_once import SetOnce
from .checks.alike import digest_of_settings
from .checks.held_settings import watch_schedulers
from .checks.released import Released
from .opacus_names import VIRTUAL_STEP, PartsOfAStep
from .own_part import own_part
from .provenance import READS, Drawn, Read, ReadInt, Summaries, watch_collectives

if TYPE_CHECKING:
    from .engine import GhostEngine


CHARGES = "ghostshard_charges"
_TURNS = ("train", "eval")
_WATCHED = "_ghostshard_watched"  # of ReduceLROnPlateau.step, once it is replaced


class GhostOptimizer(SetOnce, PartsOfAStep, DPOptimizerFastGradientClipping):
    """Clip norm and noise multiplier are read when a logical batch begins (schedulers may change them in between).

    `p.grad_sample` and `p.summed_grad` stay None: a gradient without noise cannot be read.
    """

    set_once = {
        "expected_batch_size": "the data loader's batch_size", "loss_reduction": "make_private(loss_reduction=)", "generator": "make_private(noise_generator=)",
        "secure_mode": "PrivacyEngine(secure_mode=)",
    }  # fmt: skip

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
        _watch_plateaus()
        watch_schedulers()
        watch_collectives()
        self.engine = engine
        self.metrics: list[float] = []  # that schedules were given since the ranks met
        self.adapted: float | None = None  # the clip norm, as it follows from what was released
        self.charges: Callable[[], int] = lambda: 0  # of the run
        self.owes: Callable[[int], None] = lambda charges: None  # so many, of the run whose state is loaded
        self.released = Released(lambda: self.engine.layout, optimizer, lambda: self.engine is not None and self.engine.watching)
        if engine is not None:
            self.released.weights = engine.weights
            engine.weights.states.follow(optimizer)
            engine.weights.settings.follow(self)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS asks for several gradients of one batch in a step, and a private step releases one: take another optimizer"
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise ValueError(
                "SparseAdam takes sparse gradients, but what a private step releases has noise in every row, also of words that nobody has: "
                "take torch.optim.Adam"
            )

    def terms(self) -> tuple[float, float]:
        """Clip norm and noise multiplier, as they are now. ValueError if they were read from a private batch."""
        _refuse_read("max_grad_norm", self.max_grad_norm)
        _refuse_read("noise_multiplier", self.noise_multiplier)
        return float(self.max_grad_norm), float(self.noise_multiplier)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, and how many steps the run has charged: whoever loads it elsewhere must know of them. In each group too, since
        torch's optimizers keep what groups hold, and one may load this before make_private()."""
        state, charged = super().state_dict(), {CHARGES: self.charges()}
        return {**state, **charged, "param_groups": [{**group, **charged} for group in state["param_groups"]]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.owes(int(state_dict.get(CHARGES, 0)))
        super().load_state_dict({name: value for name, value in state_dict.items() if name != CHARGES})
        self._take_marks()

    def count_charges(self, charges: Callable[[], int], owes: Callable[[int], None]) -> None:
        """charges() gives those of the run; owes() takes those of runs whose states were loaded, before this too."""
        self.charges, self.owes = charges, owes
        self._take_marks()

    def _take_marks(self) -> None:
        """Out of the groups of the wrapped optimizer, into which a state was loaded."""
        for group in self.original_optimizer.param_groups:
            self.owes(int(group.pop(CHARGES, 0)))

    def __reduce_ex__(self, protocol: int) -> Any:
        raise TypeError(
            "a private optimizer is neither copied nor pickled: a copy would step without a model that clips and a run that is charged. Keep "
            "optimizer.state_dict(), or save_checkpoint() of the engine. (Lightning's averaging callbacks copy the module: hold the optimizer outside of it, "
            "module.configure_optimizers = lambda: optimizer)"
        )

    def _turn(self, name: str) -> None:
        """train() or eval() of a schedule-free optimizer: between the weights that it trains and those that it evaluates it turns them by what it keeps of released
        steps, as its step does. RuntimeError if others changed them before."""
        with self.engine.run.thread.within(f"the optimizer's {name}()"):
            self.engine.weights.check()
            getattr(self.original_optimizer, name)()
            self.engine.weights.note()

    def __getattr__(self, name: str) -> Any:
        if name in _TURNS and hasattr(self.__dict__.get("original_optimizer"), name):
            return functools.partial(self._turn, name)
        if name == "virtual_step":
            raise AttributeError(VIRTUAL_STEP)
        raise AttributeError(
            f"a private optimizer has no {name!r}; the optimizer beneath is optimizer.original_optimizer. (A step of two gradients, SAM's first_step() and "
            "second_step(), would show a draw twice and is not taken)"
        )

    def set_clip_norm(self, clip_norm: float) -> None:
        """Of the next step, from what was released."""
        self.max_grad_norm = self.adapted = clip_norm

    def goes_on(self) -> bool:
        """Whether a BatchMemoryManager has announced that the next step() only ends a part of the logical batch."""
        return self._check_skip_next_step(pop_next=False)

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
            with self.engine.run.thread.within("zero_grad()"):
                self.engine.abandon()
        self.released.end()
        self.original_optimizer.zero_grad(set_to_none)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Puts the released gradients into `.grad`, for a step of `original_optimizer`. False: this step() ends a part of a logical batch
        alone."""
        return self._release(alone=False)

    def _release(self, *, alone: bool) -> bool:
        """alone: the step of the original optimizer follows at once."""
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            self.engine.pause()
            return False
        self._is_last_step_skipped = False
        for group in self.param_groups:
            for name, value in group.items():
                if name != "params":
                    _refuse_read(name, value)
        with self.engine.run.thread.within("a step"):
            variance = self.engine.release(sum(_rate(group) for group in self.param_groups), digest_of_settings(self.original_optimizer, self.engine))
        if isinstance(self.original_optimizer, RowOptimizer):
            self.original_optimizer.set_error_variance(variance, correlated=self.engine.run.correlation.groups > 1)
        self.released.begin(self.original_optimizer, alone=alone and self.step_hook is None)
        if self.step_hook:
            self.step_hook(self)
        return True

    def _only_makes_states(self) -> bool:
        """torch.distributed.checkpoint steps so, to have states before it reads or writes them: without a batch, at a rate of 0, with gradients of zeros."""
        session = self.engine.session
        given = [parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]
        between = (session is None or not session.open) and bool(given) and all(each is not None for each in given)
        return between and all(_rate(group) == 0 for group in self.param_groups) and not any(own_part(each).count_nonzero() for each in given)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is None and self._only_makes_states():
            return self.original_optimizer.step()
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self.engine.run.thread.within("a step"):
            if not self._release(alone=True):
                return None
            try:
                stepped = self.original_optimizer.step()
            finally:
                self.released.end()
        return loss if stepped is None else stepped


def _of_the_original(name: str) -> Callable[..., Any]:
    """Hooks are those of the optimizer that steps."""

    def register(self: GhostOptimizer, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.original_optimizer, name)(*args, **kwargs)

    register.__name__ = name
    return register


for _name in (
    "register_step_pre_hook", "register_step_post_hook", "register_state_dict_pre_hook", "register_state_dict_post_hook",
    "register_load_state_dict_pre_hook", "register_load_state_dict_post_hook",
):  # fmt: skip
    setattr(GhostOptimizer, _name, _of_the_original(_name))


def _rate(group: dict[str, Any]) -> float:
    """Zero if the optimizer takes none, or makes its own (Transformers' Adafactor: None)."""
    rate = group.get("lr")
    return 0.0 if rate is None else float(rate)


def _refuse_read(name: str, value: object) -> None:
    if isinstance(value, (list, tuple)):
        for each in value:
            _refuse_read(name, each)
    if isinstance(value, (Read, ReadInt, Drawn, DPTensorFastGradientClipping)):
        raise ValueError(
            f"the optimizer's {name} was read from a private batch (its loss, its norms): what is released would follow from it without "
            'noise. Let it follow from the step, or from public data; clipping="adaptive" follows the norms privately'
        )


def _watch_plateaus() -> None:
    """From the first private optimizer on, a ReduceLROnPlateau of one takes no number of a private batch, as long as it is known to be one.
    Those of other optimizers step as before. May be called again."""
    step = ReduceLROnPlateau.step
    if hasattr(step, _WATCHED):
        return
    given: weakref.WeakKeyDictionary[ReduceLROnPlateau, Summaries] = weakref.WeakKeyDictionary()

    @functools.wraps(step)
    def watched(self: ReduceLROnPlateau, metrics: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self.optimizer, GhostOptimizer) and isinstance(metrics, DPTensorFastGradientClipping):
            metrics = metrics.detach()
        if isinstance(self.optimizer, GhostOptimizer):
            summaries = given.setdefault(self, Summaries(READS))
            _refuse_read("learning rate", Read(metrics) if summaries.refuses(float(metrics)) else metrics)
            self.optimizer.metrics.append(float(metrics))
            del self.optimizer.metrics[:-64]  # of one rank alone nobody asks
        step(self, metrics, *args, **kwargs)

    setattr(watched, _WATCHED, True)
    ReduceLROnPlateau.step = watched  # type: ignore[method-assign]
