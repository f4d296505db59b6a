"""The steps that an engine has charged, and the accountant that must hold them: whoever sets it back, replaces it or lets it count
steps as what they are not would be told an epsilon of something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .checkpoint import Charges, charges_of
from .ghost.layout import Layout
from .trained_before import charges_before, note

__all__ = ["Charged"]

_LOST = (
    "this engine charged {} steps, and its accountant was {}: epsilon would not hold them. Put back the accountant that make_private() had, with its whole history. "
    "For the figure of another accountant build that one, and give it a copy: other.history = list(engine.accountant.history)"
)

_OWED = (
    "the optimizer's state that was loaded is of a run that had charged {} steps, and this engine's accountant knows of {}: epsilon would leave the others out. "
    "Go on with load_checkpoint() or load_state_dict() of the engine, or put the accountant's history back (accountant.load_state_dict). If that run was on other data, "
    "delete 'ghostshard_charges' from the state and from its groups before you load it"
)

_TRAINED = (
    "the model's weights were trained by a run that had charged {} steps, and this engine's accountant knows of {}: epsilon would leave the others out. Go on with the engine of that "
    "run, or with load_checkpoint() of this one, or give this accountant its history (accountant.load_state_dict(first.accountant.state_dict())). For a run of its own build the model "
    "anew, or load the weights with which that run began. If that run was on other data, delete 'ghostshard_charges' from the modules before make_private() "
    "(vars(each).pop('ghostshard_charges', None) for each in model.modules())"
)

_ANOTHER_KIND = (
    "the accountant counts steps of another kind than those of this run: {}, and they are {}. Epsilon would be of steps that nobody made. Take a new PrivacyEngine for each "
    "kind of steps (max_batch_size, sampling), and leave its accountant in its place"
)

_BESIDE = (
    "the accountant holds {} steps beside those of this ledger: a report is made from the ledger, so it would state less than get_epsilon(). {}"
)


class Charged:
    @staticmethod
    def named(accountant: Any) -> tuple:
        """Its kind and what it holds: of ranks with unlike ones some would state less than was spent."""
        return accountant.mechanism(), sorted(charges_of(accountant.history).items())

    def __init__(self) -> None:
        self._to: Any = None  # the accountant that has this process's charges
        self._count = 0  # of these
        self._kind: dict[str, Any] = {}  # what each of them is, by attributes of the accountant
        self._owed = self._trained = 0  # charges of the run whose optimizer's state was loaded, and of the one that trained the weights before
        self._noted = {"charges": 0}  # on the modules that this engine's runs train
        self._held: list = []  # the accountant's history, this process's charges and those that were loaded, when it last had any
        self._made: Charges = Counter()  # of these, what no hand has put there

    def charge(self, accountant: Any, noise_multiplier: float, sample_rate: float, kind: Mapping[str, Any]) -> None:
        """One step. RuntimeError if the accountant is not the one that has those before it, or counts steps that are not of this kind."""
        if self._count and accountant is not self._to:
            raise RuntimeError(_LOST.format(self._count, "replaced since"))
        self.refuse_lost(accountant)
        _refuse_kind(accountant, kind)
        accountant.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
        self._to, self._count, self._kind = accountant, self._count + 1, dict(kind)
        self._made[float(noise_multiplier), float(sample_rate)] += 1
        self._held = list(accountant.history)
        self._noted["charges"] = charges_of(self._held).total()

    def loaded(self, accountant: Any) -> None:
        """Its history is what a checkpoint made of it."""
        self._held, self._made = list(accountant.history), charges_of(accountant.history)

    def owe(self, charges: int) -> bool:
        """An optimizer's state was loaded, of a run that had so many. Whether another process made some of them."""
        self._owed = max(self._owed, charges)
        return charges > self._count

    def trains(self, layout: Layout) -> bool:
        """The weights of this model, from here on. Whether a run of another engine trained them before."""
        before = charges_before(layout)
        self._trained = max(self._trained, before)
        note(layout, self._noted)
        return before > self._count

    def refuse_lost(self, accountant: Any) -> None:
        """RuntimeError unless the accountant has all charges that are known, each with its own noise and rate."""
        if self._owed and (known := charges_of(accountant.history).total()) < self._owed:
            raise RuntimeError(_OWED.format(self._owed, known))
        if self._trained and (known := charges_of(accountant.history).total()) < self._trained:
            raise RuntimeError(_TRAINED.format(self._trained, known))
        if accountant.history != self._held:
            held = charges_of(self._held)
            if lost := held - charges_of(accountant.history):
                how = "replaced since" if accountant is not self._to else f"left with {held.total() - lost.total()} of them"
                raise RuntimeError(_LOST.format(held.total(), how))
        _refuse_kind(accountant, self._kind)

    def refuse_beside(self, accountant: Any, way_out: str) -> None:
        """ValueError if the accountant has charges that this engine neither made nor loaded."""
        if beside := charges_of(accountant.history) - self._made:
            raise ValueError(_BESIDE.format(beside.total(), way_out))


def _refuse_kind(accountant: Any, kind: Mapping[str, Any]) -> None:
    found = {name: getattr(accountant, name, None) for name in kind}
    if found != kind:
        raise RuntimeError(_ANOTHER_KIND.format(_in_words(found), _in_words(kind)))


def _in_words(kind: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in kind.items())
