"""Opacus' PrivacyEngine with `grad_sample_mode="ghost"` and `"ghost_fsdp"` of our own; other modes stay Opacus'."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import opacus
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

from . import accountants, checkpoint, kind_of_steps, seeds
from ._native import load
from .asked import Asked, asked_for, refuse_ours
from .checked_call import MODES, check_call, check_engine, check_target, plain_criterion
from .ghost import clip_quantile, correlation
from .ghost.checks.alike import parts_of, together
from .ghost.checks.batches import DrawnBatches, OwnBatches
from .ghost.checks.modules import refuse_unsupported
from .ghost.engine import GhostEngine
from .ghost.loss import PrivateCriterion, check_reduction
from .ghost.optimizer import GhostOptimizer
from .ghost.weights import digest_of_weights
from .ghost.wrappers import GhostHooks, GhostModule
from .keywords import refuse_no_flags
from .loaders import SamplingPlan, items_digest, refusing_shared
from .registered_budget import RegisteredBudget
from .resumable_engine import ResumableEngine, plain_optimizer
from .run_header import ledger_header, report_facts

__all__ = ["PrivacyEngine"]

_ACCOUNTANTS = {
    "contour": accountants.ContourAccountant,
    "prv": accountants.PRVAccountant,
    "rdp": accountants.RDPAccountant,
}


class PrivacyEngine(ResumableEngine):
    """Opacus' interface: https://opacus.ai/api/privacy_engine.html.

    Args:
        accountant: "prv", "rdp" or "contour" (all certified upper bounds, computed here), or Opacus' "gdp".
        secure_mode: coins and noise come from the operating system's generator alone. In our modes they do so by default, unless
            the data loader has a generator or `noise_generator` is given; torchcsprng is not needed.
    """

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False):
        check_engine(accountant, secure_mode, _ACCOUNTANTS)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            super().__init__(accountant="rdp" if accountant in _ACCOUNTANTS else accountant)
        if accountant in _ACCOUNTANTS:
            self.accountant = _ACCOUNTANTS[accountant]()
        else:
            warnings.warn(
                f"accountant {accountant!r} is Opacus' own and no upper bound (gdp is a limit for many steps, which may be below the "
                f"true epsilon): a guarantee needs one of {', '.join(_ACCOUNTANTS)}",
                stacklevel=2,
            )
        self.secure_mode = secure_mode
        self._register_terms: dict[str, Any] | None = None
        self._planned: int | None = None  # charges, within make_private_with_epsilon()
        self._budget: RegisteredBudget | None = None
        self._optimizer: Any = None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: optim.Optimizer,
        criterion: Any = None,
        data_loader: DataLoader,
        noise_multiplier: float,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        **kwargs: Any,
    ) -> tuple:
        """As Opacus' method. In modes "ghost" and "ghost_fsdp" returns (module or hooks, optimizer, criterion, data_loader).

        A step is made of one draw of the returned loader, whole; any other batch is refused. Keyword arguments of our modes:
        `accumulation_steps` (k: the loader cuts each draw into k batches, step() comes after the last), `own_batches` (True, or
        poisson_sampling=False: batches of the caller's own, at most k backwards to a step, each step charged as if it held every
        example), `max_batch_size` (of a larger draw so many examples stay, chosen at random; charged as truncated Poisson sampling),
        `sampling` ("poisson", or "balls_in_bins": each pass over the loader has every example in one random step, and is charged whole before
        its first step; an iteration that ends early is a pass like any other), `noise_bands` (b: each step's noise takes back parts of the
        b−1 steps' before, each draw is from one of b groups of examples) or `noise_chain` (the same of the step before alone, in chains of b
        steps, kept nowhere), weighed for the optimizer's momenta and `noise_rates` (the run's learning rates; by default equal ones),
        `allow_vouched` (True: tensors of ghostshard.vouch_for() are taken, and the report says so), `memory_budget` (what a
        microbatch may record until it is clipped, in bytes or as "1.05x" of a step without privacy; if it takes more, a second
        backward recomputes the records, with 0 from the beginning; by default what the machine has room for), `accumulate` (sum the
        microbatches of a step on the rank, reduce once; by default if there are several, and room),
        `attribution_check` (True: models whose examples' gradients depend on each other are refused at the first backward).

        clipping: "flat", "per_layer", "automatic" (AUTO-S: each example times C/(norm + 0.01)) or "adaptive": max_grad_norm is the first
        step's and follows a quantile of the norms, with Opacus' `target_unclipped_quantile` (0.5), `clipbound_learning_rate` (0.2),
        `max_clipbound`, `min_clipbound` (1000 times and 1/1000 of it) and `unclipped_num_std` (expected batch/20: the count's noise);
        noise_multiplier is that of gradients and count together.
        """
        refuse_no_flags("make_private()", {"batch_first": batch_first, "poisson_sampling": poisson_sampling, "wrap_model": wrap_model, "rand_on_empty": rand_on_empty} | kwargs)
        criterion = plain_criterion(criterion, loss_reduction)
        if grad_sample_mode not in MODES:
            return self._in_a_mode_of_opacus(
                module=module, optimizer=optimizer, criterion=criterion, data_loader=data_loader,
                noise_multiplier=noise_multiplier, max_grad_norm=max_grad_norm, batch_first=batch_first,
                loss_reduction=loss_reduction, poisson_sampling=poisson_sampling, clipping=clipping,
                noise_generator=noise_generator, grad_sample_mode=grad_sample_mode, wrap_model=wrap_model,
                rand_on_empty=rand_on_empty, **kwargs,
            )  # fmt: skip
        check_call(self, noise_generator, module, optimizer, data_loader, criterion, grad_sample_mode, noise_multiplier, max_grad_norm, rand_on_empty)
        if self._ledger is None:
            warnings.warn(
                "no ledger: there will be no privacy report, since report() is made from a ledger that holds the run from its "
                "first step. For a report call attach_ledger(path) before make_private()",
                stacklevel=2,
            )
        check_reduction(loss_reduction)
        asked = asked_for(
            data_loader, kwargs, poisson_sampling=poisson_sampling, mode=grad_sample_mode, noise_multiplier=noise_multiplier, max_grad_norm=max_grad_norm,
            batch_first=batch_first, loss_reduction=loss_reduction, clipping=clipping, generator=noise_generator,
        )  # fmt: skip
        counted = [(name, getattr(self.accountant, name)) for name in ("truncation", "bins") if hasattr(self.accountant, name)]
        engine: GhostEngine | None = None
        try:
            kind_of_steps.settle(asked.plan, self.accountant, clipping=clipping, registered=self._register_terms is not None)
            refuse_unsupported(module)
            kind = GhostModule if wrap_model else GhostHooks
            private = kind(module, batch_first=batch_first, loss_reduction=loss_reduction, clipping=clipping, **asked.of_the_engine)
            engine = private.engine
            join = functools.partial(self._join, asked, engine, module, optimizer, criterion, data_loader)
            data_loader, ghost, criterion, quantile, noise = together(engine.ranks.control, join)
            data_loader = refusing_shared(data_loader, engine.ranks, looked_at=asked.own_batches and not asked.allow_vouched)
            self._open(asked, engine, ghost, quantile, noise, data_loader)
        except BaseException:  # the call can be repeated: nothing of it stays
            if engine is not None:
                engine.detach()
            for name, kind_of_count in counted:
                setattr(self.accountant, name, kind_of_count)
            raise
        return private, ghost, criterion, data_loader

    def _in_a_mode_of_opacus(self, *, grad_sample_mode: str, **arguments: Any) -> tuple:
        refuse_ours(arguments, grad_sample_mode)
        if self._ledger is not None or self._register_terms is not None:
            raise ValueError(f'a ledger or a register was attached, and {grad_sample_mode=} is Opacus\' engine, which writes none: pass "ghost" or "ghost_fsdp"')
        if self.secure_mode:
            raise ValueError(f"secure_mode with {grad_sample_mode=} is Opacus' and needs its own PrivacyEngine")
        warnings.warn(
            f'grad_sample_mode={grad_sample_mode!r} runs the engine of Opacus, without the speed and the guarantees of this '
            'package: pass grad_sample_mode="ghost", or "ghost_fsdp" for a sharded model',
            stacklevel=3,
        )
        return super().make_private(grad_sample_mode=grad_sample_mode, **arguments)

    def make_private_with_epsilon(
        self, *, data_loader: DataLoader, target_epsilon: float, target_delta: float, epochs: int, **kwargs: Any
    ) -> tuple:
        """As Opacus' method, with the noise multiplier of our certified accountants: epsilon after the last step is at most
        the target, and all draws of all epochs are counted, at the rate and the number that the private loader has."""
        check_target(data_loader, target_epsilon, kwargs)
        if len(self.accountant) > 0:
            warnings.warn(
                "make_private_with_epsilon plans from zero, but the accountant has spent some already; together they "
                "will exceed the target",
                stacklevel=2,
            )
        mechanism = self.accountant.mechanism()
        search = accountants if mechanism in _ACCOUNTANTS else opacus.accountants.utils
        tolerance: dict[str, Any] = {name: kwargs[name] for name in ("epsilon_tolerance",) if name in kwargs}
        rate, charges = 1 / len(data_loader), epochs * len(data_loader)  # of Opacus' own modes
        if kwargs.get("grad_sample_mode", "hooks") in MODES:
            poisson = kwargs.get("poisson_sampling", True) and not kwargs.get("own_batches", False)
            plan = kind_of_steps.plan_asked_for(data_loader, kwargs, poisson=poisson)
            rate, charges = plan.charged_rate, plan.charges_of(epochs)
            kwargs = correlation.equal_rates(plan.groups, epochs * plan.steps) | kwargs
            if mechanism in _ACCOUNTANTS:
                tolerance |= {"truncation": plan.truncation, "bins": plan.bins}
        noise_multiplier = search.get_noise_multiplier(
            target_epsilon=target_epsilon, target_delta=target_delta, sample_rate=rate, steps=charges, accountant=mechanism, **tolerance,
        )  # fmt: skip
        self._planned = charges
        try:
            return self.make_private(data_loader=data_loader, noise_multiplier=noise_multiplier, **kwargs)
        finally:
            self._planned = None

    def attach_ledger(self, path: str | os.PathLike) -> None:
        """Names the run's write-ahead ledger; call it before make_private(). Every step is on disk, in a hash chain, before its
        gradient is used.

        Rank 0 writes, and makes its folder. A file that exists is refused, unless load_checkpoint() or load_state_dict() goes on with its run.
        `ghostshard account verify` checks the ledger, and report() is made from it.
        """
        if self._ghost is not None:
            raise ValueError("attach_ledger() comes before make_private(): a ledger holds the run from its first step")
        self._ledger = os.path.abspath(path)  # wherever the program goes

    def attach_register(
        self,
        path: str | os.PathLike,
        *,
        data: str | os.PathLike,
        limit: float | None = None,
        delta: float | None = None,
        steps: int | None = None,
    ) -> None:
        """Names the register of budgets in which all runs on the same data add up; call it before make_private(), with a ledger.

        A run beyond the limit is refused: in make_private() if `steps` says how many it plans (make_private_with_epsilon() does), else
        before the step that breaks it. Register and secret key (path.key) are made if missing. steps: passes with sampling="balls_in_bins". data: the file or folder that holds the data; its content under the key says which data it is. limit: epsilon of all runs together at `delta` (default as in report()); the first run must give it.
        """
        if self._ghost is not None:
            raise ValueError("attach_register() comes before make_private(): it may refuse the run")
        self._register_terms = {"path": os.path.abspath(path), "data": os.path.abspath(data), "limit": limit, "delta": delta, "steps": steps}

    def report(self, path: str | os.PathLike, *, delta: float | None = None, every_rank: bool = False) -> str:
        """Writes privacy_report.json and privacy_report.html into the folder `path`; returns the summary for people.

        The numbers come from the ledger, so attach_ledger() must have come first. delta: default min(1e-6, n^-1.1) for n
        examples. On several ranks call it on rank 0; or on all of them with every_rank=True: then rank 0 writes, and the report of a
        sharded model has the digest of its weights, which all ranks gather for it (ghostshard.digest_of_weights).
        """
        refuse_no_flags("report()", {"every_rank": every_rank})
        if self._ledger is None or self._ghost is None:
            raise ValueError("report() is made from the write-ahead ledger: call attach_ledger(path) before make_private()")
        ghost, ledger = self._ghost, self._ledger
        changed = ghost.meet_to_save(together=every_rank)
        if every_rank or ghost.ranks.control is None:
            ghost.charge_skipped()
        weights = "not known: the model is sharded, and report() was called on one rank, without every_rank=True"
        if changed:
            weights = "not known: weights were changed after the last step, and this report says nothing of those"
        elif every_rank or not checkpoint.is_sharded(ghost.model):
            weights = digest_of_weights((entry.name, entry.parameter) for entry in ghost.layout.parameters)
        if delta is None:
            delta = accountants.default_delta(len(self.dataset))

        def write() -> str:
            self._check_ledger()
            (folder := Path(path)).mkdir(parents=True, exist_ok=True)
            accountant = name if (name := self.accountant.mechanism()) in _ACCOUNTANTS else "contour"
            facts = json.dumps(report_facts(plain_optimizer(self._optimizer), self._budget, weights))
            return load("accountant").write_report(ledger, float(delta), facts, str(folder), accountant)

        return checkpoint.on_rank_0(ghost.ranks, write) if every_rank else write()

    def _join(
        self, asked: Asked, engine: GhostEngine, module: nn.Module, optimizer: Any, criterion: Any, data_loader: DataLoader
    ) -> tuple[tuple, Callable[[], dict[str, str]]]:
        """The parts of the run, and what all ranks must have alike. What is refused here is refused on all ranks."""
        if self._register_terms is not None and self._ledger is None:
            raise ValueError("a budget register knows a run by its ledger: call attach_ledger(path) before make_private()")
        self._refuse_other_charges()
        plan, plain = asked.plan, plain_optimizer(optimizer)
        seeds.refuse_or_warn(data_loader, asked.generator, poisson=plan.poisson, registered=self._register_terms is not None)
        quantile, noise = asked.quantile(), asked.noise(plain)
        loader = kind_of_steps.private_loader(data_loader, plan, engine.ranks, asked.accumulation_steps, secure_mode=self.secure_mode)
        ghost = GhostOptimizer(
            plain, engine=engine, secure_mode=self.secure_mode, loss_reduction=asked.loss_reduction, noise_multiplier=asked.noise_multiplier,
            max_grad_norm=asked.max_grad_norm, generator=asked.generator,
            expected_batch_size=plan.expected_batch / engine.ranks.data_ranks,  # per worker, as Opacus means it
        )  # fmt: skip
        private_criterion = PrivateCriterion(engine, ghost, criterion, asked.loss_reduction)

        def parts() -> dict[str, str]:
            arguments = asked.arguments() | {
                "the clip quantile": quantile, "correlated noise": noise, "a ledger": self._ledger is not None,
                "a budget register": self._register_terms is not None, "the accountant": self._charged.named(self.accountant), "a generator of the data loader": data_loader.generator is not None,
            }  # fmt: skip
            found = parts_of(module, engine.layout, criterion, optimizer, arguments)
            return found if asked.own_batches else {**found, "the data set": items_digest(data_loader.dataset)}

        return (loader, ghost, private_criterion, quantile, noise), parts

    def _open(
        self, asked: Asked, engine: GhostEngine, ghost: GhostOptimizer, quantile: clip_quantile.ClipQuantile | None,
        noise: correlation.Correlation, data_loader: DataLoader,
    ) -> None:
        """Loader, engine, optimizer and accountant become one run: the engine trains on what the loader hands out, each batch charged."""
        plan = asked.plan

        def charge(noise_multiplier: float) -> None:
            self._charged.charge(self.accountant, noise_multiplier, plan.charged_rate, kind_of_steps.counted_as(plan))

        def charge_draw() -> tuple[float, float]:
            terms = ghost.terms()
            charge(terms[1])
            return terms

        batches: DrawnBatches | OwnBatches = OwnBatches(asked.accumulation_steps, inputs_may_train=asked.allow_vouched, announced=ghost.goes_on)
        if plan.poisson:
            sampler: Any = data_loader.batch_sampler
            charges = kind_of_steps.charges(plan, sampler)
            batches = DrawnBatches(charge_draw, sampler=sampler, allow_vouched=asked.allow_vouched, batch_first=engine.batch_first, charges=charges)
            sampler.stamps.receiver, sampler.stamps.alone, sampler.given = batches, engine.run.thread.check, self._given
        engine.run.given = self._given
        ghost.released.any_change = engine.weights.vouched = asked.allow_vouched
        engine.set_constants(
            sampling_rate=plan.charged_rate,
            divisor=float(plan.expected_batch) if ghost.loss_reduction == "mean" else 1.0,
            terms=ghost.terms,
            generator=ghost.generator,
            batches=batches,
            trained=lambda: chain.from_iterable(group["params"] for group in ghost.original_optimizer.param_groups),
            charge=charge,
            adaptation=None if quantile is None else clip_quantile.Adaptation(quantile, float(plan.expected_batch), ghost.set_clip_norm),
            largest_batch=plan.truncation,
            bins=plan.bins,
            correlation=noise,
        )
        header = ledger_header(plan, ghost, engine, allow_vouched=asked.allow_vouched, seeded=seeds.sentence(data_loader, ghost.generator, poisson=plan.poisson))
        if self._ledger is not None:
            engine.attach_ledger(self._ledger, header)
        own = checkpoint.on_rank_0(engine.ranks, lambda: self._spending.own)  # all ranks are one process here
        budget = engine.run.budget = self._registered(engine, plan)
        self._remember(data_loader, engine.layout)
        # From here on nothing can be refused: the run is this engine's.
        ghost.count_charges(self._charges, self._owe)
        self._spending.own, self._header, self._budget = own, header, budget
        self._optimizer, self._ghost, self._loader = ghost, engine, data_loader

    def _registered(self, engine: GhostEngine, plan: SamplingPlan) -> RegisteredBudget | None:
        """ValueError on all ranks if the register has no room for the run. A collective."""
        if self._register_terms is None:
            return None
        terms = dict(self._register_terms)
        if terms["delta"] is None:
            terms["delta"] = accountants.default_delta(plan.units)
        if terms["steps"] is None:
            terms["steps"] = self._planned
        at_first = (engine.run.terms_now()[1], plan.charged_rate)
        return RegisteredBudget(
            **terms, block_of=plan.charges, bins=plan.bins, ledger=self._ledger or "", ranks=engine.ranks, terms=at_first
        )
