"""A number that a schedule is given, as `ReduceLROnPlateau.step(np.mean(losses))`: is it a summary of numbers that were read from private
batches? NumPy forgets what it computed with, so the number is compared with what was read.

Windows of the latest 1 to 4,096 reads, and of each the last, the least, the largest, the sum, the mean (of batches, and of
examples) and the median. How near is near
depends on how many numbers a computation could have ended at:

* A double's summary is off by its roundings, below 1e-12 of it. A public number hits one of 28,672 intervals of that width, among
  numbers that differ by a tenth, in fewer than one call in 10^6. One hit refuses.
* A number that float32 holds may be a float32 array's summary, or one read itself. A public loss, a float32 number too, is as close to
  one of the summaries in a few calls of a hundred. So two numbers in a row must be the same summary: over as many reads, or from the
  same read on, or of those since the call before. A schedule acts on its second number at the earliest.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import math
import struct
from typing import Generic, TypeVar

_MOST = 1 << 12  # that are remembered
_DOUBLE, _SINGLE = 1e-12, 3e-7  # relative; float32: pairwise sums of 4,096 numbers in 13 levels, whose errors of 6e-8 have either sign

T = TypeVar("T")


class Latest(Generic[T]):
    """The latest of what is noted, of all runs of the process."""

    def __init__(self) -> None:
        self.latest: collections.deque[T] = collections.deque(maxlen=_MOST)
        self.count = 0  # so far

    def note(self, value: T) -> None:
        self.latest.append(value)
        self.count += 1

    def since(self, count: int) -> list[T]:
        """What was noted after so many."""
        news = min(self.count - count, len(self.latest))
        return list(itertools.islice(self.latest, len(self.latest) - news, None)) if news else []


class Reads(Latest[float]):
    """Numbers that were read, and of how many examples each is."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: collections.deque[int] = collections.deque(maxlen=_MOST)

    def note(self, value: float, size: int = 1) -> None:
        super().note(value)
        self.sizes.append(max(size, 1))


class Summaries:
    """What one schedule was given."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._read_before = reads.count
        self._value = math.nan
        self._met: set[tuple[str, str]] = set()  # by the number before

    def refuses(self, value: float) -> bool:
        """Whether this number is known to be a summary of reads. To be asked of each number in turn."""
        since, self._read_before = self._reads.count - self._read_before, self._reads.count
        again, self._value = since == 0 and value == self._value, value
        if again or not math.isfinite(value) or round(value, 3) == value:  # an accuracy of 0.5 may be of anything
            return False
        single = _is_single(value)
        near = self._windows(value, _SINGLE if single else _DOUBLE)
        if not single:
            return bool(near)
        names = {(kind, name) for kind, count in near for name in (f"of {count}", f"from {self._reads.count - count}")}
        names |= {(kind, "since") for kind, count in near if count == since}
        twice = bool(names & self._met)
        self._met = names
        return twice

    def _windows(self, value: float, tolerance: float) -> list[tuple[str, int]]:
        """Of which kind, over how many of the latest reads, each summary is that is near."""
        found: list[tuple[str, int]] = []
        ordered: list[float] = []
        total = of_examples = 0.0
        examples = 0
        for count, (each, size) in enumerate(zip(reversed(self._reads.latest), reversed(self._reads.sizes)), 1):
            total, of_examples, examples = total + each, of_examples + size * each, examples + size
            bisect.insort(ordered, each)
            middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
            summaries = (("mean", total / count), ("mean by examples", of_examples / examples), ("sum", total), ("median", middle), ("least", ordered[0]), ("largest", ordered[-1]))
            found += [(kind, count) for kind, one in summaries if abs(one - value) <= tolerance * abs(value)]
        return found


def _is_single(value: float) -> bool:
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False
