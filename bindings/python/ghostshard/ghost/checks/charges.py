"""What a run is charged for: each draw by itself, whole passes over the data (balls-in-bins sampling, dp/mechanism/bins.h), or the
rounds of groups of units (correlated noise, accountant/rounds.h)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Terms = tuple[float, float]  # clip norm and noise multiplier


class Charges(Protocol):
    @property
    def due(self) -> bool:
        """The accountant must be charged before a step is made of the draw at hand."""
        ...

    @property
    def begun(self) -> bool:
        """The session, and with it the ledger, has been charged for the draw at hand."""
        ...

    def paid(self, terms: Terms) -> None:
        """The accountant was charged."""
        ...

    def begin(self) -> None:
        """The session begins what was paid, if anything was."""
        ...

    def session_is_new(self) -> None: ...

    def hand_out(self, number: int) -> None:
        """A draw of this pass over the loader is handed out."""
        ...

    def at(self, step: int) -> None:
        """The session's next logical batch, of the draw at hand, is this step."""
        ...

    def over(self, number: int) -> str:
        """Why a draw of this pass can have no step any more, or ""."""
        ...

    def check(self, terms: Terms) -> None:
        """ValueError unless a step of the draw at hand may have these terms."""
        ...


class EachDraw:
    """Draws are independent: each is a release of its own."""

    due, begun = True, False

    def paid(self, terms: Terms) -> None: ...

    def begin(self) -> None: ...

    def session_is_new(self) -> None: ...

    def hand_out(self, number: int) -> None: ...

    def at(self, step: int) -> None: ...

    def over(self, number: int) -> str:
        return ""

    def check(self, terms: Terms) -> None: ...


class RoundsOfGroups(EachDraw):
    """The units are dealt to groups, and step t draws from group t mod `groups` alone. A step is a line of the ledger by itself; what is
    accounted is how often a group was drawn from, of the group for which it was most often. Of the steps of one session from a multiple of
    `groups` to the next each group has one, so the accountant is charged once for them, with the first, and the report, which counts by
    group, never says more. A draw that is passed over, whose step is not known yet, and a session's first step are charged by
    themselves. Clip norm and noise multiplier stay as they were first: nothing else is derived.

    ended() says up to which pass over the loader the examples were dealt to other groups."""

    def __init__(self, groups: int, ended: Callable[[], int] = lambda: 0) -> None:
        self._groups, self._ended = groups, ended
        self._terms: Terms | None = None
        self._round: int | None = None  # of the draw at hand; None: not known
        self._paid: int | None = None  # the latest that was paid in this session

    @property
    def due(self) -> bool:  # type: ignore[override]
        return self._round is None or self._round != self._paid

    def paid(self, terms: Terms) -> None:
        self._terms = terms
        if self._round is not None:
            self._paid = self._round

    def session_is_new(self) -> None:
        self._round = self._paid = None

    def hand_out(self, number: int) -> None:
        self._round = None

    def over(self, number: int) -> str:
        return "its pass over the data ended when a checkpoint was loaded, and examples are dealt to groups anew" if number <= self._ended() else ""

    def at(self, step: int) -> None:
        self._round = step // self._groups

    def check(self, terms: Terms) -> None:
        if self._terms is not None and terms != self._terms:
            raise ValueError(
                "correlated noise is derived for one clip norm and one noise multiplier in all steps: they were "
                f"{self._terms}, now they are {terms}"
            )


class WholePasses:
    """The draws of a pass are parts of one release, charged when the first of them is stepped or passed over. Only the latest pass goes
    on, in the session and with the terms that it was begun with: nothing is derived for units of which some steps lie in one charge and
    some in another."""

    def __init__(self) -> None:
        self._latest = 0
        self._terms: Terms | None = None  # that the latest was paid with
        self._begun = False
        self._cut = False  # a new session began after the pass had

    @property
    def due(self) -> bool:
        return self._terms is None

    @property
    def begun(self) -> bool:
        return self._begun

    def paid(self, terms: Terms) -> None:
        self._terms = terms

    def begin(self) -> None:
        self._begun = not self.due

    def session_is_new(self) -> None:
        self._cut = self._begun

    def hand_out(self, number: int) -> None:
        if number > self._latest:
            self._latest, self._terms, self._begun, self._cut = number, None, False, False

    def at(self, step: int) -> None: ...

    def over(self, number: int) -> str:
        if number < self._latest:
            return "its pass over the data ended when the next iteration over the loader began"
        if self._cut:
            return (
                "its pass over the data ended when a checkpoint was loaded, or other parameters were to train or to lie on another device: "
                "begin another iteration over the loader"
            )
        return ""

    def check(self, terms: Terms) -> None:
        if self._terms is not None and terms != self._terms:
            raise ValueError(
                "with balls-in-bins sampling clip norm and noise multiplier may change between passes over the data, not within one, which "
                f"is charged whole before its first step: this one was with {self._terms}, now they are {terms}"
            )


__all__ = ["Charges", "EachDraw", "RoundsOfGroups", "WholePasses"]
