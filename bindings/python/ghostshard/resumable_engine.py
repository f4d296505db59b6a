"""A PrivacyEngine's checkpoints: how the charges, the step and the ledger of a run are saved and loaded."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import opacus
from torch import nn

from . import checkpoint
from .charged import Charged
from .checkpoint_terms import ONE_CHECKPOINT, checkpoint_parts, refuse_unlike
from .files import require_regular_file
from .ghost.checks.alike import together
from .loaders import CyclicBatchSampler
from .loaders.given_keys import GivenKeys
from .names_of_weights import NamedEitherWay, holder_of

__all__ = ["ResumableEngine", "plain_optimizer"]

_PRIVACY = "ghostshard_privacy_state"  # in a checkpoint of one file


class ResumableEngine(opacus.PrivacyEngine):
    """The part of PrivacyEngine that saves and loads; checkpoint.py says what must stay true."""

    def __init__(self, *, accountant: str):
        super().__init__(accountant=accountant)
        self._ghost: Any = None  # the GhostEngine, from make_private() on
        self._loader: Any = None
        self._given = GivenKeys()
        self._ledger: str | None = None
        self._header: dict = {}  # of the ledger
        self._spending = checkpoint.Spending()
        self._charged = Charged()

    def _charges(self) -> int:
        return sum(steps for _, _, steps in self.accountant.history)

    def __reduce_ex__(self, protocol: int) -> Any:
        if self._ghost is None:
            return super().__reduce_ex__(protocol)
        raise TypeError(
            "a PrivacyEngine is neither copied nor pickled once make_private() has given it a run: the copy's epsilon would stay behind what the run charges. "
            "Keep the engine itself; to go on elsewhere take save_checkpoint() or state_dict()"
        )

    def get_epsilon(self, delta: float) -> float:
        """Of all steps that were charged. RuntimeError if the accountant has lost some."""
        self._charged.refuse_lost(self.accountant)
        return super().get_epsilon(delta)

    def state_dict(self) -> dict[str, Any]:
        """The privacy part of a checkpoint, which every checkpoint of this run needs beside weights: all charges and the
        processes that made them, the step, and the ledger's last line. With load_state_dict() the engine is a `Stateful` of
        torch.distributed.checkpoint:

            dcp.save({"model": …, "optimizer": …, "privacy": engine}, checkpoint_id=folder)

        RuntimeError within a logical batch. A collective: every rank calls it, as dcp.save and dcp.load do.
        """
        self._engine().meet_to_save(released=True)
        return {"state": self._state(lambda read: checkpoint.on_rank_0(self._engine().ranks, read))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the run of the checkpoint, under a new key and with new coins. Steps that this engine has charged since
        then stay charged. If that run kept a ledger, attach_ledger() must have named it: it is verified, and it also holds the
        steps that were taken after the checkpoint; the larger count wins, with a warning.

        ValueError names the missing part; the engine then takes no step until a load succeeds. A collective.
        """
        engine = self._engine()
        engine.meet_to_save()
        engine.run.stopped = "no checkpoint could be loaded last time, so what was spent is not known: load one, or build a new engine"
        self._load_state(state_dict.get("state"))
        engine.run.stopped = None

    def explain_plan(self) -> str:
        """What a microbatch may record and what waits for a second pass, in words. RuntimeError before the first private forward."""
        engine = self._engine()
        return engine.memory.in_words(engine.layout, engine.session)

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
        """As Opacus' method, into one file, with state_dict() in it. A model under FSDP2 or tensor parallelism is saved into a
        folder of torch.distributed.checkpoint, which any number of ranks can load; the call is then a collective, and the
        folder must be new. RuntimeError within a logical batch. Schedulers and checkpoint_dict are pickled into the folder.
        """
        inner = getattr(module, "_module", module)
        if not checkpoint.is_sharded(inner):
            if self._ghost is not None:
                # Read without the other ranks: Opacus' users call this on rank 0 alone.
                if changed := self._ghost.weights.changed_since_a_step():
                    raise RuntimeError(changed)
                checkpoint_dict = (checkpoint_dict or {}) | {_PRIVACY: self._state(lambda read: read())}
            super().save_checkpoint(
                path=path, module=holder_of(module), optimizer=optimizer, noise_scheduler=noise_scheduler,
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
        checkpoint.save_folder(path, self._engine().ranks, inner, plain_optimizer(optimizer), parts)

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
        """As Opacus' method, and from a folder of save_checkpoint() (or of dcp.save with "model", "optimizer" and "privacy"),
        on any number of ranks. The run goes on as after load_state_dict(). Every rank calls it, after make_private().

        Load no checkpoint of people whom you would not let run a program: reading one unpickles it, a file (by Opacus) and a folder (by
        torch.distributed.checkpoint, and schedulers and checkpoint_dict here).
        """
        schedulers = {"noise_scheduler": noise_scheduler, "grad_clip_scheduler": grad_clip_scheduler}
        if not checkpoint.is_folder(path):
            if checkpoint.is_sharded(getattr(module, "_module", module)):
                raise ValueError(f"a sharded model is loaded from a folder of save_checkpoint(), got {path}")
            if isinstance(path, (str, os.PathLike)):
                require_regular_file(Path(path))
            return self._load_file(
                path=path, module=NamedEitherWay(module), optimizer=optimizer, module_load_dict_kwargs=module_load_dict_kwargs,
                torch_load_kwargs=torch_load_kwargs, **schedulers,
            )  # fmt: skip
        if module_load_dict_kwargs or torch_load_kwargs:
            raise ValueError("a sharded checkpoint takes neither module_load_dict_kwargs nor torch_load_kwargs")
        engine = self._engine()
        engine.meet_to_save()
        parts = checkpoint.load_parts(path, engine.ranks, ["privacy.state", *schedulers, "checkpoint_dict"])
        if "privacy.state" not in parts:
            raise ValueError(f"the checkpoint {path} has no privacy state, so what its run has spent cannot be known")
        self.load_state_dict({"state": parts["privacy.state"]})
        engine.run.stopped = "the weights of the last checkpoint could not be loaded whole: load one, or build the model anew"
        checkpoint.load_weights(path, engine.ranks, getattr(module, "_module", module), plain_optimizer(optimizer))
        engine.run.stopped = None
        for name, scheduler in schedulers.items():
            if scheduler is not None and name in parts:
                scheduler.load_state_dict(pickle.loads(parts[name]))
        return pickle.loads(parts["checkpoint_dict"]) if "checkpoint_dict" in parts else {}

    def _load_file(self, **arguments: Any) -> dict:
        if self._ghost is None:
            return super().load_checkpoint(**arguments)
        engine, history, load = self._engine(), list(self.accountant.history), super().load_checkpoint
        _ = engine.next_step  # not within a logical batch
        engine.meet_to_save()
        engine.run.stopped = "the last checkpoint could not be loaded whole: load one, or build model and engine anew"
        try:
            loaded = together(engine.ranks.control, lambda: (load(**arguments), dict))
            counted = checkpoint.charges_of(self.accountant.history)
        finally:
            self.accountant.history = history
        if _PRIVACY in loaded:
            self._load_state(loaded[_PRIVACY])
        elif self._ledger is not None and counted:
            raise ValueError(
                "this checkpoint says nothing of a ledger, and a ledger holds a run from its first step: load it into an "
                "engine without one"
            )
        else:
            self._add_others(counted)
            self._given.set_apart()
            engine.resume(engine.next_step[0], [], ledger_open=engine.run.ledger_is_open)
        engine.run.stopped = None
        return loaded

    def _owe(self, charges: int) -> None:
        """An optimizer's state was loaded, of a run that had so many charges: coins and noise of that run come no more, either."""
        if self._charged.owe(charges):
            self._given.set_apart()

    def _add_others(self, counted: checkpoint.Charges) -> None:
        """Charges of a run that another engine made, Opacus' own, beside those that are there: which of them these may be, nobody tells."""
        self.accountant.history = checkpoint.history_of(checkpoint.charges_of(self.accountant.history) + counted)
        self._spending.base += counted
        self._charged.loaded(self.accountant)

    def _remember(self, data_loader: Any, layout: Any) -> None:
        """What a run trains on, and its weights, which another engine's run may have trained before: that had coins and noise too."""
        if self._charged.trains(layout):
            self._given.set_apart()
        if self.dataset is None:
            self.dataset = data_loader.dataset
        elif self.dataset is not data_loader.dataset:
            warnings.warn(
                "this PrivacyEngine has accounted for another data set before; its epsilon is per data set, so use a "
                "new engine unless both are the same",
                stacklevel=4,
            )

    def _engine(self) -> Any:
        if self._ghost is None:
            raise ValueError("privacy state belongs to a run: call make_private() in mode 'ghost' or 'ghost_fsdp' first")
        self._ghost.run.thread.check()
        return self._ghost

    def _state(self, read: Any) -> str:
        engine = self._engine()
        step, attempt = engine.next_step
        mark = None
        if engine.run.ledger_is_open:
            path = self._ledger or ""
            mark = read(lambda: self._mark(path)) | {"path": path}
        return json.dumps(
            {
                "schema": checkpoint.SCHEMA,
                "accountant": {"mechanism": self.accountant.mechanism(), "history": self.accountant.history},
                "branches": self._spending.branches(self.accountant.history, mark and mark["header_hash"]),
                "ledger": mark,
                "step": step,
                "attempt": attempt,
                "terms": self._terms(),
                **engine.memory.state,
            }
        )

    def _refuse_other_charges(self) -> None:
        """ValueError if a new run's ledger would lack what the accountant holds already."""
        if self._ledger is not None and self._ghost is None:
            self._charged.refuse_beside(self.accountant, "Take a new PrivacyEngine for this run. To go on with a run, load its checkpoint after make_private(), which merges both")

    def _check_ledger(self) -> None:
        """ValueError unless the ledger is the one that was written, and holds what the accountant does."""
        self._engine().run.written.check()
        self._charged.refuse_beside(self.accountant, "Give steps of other runs, and those that were put there by hand, an accountant of their own")

    def _mark(self, path: str) -> dict:
        """Where the run's ledger ends. ValueError if that is not where this process has left it."""
        self._engine().run.written.check()
        return checkpoint.mark_of_ledger(path)

    def _terms(self) -> dict[str, Any]:
        engine = self._engine()
        clip_norm, noise_multiplier = engine.run.terms_now()
        terms = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier, "sampling_rate": engine.run.sampling_rate}
        if engine.run.bins is not None:
            terms["bins"] = engine.run.bins
        if engine.run.correlation.groups > 1:
            terms["sampling_groups"] = engine.run.correlation.groups
        return terms if engine.run.largest_batch is None else {**terms, "largest_batch": list(engine.run.largest_batch)}

    def _load_state(self, text: Any) -> None:
        """text: what _state() gave. ValueError on all ranks if one cannot go on from it. A collective."""
        engine = self._engine()

        def read() -> tuple[dict, Any]:
            _ = engine.next_step  # not within a logical batch
            state = checkpoint.parse(text)
            refuse_unlike(state, self._terms(), mechanism=self.accountant.mechanism(), ledger=self._ledger)
            return state, lambda: checkpoint_parts(text, self._charged.named(self.accountant))

        state = together(engine.ranks.control, read, ONE_CHECKPOINT)
        ledger, attempts, open_now = None, [], engine.run.ledger_is_open
        if self._ledger is not None:
            found = self._verified_ledger(state)
            open_now = found is not None
            if found is not None:
                known = [state["counted"], *(branch.charges for branch in state["branches"].values())]
                known.append(checkpoint.charges_of(self.accountant.history))
                ledger = (self._ledger, found["hash"], checkpoint.charges_named_alike(found["history"], known))
                attempts = [tuple(pair) for pair in found["attempts"]]
        else:
            warnings.warn(
                "no ledger: steps that were taken after this checkpoint by a run that is gone are not known and not counted "
                "(attach_ledger keeps them)",
                stacklevel=4,
            )
        engine.run.adapt(state["terms"]["clip_norm"])
        checkpoint.compare_terms(state["terms"], self._terms())
        total = self._spending.merge(state["branches"], state["counted"], self.accountant.history, ledger)
        self.accountant.history = checkpoint.history_of(total)
        self._charged.loaded(self.accountant)
        engine.memory.goes_on(state)
        engine.resume(state["step"], attempts, ledger_open=open_now)
        self._given.set_apart()
        sampler = getattr(self._loader, "batch_sampler", None)
        if isinstance(sampler, CyclicBatchSampler):
            sampler.go_on_at(state["step"])

    def _verified_ledger(self, state: dict) -> dict | None:
        """The ledger as rank 0 reads it (checkpoint.read_ledger), on every rank; None before the first step. A collective."""
        engine, path, mark = self._engine(), self._ledger or "", state["ledger"]

        def verify() -> dict | None:
            if not os.path.exists(path):
                if mark is None:
                    return None  # saved before the first step
                raise ValueError(
                    f"the ledger {path} is not there, but the checkpoint's run had charged {mark['releases']} steps in one "
                    f"({mark['path']}): name that one with attach_ledger() before make_private(), so that it goes on"
                )
            return checkpoint.read_ledger(path, mark, state["step"], self._header)

        engine.let_go_of_ledger()
        return checkpoint.on_rank_0(engine.ranks, verify)


def plain_optimizer(optimizer: Any) -> Any:
    """The optimizer inside one of Opacus', or itself."""
    return optimizer.original_optimizer if isinstance(optimizer, opacus.optimizers.DPOptimizer) else optimizer
