"""A run's place in the register of budgets of its data (accountant/budget_register.h), on all ranks. Rank 0 reads and writes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

from . import checkpoint
from ._native import load

Terms = tuple[float, float]  # noise multiplier, sampling rate


def digest_of_data(path: str | os.PathLike) -> str:
    """Of a file, as the C++ program takes it; of a folder, of its files' names and digests. ValueError if it holds no file."""
    data, digest_of_file = Path(path), load("engine").digest_of_file
    if data.is_file():
        return digest_of_file(str(data))
    files = sorted(file for file in data.rglob("*") if file.is_file())
    if not files:
        raise ValueError(f"the data of a budget register must be a file, or a folder with files, got {data}")
    named = [[file.relative_to(data).as_posix(), digest_of_file(str(file))] for file in files]
    return "sha256:" + hashlib.sha256(json.dumps(named).encode()).hexdigest()


class RegisteredBudget:
    """One session of a run. Steps are charged a block ahead of use, on all ranks alike. With bins they are passes of balls-in-bins
    sampling, in so many steps each.

    steps: how many the run plans; None: not known. block_of: how many steps the block is a hundredth of.
    """

    def __init__(
        self, path: str, data: str | os.PathLike, *, limit: float | None, delta: float, steps: int | None, block_of: int,
        ledger: str, ranks: Any, terms: Terms, bins: int | None = None,
    ):  # fmt: skip
        self._steps, self._ledger, self._ranks, self._bins = steps, ledger, ranks, bins
        self._block = load("accountant").budget_block(block_of if steps is None else steps)
        self._left: Counter = Counter()  # charged and not used, by terms
        self._session: Session | None = None  # of rank 0

        def open_register() -> None:
            register = load("accountant").BudgetRegister(path)
            fingerprint = register.fingerprint(digest_of_data(data))
            register.agree_on_limit(fingerprint, limit, delta)
            self._session = Session(register, fingerprint, bins)
            # A ledger that is there is of the run that goes on: its own plan is in the register, and begin() takes it over.
            if os.path.exists(ledger):
                self._session.charged = checkpoint.mark_of_ledger(ledger)["releases"] or None
            else:
                register.check(fingerprint, *_with_noise(terms), steps or 1, bins)

        checkpoint.on_rank_0(ranks, open_register)

    def charge(self, terms: Terms, step: int) -> None:
        """Before step number `step` is taken. ValueError on all ranks if the limit leaves no room for it. A collective."""
        if self._left[terms] == 0:
            self._left[terms] = checkpoint.on_rank_0(self._ranks, lambda: self._extend(terms, step))
        self._left[terms] -= 1
        if self._session is not None:
            self._session.made[terms] += 1

    def facts(self) -> dict:
        """For the report, on rank 0."""
        assert self._session is not None
        facts = json.loads(self._session.register.facts(self._session.data))
        return {
            "tuning": {"budget_register": facts},
            "provenance": {"data_fingerprint": facts["data_fingerprint"]},
        }

    def _extend(self, terms: Terms, step: int) -> int:
        assert self._session is not None
        remaining = None if self._steps is None else max(0, self._steps - step // (self._bins or 1))
        if not self._session.begun:
            with open(self._ledger, encoding="utf-8") as lines:
                run = json.loads(lines.readline())["run_id"]
            self._session.begin(run, None if remaining is None else (*_with_noise(terms), remaining))
        wanted = max(1, self._block if remaining is None else min(self._block, remaining))
        return self._session.charge(terms, wanted)


class Session:
    """On rank 0. Ends with the process, and then gives back what it was charged and did not use."""

    def __init__(self, register: Any, data: str, bins: int | None):
        self.register, self.data, self.id, self.bins = register, data, secrets.token_hex(16), bins
        self.made: Counter = Counter()
        self.begun = False
        self.charged: int | None = None  # of a run that goes on, by its ledger

    def begin(self, run: str, plan: tuple[float, float, int] | None) -> None:
        try:
            self.register.begin(self.data, run, self.id, "example", plan, self.charged, self.bins)
        except ValueError:
            if plan is None or self.charged is None:
                raise
            # What it was charged ahead is lost: it goes on without a plan, as far as the limit has room.
            self.register.begin(self.data, run, self.id, "example", None, self.charged, self.bins)
        self.begun = True
        weakref.finalize(self, _end, self.register, self.id, self.made, os.getpid(), self.bins)

    def charge(self, terms: Terms, wanted: int) -> int:
        """How many steps were charged: `wanted`, or one if there is room for one alone."""
        if wanted > 1:
            with contextlib.suppress(ValueError):
                self.register.charge(self.id, *_with_noise(terms), wanted, self.bins)
                return wanted
        self.register.charge(self.id, *_with_noise(terms), 1, self.bins)
        return 1


def _with_noise(terms: Terms) -> Terms:
    if not terms[0] > 0:
        raise ValueError("a step without noise has no epsilon, so a run in a budget register takes none: noise_multiplier must be > 0")
    return terms


def _end(register: Any, session: str, made: Counter, process: int, bins: int | None) -> None:
    if os.getpid() != process:  # a worker of a data loader
        return
    with contextlib.suppress(ValueError, RuntimeError):  # it then stays charged
        register.end(session, [(*terms, steps) for terms, steps in made.items() if steps], bins)


__all__ = ["RegisteredBudget", "digest_of_data"]
