"""How a loss came about: all places of the loop that it went through, from the batch on. Does it follow from an outcome that the loop read?

ways.py compares what functions do after values were read. But a loop may also choose by such a value among tensors and losses that were there before
(`max(loss_a, loss_b)`), and a line that one branch alone reaches has nothing to be compared with. So each tensor and each loss of all examples has a course,
the set of places under it, and a backward is asked after decisions (comparisons of read values, decisions.py): if what came before the first one was the
same in an earlier batch, another course than there is taken only if the outcomes do not tell the two apart. A counter or a coin may have chosen then.

Values that are read without a trace (float(), NumPy) have no outcomes. After these a course that comes back, irregularly, is refused: counters come
back in turn, phases never.
"""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Iterable
from typing import Any

from .decisions import DECISIONS, outcomes_of
from .drawn import Drawn
from .findings import Finding, is_not
from .opened import contents
from .places import place_of_loop

_WITHOUT_A_TRACE = {"float()", "int()", "index()", "numpy()", "array()"}
_MOST = 1 << 10  # beginnings that are remembered
_WHY = (
    "it was formed in another way than in an earlier draw ({}), after values of this one were {}: a branch may follow from the batch, and one example "
    "would move all others. Choose per example (torch.where), or by coins and counters, before anything is read"
)
_COURSES = 64  # whose sizes are remembered
_NO_CHANCE = 2000  # orders of sizes, of which two tell them apart like this
_BY_SIZE = (
    "it was formed in another way ({}) in all batches of more examples than in the others: how many examples were drawn would choose it, and one example's absence "
    "would move all others. Form the loss of every batch alike"
)


class Courses:
    """Of one run. A course is a set of bits: of each place one if it was gone through, and one if it was more than once, one after another."""

    def __init__(self) -> None:
        self._places: dict[tuple, int] = {}
        # By all places before something was read, and by outcomes: how losses were formed, and in which batches that began
        self._known: dict[int, dict[Any, dict[int, list[int]]]] = {}
        self._latest: dict[tuple, int] = {}  # by both: the last one's
        self._sizes: dict[int, tuple[int, int, int]] = {}  # by course, of those batches: the least, the most, and how many
        self._free: collections.Counter[int] = collections.Counter()  # courses of batches of which nothing was read
        self._batch = self._units = self._before = self._since = 0
        self._traceless = ""

    def begin(self, units: int) -> None:
        """A batch is handed out."""
        self._batch, self._units, self._before, self._since, self._traceless = self._batch + 1, units, 0, DECISIONS.count, ""

    def was_read(self, how: str) -> None:
        if how in _WITHOUT_A_TRACE:
            self._traceless = self._traceless or how

    def through(self, place: tuple, course: int = 0) -> int:
        """The course of what comes of one with this course there."""
        bit = 1 << 2 * self._places.setdefault(place, len(self._places))
        bit <<= bool(course & bit)
        if not self._traceless and DECISIONS.count == self._since:
            self._before |= bit
        return course | bit

    def at(self, name: str, given: Iterable[Any] = ()) -> int:
        """Of what a forward, a criterion or a loss's arithmetic makes of these where the loop now is; without a name: of all these."""
        found = 0
        for each in given:
            found |= getattr(each, "course", 0)
        return self.through((name, *place_of_loop()), found) if name else found

    def hand_out(self, batch: Any) -> Any:
        """The batch, whose tensors of all examples can be told apart."""
        number = 0
        for each in contents(batch):
            if isinstance(each, Drawn) and each._origin.dim is not None:
                each.course = self.through((f"tensor {number} of the batch", "", 0))
                number += 1
        return batch

    def outputs(self, output: Any, course: int, loop: tuple[str, int]) -> Any:
        """The outputs of a forward of this course, as hand_out()."""
        for number, each in enumerate(each for each in contents(output) if isinstance(each, Drawn)):
            each.course = self.through((f"output {number} of the model", *loop), course)
        return output

    def wrong(self, found: list[Finding]) -> str:
        """Why a loss may not go backward over these; "" if it may."""
        if self._units < 2:  # one example's branches are its own
            return ""
        course = 0
        for each in found:
            course |= each.course << 1 if each.course & course and not each.course & (each.course - 1) else each.course
        outcomes = outcomes_of(DECISIONS.since(self._since))
        if not outcomes and not self._traceless:
            if course in self._free or len(self._free) < _MOST:
                self._free[course] += 1
            return self._goes_with_size(course)
        if len(self._known) > _MOST:
            self._known.clear()
            self._latest.clear()
        of_beginning = self._known.setdefault(self._before, {})
        known = of_beginning.get(outcomes)
        others = {each for courses in of_beginning.values() for each in courses}
        free = self._free[course] > 1  # a first draw has none before it to be compared with
        if known is None and others and course not in others and not free and outcomes:
            return self._why(course, min(others), "compared")
        begun = of_beginning.setdefault(outcomes, {}).setdefault(course, [])
        before = self._latest.get((self._before, outcomes))
        self._latest[self._before, outcomes] = course
        if before is None or before != course:
            begun.append(self._batch)
            del begun[:-4]
            if self._traceless and before is not None and not _in_turn(begun):
                return self._why(course, before, f"read by {self._traceless}")
        return ""

    def _goes_with_size(self, course: int) -> str:
        """Why a loss was formed in another way than those of all larger batches, or of all smaller ones."""
        if course not in self._sizes and len(self._sizes) >= _COURSES:
            return ""
        least, most, times = self._sizes.get(course, (self._units, self._units, 0))
        least, most, times = self._sizes[course] = min(least, self._units), max(most, self._units), min(times + 1, 64)
        for other, (smallest, largest, often) in self._sizes.items():
            if (most < smallest or largest < least) and math.comb(times + often, times) > _NO_CHANCE:
                return self._why(course, other, None)
        return ""

    def _why(self, one: int, two: int, how: str | None) -> str:
        apart = (one & ~two) or (two & ~one)
        name, file, line = list(self._places)[(apart & -apart).bit_length() - 1 >> 1]
        place = f"{name} in {os.path.basename(file)}:{line}"
        return is_not("the loss", _BY_SIZE.format(place) if how is None else _WHY.format(place, how))


def _in_turn(begun: list[int]) -> bool:
    """Whether these may be every k-th batch, but for some that were left out."""
    apart = [two - one for one, two in zip(begun, begun[1:])]
    return len(apart) < 2 or all(each % min(apart) == 0 for each in apart)


def course_after(name: str, sources: Iterable[Any]) -> int:
    """Of what a function gives. Functions of one row alone are left out, as in ways.py."""
    found, courses = 0, None
    for each in sources:
        origin = each._origin
        found |= each.course
        if courses is None and (origin.dim is not None or origin.memory.lost):
            constants = getattr(origin.memory.piece, "constants", None)
            courses = None if constants is None else constants.courses
    return found if courses is None else courses.through((name, *place_of_loop()), found)


__all__ = ["Courses", "course_after"]
