"""The file in which this process writes a run's ledger. A copy of an earlier hour, put in its place (a restored backup, a checkout, a synchronised folder), is
a whole ledger too, of fewer steps than were made: a report of that one would state too small an epsilon."""

from __future__ import annotations

import contextlib
import os


class WrittenLedger:
    def __init__(self, path: str):
        self._path = path
        self._place: tuple[int, int] | None = None  # device and inode, once lines were written
        self._size = 0

    def note(self) -> None:
        """Lines may have been written. Not every step writes one and looks at the file (those of a pass of balls-in-bins do not), so another file is never
        taken for it."""
        with contextlib.suppress(OSError):  # gone again: the next line, or a report, will say so
            status = os.stat(self._path)
            place = (status.st_dev, status.st_ino)
            if self._place in (None, place):
                self._place, self._size = place, max(self._size, status.st_size)

    def check(self) -> None:
        """ValueError unless the file holds all that this process has written."""
        if self._place is None:
            return
        try:
            status = os.stat(self._path)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._place or status.st_size < self._size:
            raise ValueError(
                f"the ledger {self._path} is not the file of {self._size} bytes that this run has written: it was removed, replaced or cut short since the last step, "
                "so it may lack steps that were made. Put that file back"
            )


__all__ = ["WrittenLedger"]
