"""Numbers that ranks read and bring together, as a mean of their losses after an all_reduce: what torch.tensor(loss.item()) and a collective forget.

At every meeting each rank tells the first and the last number that it read since the one before. Their means and sums over the ranks are compared with what a schedule
was given in between (provenance/summaries.py), before those of this meeting are added and after: a loss is read before a backward or behind it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..provenance import READS, Summaries
from ..provenance.summaries import Reads

NOTHING_READ = (math.nan, math.nan)
WHY = (
    "the learning rate follows from a number that the ranks read from private batches and brought together (ReduceLROnPlateau of a loss after an all_reduce): what is released would "
    "follow from it without noise. Let it follow from the step, or from public data"
)


class ReadTogether:
    def __init__(self) -> None:
        self._count = READS.count
        self._brought = [Reads() for _ in range(4)]  # means and sums of the first, and of the last
        self._asked = [[Summaries(each) for each in self._brought] for _ in range(2)]

    def here(self) -> tuple[float, float]:
        """This rank's."""
        found, self._count = READS.since(self._count), READS.count
        return (found[0], found[-1]) if found else NOTHING_READ

    def refuses(self, told: Sequence[tuple[float, float]], given: Sequence[float]) -> bool:
        """Whether a schedule was given a summary of them. told: by each rank, now. given: to schedules since the meeting before."""
        before = self._among(0, given)
        for number, values in enumerate(zip(*told)):
            if not any(map(math.isnan, values)):
                self._brought[2 * number].note(sum(values) / len(values))
                self._brought[2 * number + 1].note(sum(values))
        return self._among(1, given) or before

    def _among(self, when: int, given: Sequence[float]) -> bool:
        found = [each.refuses(value) for value in given for each in self._asked[when]]  # all are asked, each number in turn
        return any(found)


__all__ = ["NOTHING_READ", "WHY", "ReadTogether"]
