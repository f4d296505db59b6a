"""Draws that a loop passes over (`continue`, `break`, zero_grad() after a backward): did it choose them by what they hold?

Such a draw is charged like any other, and that is right if a counter chose it, or a whole pass is a look at the data. It is not if the draw itself did
(`if loss.item() > 10: continue`): then whether a step was made tells who was drawn, and no noise hides it. So in a pass that has steps a draw is not
passed over

* after comparisons of its values that came out as in no draw that was stepped;
* after its values were read in any way, if that happens in no turn;
* if it holds fewer examples than all that were stepped, or more, and so do so many others that counters and coins would pass over such ones at less
  than one run in 10,000.
"""

from __future__ import annotations

import math
import os

from ..provenance import DECISIONS, outcomes_of

_LEAST = 3  # draws that tell whether they come in turn
_ONE_IN = 10_000  # runs whose draws were not chosen by their sizes
_MOST = 1 << 12  # outcomes that are remembered
_WHY = (
    "a draw of the private loader was passed over {}. Whether a step is made would tell who was drawn, which no epsilon covers. Make a step of every draw: "
    "each example is clipped, one whose gradient is not finite counts as nothing, and an empty batch is a step like any other. If a counter or public data "
    "alone chose it, say so with make_private(allow_vouched=True), which the report states"
)


class PassedOver:
    """Of one run."""

    def __init__(self) -> None:
        self._known: set[frozenset] = set()  # outcomes of draws that were stepped
        self._sizes: list[int] = []  # least and most examples of those
        self._steps = self._passed = 0
        self._since = DECISIONS.count
        self._pass = -1
        self._stepped_here = False  # in the pass at hand
        self._why = ""  # of a draw of this pass that was passed over, as long as no step shows that the pass trains
        self._read: list[tuple[int, int]] = []  # draws that were passed over after reads: their numbers, in the run and in their pass
        self._here: list[int] = []  # sizes of draws that were passed over in the pass at hand
        self._odd: list[int] = []  # unusual ones, in passes before it that had steps
        self._draw = self._began = 0

    def begin(self, number: int) -> None:
        """A draw is handed out, of this pass."""
        if number != self._pass:
            if self._stepped_here:  # a pass that only looks at the data chooses nothing
                self._passed += len(self._here)
                self._odd += self._here
            self._here = []
            self._pass, self._began, self._stepped_here, self._why = number, self._draw, False, ""
        self._draw += 1
        self._since = DECISIONS.count

    def stepped(self, units: int) -> str:
        """Why the run cannot go on; "" if it can. units: that were drawn."""
        if len(self._known) < _MOST:
            self._known.add(outcomes_of(DECISIONS.since(self._since)))
        self._sizes = [min([*self._sizes, units]), max([*self._sizes, units])]
        self._steps += 1
        self._stepped_here = True
        return self._why

    def passed(self, units: int, read: str) -> str:
        """Likewise. read: how values of the draw were read; "" if they were not."""
        self._why = self._why or self._chosen(units, read)
        return self._why if self._stepped_here else ""

    def _chosen(self, units: int, read: str) -> str:
        outcomes = outcomes_of(DECISIONS.since(self._since))
        if outcomes and self._known and outcomes not in self._known:
            new = outcomes - frozenset.union(*self._known) or outcomes
            file, line = min(place for place, _ in new)
            return _WHY.format(f"after a comparison of its values ({os.path.basename(file)}:{line}) that came out as in no draw that a step was made of")
        if read:
            self._read = [*self._read[-15:], (self._draw, self._draw - self._began)]
            if not _in_turn(self._read):
                return _WHY.format(f"after its values were read by {read}, the {len(self._read)}th time, and in no turn")
        if self._steps:
            least, most = self._sizes
            self._here.append(units)
            self._odd = [size for size in self._odd if not least <= size <= most]
            odd = len(self._odd) + sum(not least <= size <= most for size in self._here)
            if not least <= units <= most and _chosen_by_size(self._steps, self._passed + len(self._here), odd):
                return _WHY.format(f"that held {units} examples, where all that steps were made of held {least} to {most}, and {odd - 1} others before it likewise")
        return ""


def _chosen_by_size(steps: int, passed: int, odd: int) -> bool:
    """`odd` of the draws that were passed over hold fewer examples than all steps' draws or more. If nothing about them was chosen, all orders of sizes are as
    likely: given ones are the least and the most of steps + odd in odd + 1 of C(steps + odd, odd) ways."""
    return math.comb(passed, odd) * (odd + 1) * _ONE_IN < math.comb(steps + odd, odd)


def _in_turn(draws: list[tuple[int, int]]) -> bool:
    """Every k-th, or at one place of a pass, or too few to tell."""
    apart = [two - one for (one, _), (two, _) in zip(draws, draws[1:])]
    return len(draws) < _LEAST or len({place for _, place in draws}) == 1 or all(each % min(apart) == 0 for each in apart) and min(apart) > 1


__all__ = ["PassedOver"]
