"""The privacy part of a run's checkpoint, and checkpoints of sharded models (torch.distributed.checkpoint).

A run may be resumed from any checkpoint, any number of times, on any number of ranks. Two things must stay true: every
release ever made is counted, and no two of them share noise or coins. So:

* Charges are kept by the process that made them. Loading a checkpoint takes the larger count for each process and adds up
  over processes (a grow-only counter): nothing that this process has spent is forgotten, and nothing counts twice.
* If the run kept a ledger, it must hold the line at which the checkpoint was taken (dp/run/resume.h). The ledger alone knows
  the steps that were taken afterwards and lost; they stay charged.
* Noise and coins after loading are new: another key, another run id, and steps charged before come again as new attempts.

Without a ledger, steps that a process took after the checkpoint before it died cannot be known.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ._native import load
from .lost_ranks import answered

SCHEMA = "ghostshard.privacy/1"
_METADATA = ".metadata"  # written last: a folder without it was not saved to its end

Charges = Counter  # (noise multiplier, sampling rate) -> steps


def charges_of(history: Any) -> Charges:
    """An accountant's history ([noise multiplier, sampling rate, steps], …) as steps by their terms; entries of the same terms add up.
    ValueError for steps that are no whole number >= 0."""
    found: Charges = Counter()
    for noise_multiplier, sampling_rate, steps in history:
        if not (steps >= 0 and steps == int(steps)):
            raise ValueError(f"steps must be a whole number >= 0, got {steps}")
        found[(float(noise_multiplier), float(sampling_rate))] += int(steps)
    return found


def charges_named_alike(history: Any, known: Iterable[Charges]) -> Charges:
    """A ledger's charges. Of a step whose clip norm adapts it holds the noise of both parts; put together again, its last digits may
    not be those of the noise multiplier that was split. A charge that is known counts under its own name."""
    names = {terms for charges in known for terms in charges}
    found: Charges = Counter()
    for (noise, rate), steps in charges_of(history).items():
        alike = [name for name in names if name[1] == rate and abs(name[0] - noise) <= 1e-12 * noise]
        found[min(alike, key=lambda name: abs(name[0] - noise), default=(noise, rate))] += steps
    return found


def history_of(charges: Charges) -> list[tuple[float, float, int]]:
    """The other way: an accountant's history, one entry for terms that have steps."""
    return [(*terms, steps) for terms, steps in charges.items() if steps > 0]


@dataclass
class Branch:
    """One process's charges, and the hash of the header of the ledger that holds them as well, if any."""

    charges: Charges
    ledger: str | None = None

    def to_json(self) -> dict:
        return {"history": history_of(self.charges), "ledger": self.ledger}

    @classmethod
    def from_json(cls, json: dict) -> Branch:
        return cls(charges_of(json["history"]), json["ledger"])

    def larger(self, other: Branch) -> Branch:
        return Branch(self.charges | other.charges, self.ledger or other.ledger)


@dataclass
class Spending:
    """The charges of all processes that this engine knows of. The accountant's history is their sum."""

    own: str = field(default_factory=lambda: secrets.token_hex(16))
    others: dict[str, Branch] = field(default_factory=dict)
    base: Charges = field(default_factory=Counter)  # the part of the accountant's history that is not this process's

    def own_branch(self, history: Any, ledger: str | None) -> Branch:
        return Branch(charges_of(history) - self.base, ledger)

    def branches(self, history: Any, ledger: str | None) -> dict[str, dict]:
        every = self.others | {self.own: self.own_branch(history, ledger)}
        return {name: branch.to_json() for name, branch in every.items() if branch.charges}

    def merge(
        self, loaded: dict[str, Branch], counted: Charges, history: Any, ledger: tuple[str, str, Charges] | None
    ) -> Charges:
        """Takes over a checkpoint's charges (its branches, and the sum that its accountant had) and the ledger's (path, header's
        hash, charges); returns all charges that count from now on."""
        own = self.own_branch(history, ledger[1] if ledger else None)
        for name, branch in loaded.items():
            if name == self.own:
                own = own.larger(branch)
            else:
                self.others[name] = self.others[name].larger(branch) if name in self.others else branch
        every = [own, *self.others.values()]
        if ledger is None:
            total = sum((branch.charges for branch in every), Counter())
        else:
            path, header, written = ledger
            covered = sum((branch.charges for branch in every if branch.ledger == header), Counter())
            beside = sum((branch.charges for branch in every if branch.ledger != header), Counter())
            known = covered | (counted - beside)
            if known != written:
                warnings.warn(
                    f"the ledger {path} counts {written.total()} steps, the checkpoint's accountant {known.total()}: "
                    f"{(known | written).total()} are counted from here on, the larger number for each kind of step",
                    stacklevel=5,
                )
            total = beside + (known | written)
        total |= counted
        self.base = total - own.charges
        return total


# Agreement of ranks --------------------------------------------------------------------------------------------------


def on_rank_0(ranks: Any, work: Callable[[], Any]) -> Any:
    """The result of work() on rank 0, on every rank. If it raises there, every rank raises: rank 0 its own error, the others a ValueError
    for one of values or types, else a RuntimeError. A collective."""
    group = ranks.control
    if group is None:
        return work()
    outcome: list = [None, None]
    wrong: Exception | None = None
    if ranks.rank == 0:
        try:
            outcome[0] = work()
        except Exception as error:  # of whatever kind: the other ranks wait for this one's outcome
            wrong, outcome[1] = error, _for_others(error)
    with answered():
        dist.broadcast_object_list(outcome, src=dist.get_process_group_ranks(group)[0], group=group)
    if wrong is not None:
        raise wrong
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def _for_others(error: Exception) -> Exception:
    """Of a type that every rank knows, as a sentence."""
    if isinstance(error, (ValueError, TypeError)):
        return ValueError(str(error))
    return RuntimeError(str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}")


# The privacy part ----------------------------------------------------------------------------------------------------


def mark_of_ledger(path: str) -> dict:
    """Where the ledger ends now: the hash of its last line, how many releases it holds, and its header's hash (dp/run/resume.h). ValueError
    if it cannot be read."""
    return json.loads(load("engine").ledger_mark(path))


def parse(text: Any) -> dict:
    """The state that PrivacyEngine.state_dict() wrote. ValueError for any other text."""
    try:
        state = json.loads(text)
        if state["schema"] != SCHEMA:
            raise ValueError(f"its schema must be {SCHEMA}, is {state['schema']!r}")
        state["branches"] = {name: Branch.from_json(branch) for name, branch in state["branches"].items()}
        state["counted"] = charges_of(state["accountant"]["history"])
        if not (isinstance(state["step"], int) and state["step"] >= 0):
            raise ValueError(f"step must be a whole number >= 0, got {state['step']!r}")
        _ = state["ledger"], state["terms"], state["accountant"]["mechanism"]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"the checkpoint's privacy state is not one that this version wrote: {error}") from error
    return state


# Facts that a ledger's header and the run that goes on must have in common: if one differs, the ledger's numbers would
# describe a run that did not happen.
_SAME = ("adjacency", "unit_of_privacy", "units", "maximum_batch", "bins", "clipping", "clip_quantile", "facts", "sampling_groups",
         "noise_bands", "noise_chain", "noise_blt")  # fmt: skip
_SAME_IN_GROUPS = ("clip_norm", "noise_multiplier", "sampling_rate")  # of which correlated noise has one in all steps
_OF_A_BEGINNING = "provenance"  # a section of the facts that is the first session's: its code, day, ranks and starting weights


def read_ledger(path: str, mark: dict | None, step: int, header: dict) -> dict:
    """The ledger that a run goes on with: header's hash, charges, attempts of later steps. ValueError for a ledger that cannot be
    verified, or that is another run's."""
    found, header_hash, history, attempts = load("engine").resume_ledger(path, json.dumps(mark) if mark else "", step)
    written = json.loads(found)
    for name in (*_SAME, *(_SAME_IN_GROUPS if "sampling_groups" in header else ())):
        there, here = _comparable(written.get(name)), _comparable(header.get(name))
        if there != here:
            raise ValueError(f"the ledger {path} is of a run with {name} {there!r}, this one has {here!r}: its epsilon would be of neither")
    return {"hash": header_hash, "history": history, "attempts": attempts}


def _comparable(value: Any) -> Any:
    return {name: part for name, part in value.items() if name != _OF_A_BEGINNING} if isinstance(value, dict) else value


def compare_terms(before: dict, now: dict) -> None:
    """A warning that names the terms (clip norm, noise multiplier, rate) in which the run that goes on differs from the checkpoint's. No
    error: each step is charged at its own."""
    changed = [f"{name} {before.get(name)} there, {value} here" for name, value in now.items() if before.get(name) != value]
    if changed:
        warnings.warn(
            f"the checkpoint's run had other terms ({'; '.join(changed)}); each step is charged as it is taken",
            stacklevel=4,
        )


# Folders -------------------------------------------------------------------------------------------------------------


def is_sharded(module: nn.Module) -> bool:
    """No rank holds the whole model: it is under FSDP2, or cut over a tensor-parallel axis alone."""
    return isinstance(module, FSDPModule) or any(isinstance(p, DTensor) for p in module.parameters())


def is_folder(path: Any) -> bool:
    return isinstance(path, (str, os.PathLike)) and Path(path).is_dir()


def _how(ranks: Any) -> dict:
    group = ranks.control
    return {"no_dist": True} if group is None else {"process_group": group}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message=".*TypedStorage is deprecated")
        yield


def _weights(module: nn.Module, optimizer: Any) -> dict:
    parts = {"model": dcp_state.get_model_state_dict(module)}
    if optimizer is not None:
        parts["optimizer"] = dcp_state.get_optimizer_state_dict(module, optimizer)
    return parts


def save_folder(path: Any, ranks: Any, module: nn.Module, optimizer: Any, parts: dict) -> None:
    """Writes model, optimizer and `parts` into a new folder. ValueError if the folder holds anything. A collective."""

    def check() -> None:
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"a sharded checkpoint goes into a new folder, but {folder} is there already and not empty")
        folder.mkdir(parents=True, exist_ok=True)

    on_rank_0(ranks, check)
    with _quiet():
        dcp.save(_weights(module, optimizer) | parts, checkpoint_id=path, **_how(ranks))


def _read(what: dict, path: Any, ranks: Any) -> dict:
    try:
        with _quiet():
            dcp.load(what, checkpoint_id=path, **_how(ranks))
    except (Exception, CheckpointException) as error:  # the latter is no Exception
        reason = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        raise ValueError(
            f"the checkpoint {path} lacks a part, has a torn one, or is another model's: {reason!r}"
        ) from error
    return what


def load_parts(path: Any, ranks: Any, names: list[str]) -> dict:
    """The parts of these names that the folder has; each is an object, not a tensor. A collective."""

    def present() -> list[str]:
        if not (Path(path) / _METADATA).is_file():
            raise ValueError(f"{path} is no whole checkpoint: {_METADATA}, which is written last, is missing")
        try:
            keys = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        except Exception as error:
            raise ValueError(f"{path} is no whole checkpoint: {_METADATA} cannot be read ({error!r})") from error
        return [name for name in names if name in keys]

    return _read(dict.fromkeys(on_rank_0(ranks, present), ""), path, ranks)


def load_weights(path: Any, ranks: Any, module: nn.Module, optimizer: Any) -> None:
    """Reads the folder's weights, and the optimizer's state unless it is None, into module and optimizer. ValueError if the folder lacks a part
    or is another model's; both may then hold a part of it. A collective."""
    parts = _read(_weights(module, optimizer), path, ranks)
    dcp_state.set_model_state_dict(module, parts["model"])
    if optimizer is not None:
        dcp_state.set_optimizer_state_dict(module, optimizer, parts["optimizer"])


__all__ = ["Branch", "Spending"]
