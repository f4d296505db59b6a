"""Opacus' PrivacyEngine with `grad_sample_mode="ghost"` and `"ghost_fsdp"` of our own; other modes stay Opacus'."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import opacus
import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import nn, optim
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

from . import accountants, checkpoint
from ._native import load
from .loaders import GhostDataLoader, PoissonBatchSampler
from .ghost.loss import PrivateCriterion, check_reduction
from .ghost.wrappers import GhostHooks, GhostModule
from .ghost.optimizer import GhostOptimizer

__all__ = ["PrivacyEngine"]

MODES = ("ghost", "ghost_fsdp")
_PRIVACY = "ghostshard_privacy_state"  # in a checkpoint of one file
_ACCOUNTANTS = {
    "contour": accountants.ContourAccountant,
    "prv": accountants.PRVAccountant,
    "rdp": accountants.RDPAccountant,
}


class PrivacyEngine(opacus.PrivacyEngine):
    """Opacus' interface: https://opacus.ai/api/privacy_engine.html.

    Args:
        accountant: "prv", "rdp" or "contour" (all certified upper bounds, computed here), or Opacus' "gdp".
        secure_mode: coins and noise from the operating system's generator alone. In our modes they are by default,
            unless `noise_generator` is given; torchcsprng is not needed.
    """

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            super().__init__(accountant="rdp" if accountant in _ACCOUNTANTS else accountant)
        if accountant in _ACCOUNTANTS:
            self.accountant = _ACCOUNTANTS[accountant]()
        self.secure_mode = secure_mode
        self._ghost: Any = None
        self._ledger: str | None = None
        self._spending = checkpoint.Spending()
        self._loader: Any = None
        self._header: dict = {}

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
        """As Opacus'. In modes "ghost" and "ghost_fsdp" returns (module or hooks, optimizer, criterion, data_loader).

        Further keyword arguments of our modes: `memory_budget` (bytes that a microbatch may record
        until it is clipped; where it takes more, a second backward takes the place of what is kept, with 0 from the beginning),
        `accumulate` (sum the microbatches of a step on the rank and reduce once) and `attribution_check` (True: models
        whose examples' gradients depend on each other are refused at the first backward, by two backwards more).
        """
        criterion = nn.CrossEntropyLoss(reduction=loss_reduction) if criterion is None else criterion
        if grad_sample_mode not in MODES:
            if self.secure_mode:
                raise ValueError(
                    f"secure_mode with grad_sample_mode={grad_sample_mode!r} is Opacus' and needs its own PrivacyEngine"
                )
            return super().make_private(
                module=module,
                optimizer=optimizer,
                criterion=criterion,
                data_loader=data_loader,
                noise_multiplier=noise_multiplier,
                max_grad_norm=max_grad_norm,
                batch_first=batch_first,
                loss_reduction=loss_reduction,
                poisson_sampling=poisson_sampling,
                clipping=clipping,
                noise_generator=noise_generator,
                grad_sample_mode=grad_sample_mode,
                wrap_model=wrap_model,
                rand_on_empty=rand_on_empty,
                **kwargs,
            )
        _check(noise_generator, self.secure_mode, module, optimizer, grad_sample_mode, max_grad_norm)
        check_reduction(loss_reduction)
        if rand_on_empty:
            raise ValueError(
                "rand_on_empty puts a random example where nothing was drawn, so that one example more or less moves "
                "the sum by up to twice the clip norm; an empty batch is a step like any other here"
            )
        options = {name: kwargs.pop(name) for name in ("memory_budget", "accumulate", "attribution_check") if name in kwargs}
        kwargs.pop("epsilon_tolerance", None)
        self.validate(module=module, optimizer=None, data_loader=None)
        kind = GhostModule if wrap_model else GhostHooks
        private = kind(
            module, batch_first=batch_first, loss_reduction=loss_reduction, clipping=clipping, **options
        )
        engine = private.engine
        self._remember(data_loader)
        if poisson_sampling:
            if self.secure_mode and data_loader.generator is not None:
                raise ValueError("secure_mode draws coins from the operating system: the data loader has a generator")
            data_loader = GhostDataLoader.from_data_loader(
                data_loader,
                rank=engine.ranks.data_rank,
                world_size=engine.ranks.data_ranks,
                batch_first=batch_first,
                process_group=engine.ranks.data,
                twins=engine.ranks.twins,
            )
        else:
            warnings.warn(
                "without Poisson sampling the accountant's epsilon is that of another sampler: it is no guarantee for "
                "this run",
                stacklevel=2,
            )
        sample_rate = data_loader.sample_rate if poisson_sampling else 1 / len(data_loader)
        expected_batch = int(len(data_loader.dataset) * sample_rate)
        if expected_batch < 1:
            raise ValueError(f"the data set must fill at least one example per step, got {len(data_loader.dataset)}")
        ghost = GhostOptimizer(
            optimizer.original_optimizer if isinstance(optimizer, opacus.optimizers.DPOptimizer) else optimizer,
            engine=engine,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch / engine.ranks.data_ranks,  # per worker, as Opacus means it
            loss_reduction=loss_reduction,
            generator=noise_generator,
            secure_mode=self.secure_mode,
            **kwargs,
        )
        engine.set_constants(
            sampling_rate=sample_rate,
            divisor=float(expected_batch) if loss_reduction == "mean" else 1.0,
            terms=ghost.terms,
            generator=noise_generator,
        )
        ghost.attach_step_hook(self.accountant.get_optimizer_hook_fn(sample_rate=sample_rate))
        self._header = _ledger_header(data_loader, sample_rate, expected_batch, ghost, engine, poisson_sampling)
        if self._ledger is not None:
            engine.attach_ledger(self._ledger, self._header)
        self._spending.own = checkpoint.on_rank_0(engine.ranks, lambda: self._spending.own)  # all ranks are one process here
        self._ghost, self._loader = engine, data_loader
        return private, ghost, PrivateCriterion(engine, ghost, criterion, loss_reduction), data_loader

    def make_private_with_epsilon(
        self,
        *,
        data_loader: DataLoader,
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        **kwargs: Any,
    ) -> tuple:
        """As Opacus', with the noise multiplier of our certified accountants: epsilon after the last step is at most
        the target, and all steps of all epochs are counted (`epochs * len(data_loader)`)."""
        if len(self.accountant) > 0:
            warnings.warn(
                "make_private_with_epsilon plans from zero, but the accountant has spent some already; together they "
                "will exceed the target",
                stacklevel=2,
            )
        mechanism = self.accountant.mechanism()
        search = accountants if mechanism in _ACCOUNTANTS else opacus.accountants.utils
        tolerance = {"epsilon_tolerance": kwargs["epsilon_tolerance"]} if "epsilon_tolerance" in kwargs else {}
        noise_multiplier = search.get_noise_multiplier(
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            sample_rate=1 / len(data_loader),
            steps=epochs * len(data_loader),
            accountant=mechanism,
            **tolerance,
        )
        return self.make_private(data_loader=data_loader, noise_multiplier=noise_multiplier, **kwargs)

    def attach_ledger(self, path: str | os.PathLike) -> None:
        """Before make_private: a write-ahead ledger. Every step is on disk, in a hash chain, before its gradient is used.

        Rank 0 writes. A file that exists is refused, unless load_checkpoint() or load_state_dict() goes on with its run.
        `ghostshard-account verify` checks it, and report() is made from it.
        """
        if self._ghost is not None:
            raise ValueError("attach_ledger() comes before make_private(): a ledger holds the run from its first step")
        self._ledger = os.fspath(path)

    def report(self, path: str | os.PathLike, *, delta: float | None = None) -> str:
        """Writes privacy_report.json and privacy_report.html into the folder `path`; returns the summary for people.

        From the ledger, so attach_ledger() must have come first. delta: default min(1e-6, n^-1.1) for n examples. On
        several ranks call it on rank 0.
        """
        if self._ledger is None or self._ghost is None:
            raise ValueError("report() is made from the write-ahead ledger: call attach_ledger(path) before make_private()")
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if delta is None:
            delta = accountants.default_delta(len(self.dataset))
        mechanism = self.accountant.mechanism()
        accountant = mechanism if mechanism in _ACCOUNTANTS else "contour"
        return load("accountant").write_report(self._ledger, float(delta), "{}", str(folder), accountant)

    def state_dict(self) -> dict[str, Any]:
        """What must be in every checkpoint of this run, beside weights: all that was charged and by whom, the step, and
        where the ledger stands. With load_state_dict() the engine is a `Stateful` of torch.distributed.checkpoint:

            dcp.save({"model": …, "optimizer": …, "privacy": engine}, checkpoint_id=folder)

        RuntimeError within a logical batch. A collective: every rank calls it, as dcp.save and dcp.load do.
        """
        return {"state": self._state(lambda read: checkpoint.on_rank_0(self._engine().ranks, read))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the run of the checkpoint, under a new key, with new coins; what this engine has charged since then
        stays charged. Where that run kept a ledger, attach_ledger() must have named it (it is verified, and holds the
        steps that were taken after the checkpoint as well; the larger count wins, with a warning).

        ValueError with what is missing; the engine takes no step then until a load succeeds. A collective.
        """
        engine = self._engine()
        engine.stop("no checkpoint could be loaded last time, so what was spent is not known: load one, or build a new engine")
        self._load_state(checkpoint.parse(state_dict.get("state")))
        engine.stop(None)

    def save_checkpoint(
        self,
        *,
        path: Any,
        module: nn.Module,
        optimizer: Any = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        checkpoint_dict: dict[str, Any] | None = None,
        module_state_dict_kwargs: dict[str, Any] | None = None,
        torch_save_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """As Opacus', into one file, with state_dict() in it. For a model under FSDP2 or tensor parallelism a folder of
        torch.distributed.checkpoint, which can be loaded on any number of ranks; then a collective, and the folder must be
        new. RuntimeError within a logical batch.
        """
        inner = getattr(module, "_module", module)
        if not checkpoint.is_sharded(inner):
            if self._ghost is not None:
                # Of one rank, as Opacus' users call it on rank 0 alone.
                checkpoint_dict = (checkpoint_dict or {}) | {_PRIVACY: self._state(lambda read: read())}
            super().save_checkpoint(
                path=path, module=module, optimizer=optimizer, noise_scheduler=noise_scheduler,
                grad_clip_scheduler=grad_clip_scheduler, checkpoint_dict=checkpoint_dict,
                module_state_dict_kwargs=module_state_dict_kwargs, torch_save_kwargs=torch_save_kwargs,
            )  # fmt: skip
            return
        if module_state_dict_kwargs or torch_save_kwargs:
            raise ValueError("a sharded checkpoint takes neither module_state_dict_kwargs nor torch_save_kwargs")
        parts: dict[str, Any] = {"privacy": self.state_dict()}
        for name, scheduler in (("noise_scheduler", noise_scheduler), ("grad_clip_scheduler", grad_clip_scheduler)):
            if scheduler is not None:
                parts[name] = pickle.dumps(scheduler.state_dict())
        if checkpoint_dict:
            parts["checkpoint_dict"] = pickle.dumps(checkpoint_dict)
        checkpoint.save_folder(path, self._engine().ranks, inner, _plain(optimizer), parts)

    def load_checkpoint(
        self,
        *,
        path: Any,
        module: nn.Module,
        optimizer: Any = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        module_load_dict_kwargs: dict[str, Any] | None = None,
        torch_load_kwargs: dict[str, Any] | None = None,
    ) -> dict:
        """As Opacus', and from a folder of save_checkpoint() (or of dcp.save with "model", "optimizer" and "privacy"), on
        any number of ranks. The run goes on as load_state_dict() says. Call it after make_private(); every rank does."""
        schedulers = {"noise_scheduler": noise_scheduler, "grad_clip_scheduler": grad_clip_scheduler}
        if not checkpoint.is_folder(path):
            if checkpoint.is_sharded(getattr(module, "_module", module)):
                raise ValueError(f"a sharded model is loaded from a folder of save_checkpoint(), got {path}")
            return self._load_file(
                path=path, module=module, optimizer=optimizer, module_load_dict_kwargs=module_load_dict_kwargs,
                torch_load_kwargs=torch_load_kwargs, **schedulers,
            )  # fmt: skip
        if module_load_dict_kwargs or torch_load_kwargs:
            raise ValueError("a sharded checkpoint takes neither module_load_dict_kwargs nor torch_load_kwargs")
        engine = self._engine()
        parts = checkpoint.load_parts(path, engine.ranks, ["privacy.state", *schedulers, "checkpoint_dict"])
        if "privacy.state" not in parts:
            raise ValueError(f"the checkpoint {path} has no privacy state, so what its run has spent cannot be known")
        self.load_state_dict({"state": parts["privacy.state"]})
        engine.stop("the weights of the last checkpoint could not be loaded whole: load one, or build the model anew")
        checkpoint.load_weights(path, engine.ranks, getattr(module, "_module", module), _plain(optimizer))
        engine.stop(None)
        for name, scheduler in schedulers.items():
            if scheduler is not None and name in parts:
                scheduler.load_state_dict(pickle.loads(parts[name]))
        return pickle.loads(parts["checkpoint_dict"]) if "checkpoint_dict" in parts else {}

    def _load_file(self, **arguments: Any) -> dict:
        if self._ghost is None:
            return super().load_checkpoint(**arguments)
        engine, history = self._engine(), self.accountant.history
        _ = engine.next_step  # not within a logical batch
        engine.stop("the last checkpoint could not be loaded whole: load one, or build model and engine anew")
        loaded = super().load_checkpoint(**arguments)
        if _PRIVACY in loaded:
            self.accountant.history = history
            self._load_state(checkpoint.parse(loaded[_PRIVACY]))
        elif self._ledger is not None and len(self.accountant) > 0:
            raise ValueError(
                "this checkpoint says nothing of a ledger, and a ledger holds a run from its first step: load it into an "
                "engine without one"
            )
        else:
            engine.resume(engine.next_step[0], [], ledger_open=engine.ledger_is_open)
        engine.stop(None)
        return loaded

    def _engine(self) -> Any:
        if self._ghost is None:
            raise ValueError("privacy state belongs to a run: call make_private() in mode 'ghost' or 'ghost_fsdp' first")
        return self._ghost

    def _state(self, read: Any) -> str:
        engine = self._engine()
        step, attempt = engine.next_step
        mark = None
        if engine.ledger_is_open:
            path = os.path.abspath(self._ledger or "")
            mark = read(lambda: checkpoint.mark_of_ledger(path)) | {"path": path}
        return json.dumps(
            {
                "schema": checkpoint.SCHEMA,
                "accountant": {"mechanism": self.accountant.mechanism(), "history": self.accountant.history},
                "branches": self._spending.branches(self.accountant.history, mark and mark["header_hash"]),
                "ledger": mark,
                "step": step,
                "attempt": attempt,
                "terms": self._terms(),
            }
        )

    def _terms(self) -> dict[str, float]:
        engine = self._engine()
        clip_norm, noise_multiplier = engine.terms
        return {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier, "sampling_rate": engine.sampling_rate}

    def _load_state(self, state: dict) -> None:
        engine = self._engine()
        _ = engine.next_step  # not within a logical batch
        mark, ledger, open_now = state["ledger"], None, engine.ledger_is_open
        if state["accountant"]["mechanism"] != self.accountant.mechanism():
            raise ValueError(
                f"the checkpoint is of accountant {state['accountant']['mechanism']!r}, the engine has "
                f"{self.accountant.mechanism()!r}: build it with the same one"
            )
        if mark is not None and self._ledger is None:
            raise ValueError(
                f"the checkpoint's run keeps a ledger ({mark['path']}): name it with attach_ledger() before make_private(), "
                "so that it goes on"
            )
        if mark is None and self._ledger is not None and state["counted"]:
            raise ValueError(
                f"the checkpoint's run kept no ledger, so {self._ledger} would lack its {state['counted'].total()} steps: a "
                "ledger holds a run from its first step"
            )
        if self._ledger is not None:
            path, header = self._ledger, self._header

            def verify() -> dict | None:
                if not os.path.exists(path):
                    if mark is None:
                        return None  # saved before the first step
                    raise ValueError(
                        f"the ledger {path} is not there, but the checkpoint's run had charged {mark['releases']} steps in one "
                        f"({mark['path']})"
                    )
                return checkpoint.read_ledger(path, mark, state["step"], header)

            engine.let_go_of_ledger()
            found = checkpoint.on_rank_0(engine.ranks, verify)
            open_now = found is not None
            if found is not None:
                ledger = (path, found["hash"], checkpoint.charges_of(found["history"]))
                attempts = [tuple(pair) for pair in found["attempts"]]
        else:
            warnings.warn(
                "no ledger: steps that were taken after this checkpoint by a run that is gone are not known and not counted "
                "(attach_ledger keeps them)",
                stacklevel=4,
            )
        checkpoint.compare_terms(state["terms"], self._terms())
        total = self._spending.merge(state["branches"], state["counted"], self.accountant.history, ledger)
        self.accountant.history = checkpoint.history_of(total)
        engine.resume(state["step"], attempts if ledger else [], ledger_open=open_now)
        sampler = getattr(self._loader, "batch_sampler", None)
        if isinstance(sampler, PoissonBatchSampler):
            sampler.draw_anew()

    def _remember(self, data_loader: DataLoader) -> None:
        if self.dataset is None:
            self.dataset = data_loader.dataset
        elif self.dataset is not data_loader.dataset:
            warnings.warn(
                "this PrivacyEngine has accounted for another data set before; its epsilon is per data set, so use a "
                "new engine unless both are the same",
                stacklevel=3,
            )


def _ledger_header(
    data_loader: DataLoader,
    sample_rate: float,
    expected_batch: int,
    optimizer: GhostOptimizer,
    engine: Any,
    poisson_sampling: bool,
) -> dict:
    per_layer = "per layer: each of K groups gathered together by clip_norm/sqrt(K)"
    header = {
        "adjacency": "zero-out",
        "unit_of_privacy": "example",
        "units": len(data_loader.dataset),
        "expected_batch": expected_batch,
        "sampling_rate": sample_rate,
        "clip_norm": float(optimizer.max_grad_norm),
        "clipping": "flat, per example, over all trainable parameters" if engine.clipping == "flat" else per_layer,
        "facts": {"sampler": {"executed": "poisson" if poisson_sampling else "the data loader's own, not Poisson"}},
    }
    if optimizer.noise_multiplier > 0:
        header["noise_multiplier"] = float(optimizer.noise_multiplier)
    return header


def _plain(optimizer: Any) -> Any:
    return optimizer.original_optimizer if isinstance(optimizer, opacus.optimizers.DPOptimizer) else optimizer


def _check(
    generator: Any,
    secure_mode: bool,
    module: nn.Module,
    optimizer: optim.Optimizer,
    mode: str,
    max_grad_norm: Any,
) -> None:
    if generator is not None and secure_mode:
        raise ValueError("Passing seed is prohibited in secure mode")
    if isinstance(module, AbstractGradSampleModule):
        raise ValueError("the module is wrapped for private training already: pass the model itself")
    known = set(module.parameters())
    if any(p not in known for p in chain.from_iterable(group["params"] for group in optimizer.param_groups)):
        raise ValueError(
            "Module parameters are different than optimizer Parameters: build the optimizer from this module, after "
            "FSDP2Wrapper where that is used"
        )
    if mode == "ghost_fsdp" and not isinstance(module, FSDPModule):
        raise ValueError(
            "grad_sample_mode='ghost_fsdp' needs a model under FSDP2: FSDP2Wrapper(model), or fully_shard; got "
            f"{type(module).__name__}"
        )
    if mode == "ghost" and isinstance(module, FSDPModule):
        raise ValueError("a model under FSDP2 takes grad_sample_mode='ghost_fsdp'")
    if isinstance(max_grad_norm, (list, tuple)):
        raise ValueError(
            "max_grad_norm must be one number in modes 'ghost' and 'ghost_fsdp' (per_layer shares it out), got a list"
        )
