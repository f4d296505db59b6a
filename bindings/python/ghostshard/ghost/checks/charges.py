"""What a run is charged for: each draw by itself, or whole passes over the data (balls-in-bins sampling, dp/mechanism/bins.h)."""

from __future__ import annotations

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

    def over(self, number: int) -> str:
        return ""

    def check(self, terms: Terms) -> None: ...


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


__all__ = ["Charges", "EachDraw", "WholePasses"]
