"""Batches as the accountant assumes them: every unit with probability q, independently, in the same number of steps on every
rank."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from .. import _native
from ..lost_ranks import answered
from ..meeting_places import arrive, wait_at
from .given_keys import GivenKeys
from .plan import steps_at
from .stamps import Stamps

_NO_RUN = "00" * 16  # a run id: every epoch has a key of its own instead


def _first_of(key: bytes, group: dist.ProcessGroup | None) -> bytes:
    """The key of the group's first rank, on all of its ranks: a collective. Without a group, the key itself."""
    if group is None:
        return key
    first = [key]
    arrive(group)
    if dist.get_rank(group) > 0:
        wait_at(group)
    with answered():
        dist.broadcast_object_list(first, group=group, group_src=0)
    return first[0]


class PoissonBatchSampler(UniformWithReplacementSampler):
    """The indices of rank's part of each batch: every unit with probability sample_rate, independently of all others.

    Rank r of W owns the units r, r + W, r + 2W, …, so that no unit can be drawn twice and nothing is communicated. An
    epoch has exactly `steps` draws on every rank; a batch may be []. num_samples counts the units of all ranks.

    Each iteration draws a new 256-bit key: from the operating system, or with `generator` from it, reproducibly.
    SHA-256 of the key, the rank and the epoch of set_epoch seeds this rank's coins. So they are independent of the other
    ranks' coins, even if all ranks hold a generator of the same seed. (A torch.Generator has 64 bits of seed at most, and one
    never seeded has a seed known to everybody: for a run that is to be private, leave it out.)

    accumulation_steps: each draw comes in so many batches, one after another, of (nearly) equal size; some may be [].
    process_group: the group of these ranks, default all; used only if ranks must agree on physical batches.
    twins: ranks that must draw the same, because they hold parts of the same layers (tensor parallelism): the first of
    them draws the key. A Gloo group that nothing else uses at the same time; drawing is a collective over it then.
    """

    def __init__(
        self,
        *,
        num_samples: int,
        sample_rate: float,
        steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        generator: torch.Generator | None = None,
        accumulation_steps: int = 1,
        process_group: dist.ProcessGroup | None = None,
        twins: dist.ProcessGroup | None = None,
    ):
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate must be > 0 and <= 1, got {sample_rate}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be >= 0 and < world_size ({world_size}), got {rank}")
        if steps is None:
            steps = steps_at(sample_rate)
        if steps < 0:
            raise ValueError(f"steps must be >= 0, got {steps}")
        if isinstance(accumulation_steps, bool) or not (isinstance(accumulation_steps, int) and accumulation_steps >= 1):
            raise ValueError(f"accumulation_steps must be a whole number >= 1, got {accumulation_steps!r}")
        super().__init__(
            num_samples=num_samples, sample_rate=sample_rate, generator=generator, steps=steps * accumulation_steps
        )  # fmt: skip
        self.draws = steps  # of a pass; `steps`, Opacus' name, counts batches
        self.accumulation_steps = accumulation_steps
        self.stamps = Stamps()
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.process_group = process_group
        self.twins = twins
        self._own_groups: dict[dist.ProcessGroup | None, dist.ProcessGroup] = {}
        self.given = GivenKeys()  # as the generator gave them; none without one

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.draw_epoch()  # Here, not at the first batch: the order of draws from a shared generator is fixed.
        notes = self.stamps.begin_pass(epoch.first_turn)
        return (
            piece.tolist()
            for batch in epoch.batches()
            for piece in notes.noted(np.array_split(batch, self.accumulation_steps))
        )

    def set_epoch(self, epoch: int) -> None:
        """For callers that expect it, and for generators that are seeded alike before every epoch."""
        self.epoch = epoch

    @property
    def fixed_share(self) -> int:
        """Units of this rank for which every draw, however small, has enough physical batches: none without a largest batch."""
        return 0

    def draw_epoch(self) -> Epoch:
        place = f"ghostshard Poisson coins, epoch {self.epoch}, rank {self.rank} of {self.world_size}"
        key = self._new_key(place)
        return Epoch(
            key,
            range(self.rank, self.num_samples, self.world_size),
            self.sample_rate,
            self.draws,
        )

    def _new_key(self, place: str) -> bytes:
        """Another one at each call, even if the generator was seeded again."""
        if self.generator is None:
            return _first_of(hashlib.sha256(secrets.token_bytes(32) + place.encode()).digest(), self.twins)
        words = torch.empty(4, dtype=torch.int64, device=self.generator.device).random_(generator=self.generator)
        key = hashlib.sha256(words.cpu().numpy().tobytes() + place.encode()).digest()
        return _first_of(self.given.fresh(key), self.twins)

    def _common_key(self, place: str) -> bytes:
        """Rank 0's, on every rank. A collective."""
        return _first_of(self._new_key(place), self.own_group())

    def own_group(self, process_group: dist.ProcessGroup | None = None) -> dist.ProcessGroup | None:
        """A gloo group that nothing else uses; all ranks make it at the first call. None for a single rank.

        Its own, because a loader's iterator may run between any two collectives of the training loop.
        """
        if self.world_size == 1:
            return None
        if not dist.is_initialized():
            raise RuntimeError(
                f"{self.world_size} ranks must agree on their physical batches: call "
                "torch.distributed.init_process_group first"
            )
        parent = process_group or self.process_group
        if parent not in self._own_groups:
            ranks = dist.get_process_group_ranks(parent or dist.group.WORLD)
            if len(ranks) != self.world_size:
                raise ValueError(f"the data is shared by {self.world_size} ranks, but the group has {len(ranks)}")
            self._own_groups[parent] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        return self._own_groups[parent]


class Epoch:
    """One rank's batches of one epoch. They follow from the key: step s draws with the coins of the C++ program's step s under this key
    (dp/mechanism/coins.h), one for each of the rank's own units."""

    first_turn = 0  # of a sampler whose groups take turns

    def __init__(self, key: bytes, units: range, sample_rate: float, steps: int):
        self._key, self._units, self._sample_rate, self._steps = key, units, sample_rate, steps
        self._drawn: list[np.ndarray] | None = None

    def sizes(self) -> np.ndarray:
        """Of all batches, which are kept: a coin of every unit and step is not tossed twice."""
        self._drawn = list(self._tossed())
        return np.array([len(batch) for batch in self._drawn], dtype=np.int64)

    def batches(self) -> Iterator[np.ndarray]:
        return self._tossed() if self._drawn is None else iter(self._drawn)

    def _tossed(self) -> Iterator[np.ndarray]:
        drawn_units = _native.load("engine").drawn_units
        for step in range(self._steps):
            drawn = drawn_units(self._key, _NO_RUN, step, len(self._units), self._sample_rate)
            yield self._units.start + np.array(drawn, dtype=np.int64) * self._units.step


__all__ = ["Epoch", "PoissonBatchSampler"]
