"""How much a microbatch may record until it is clipped: the rule of the C++ program's --memory-budget (dp/planning/memory_budget.h)
for a model whose activations are not known before its first batch.

What a step takes on a rank, beside activations, is counted as the C++ planner counts it, from public numbers alone: weights,
optimizer and reduced gradients of the rank's rows, the two largest gathered blocks, whole gradient sums if they are accumulated.
Records come on top. Without a budget per-example gradients may take half of that count, or 1 GiB if that is more, within the memory
that the machine has for a rank; rows are kept as far as the model has them. A given budget bounds all records at any price: what does
not fit is recorded in two passes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .. import _native
from .gathered import GatheredWeights
from .layout import Layout
from .ranks import Ranks

_MIB = 1 << 20
_USABLE = 0.8  # of the free memory, as in dp/planning/memory_budget.cpp
_LEAST_HELD = 1 << 30
_LITTLE = 5  # a fifth: freeing what saves less of a step's memory is not worth gathering it again
_OPTIMIZER_VALUES = 2  # float32 for each element, as AdamW keeps them
_UNKNOWN = 1 << 62


@dataclass(frozen=True)
class MemoryBudget:
    """As given: bytes, or a multiple of the same step without privacy, or neither."""

    bytes: int | None = None
    times_plain: float | None = None

    @classmethod
    def parse(cls, given: int | float | str | None) -> MemoryBudget:
        """None, a number of bytes, or "1.05x". ValueError for anything else."""
        if given is None:
            return cls()
        if isinstance(given, str):
            try:
                factor = float(given.removesuffix("x")) if given.endswith("x") else math.nan
            except ValueError:
                factor = math.nan
            if 1 <= factor < math.inf:
                return cls(times_plain=factor)
        elif not isinstance(given, bool) and 0 <= given < _UNKNOWN:
            return cls(bytes=int(given))
        raise ValueError(
            "memory_budget must be a number of bytes, 0 or more, or a multiple of the step without privacy such as '1.05x', at "
            f"least '1x', got {given!r}"
        )


@dataclass(frozen=True)
class MemoryPlan:
    """In bytes, the same on all ranks."""

    plain: int  # a step without privacy on a rank, without activations
    room: int | None  # of the machine for a rank; None: it cannot tell
    records: int | None  # all records of a microbatch, if a budget was given
    held: int  # per-example gradients, if none was
    sums: int = 0  # of a step's microbatches, whole on the rank; 0: each is reduced by itself
    gathered: tuple[str, ...] = ()  # blocks that stay gathered until the logical batch ends

    def in_words(self, two_passes: Sequence[str]) -> str:
        """two_passes: the matrices that are recorded so now."""
        plain = f"Memory of a rank, by count: {mib(self.plain)} without privacy, beside activations"
        if self.records is None:
            room = "" if self.room is None else f", within the {mib(self.room)} that this machine has for a rank"
            return (
                f"{plain}. No budget: per-example gradients of a microbatch may take {mib(self.held)}, the larger of 1024 MiB and half "
                f"of that count{room}. Matrices that do not fit keep their rows.\n{self._sums_in_words()}{self._gathered_in_words()}"
            )
        waits = ", ".join(two_passes) or "none so far"
        return (
            f"{plain}. Memory budget: all records of a microbatch may take {mib(self.records)}. If a step took more, the largest "
            f"matrices are recorded in two passes from the next one on, for a second backward in every step: {waits}.\n{self._sums_in_words()}"
        )

    def _sums_in_words(self) -> str:
        return f"The microbatches of a step are summed on the rank, in {mib(self.sums)}, and reduced once.\n" if self.sums else ""

    def _gathered_in_words(self) -> str:
        if not self.gathered:
            return ""
        return f"Blocks that stay gathered until a logical batch ends, as freeing them would save little: {', '.join(self.gathered)}.\n"


def mib(count: float) -> str:
    return f"{count / _MIB:.1f} MiB"


def plan_memory(
    budget: MemoryBudget, layout: Layout, ranks: Ranks, *, accumulate: bool | None, several: bool = False, held_before: int | None = None,
    optional: Sequence[str] = (),
) -> MemoryPlan:  # fmt: skip
    """A collective. Ranks that were given different bytes take the least. accumulate: whether a step's microbatches are summed on the rank; None: if
    there are several, and room. held_before: of the run that goes on. optional: blocks that may stay gathered."""
    of = {"shard_ranks": ranks.shape[1], "model_ranks": ranks.model_ranks}
    plain = plain_bytes(layout, accumulate=bool(accumulate), **of)
    sums = plain_bytes(layout, accumulate=True, **of) - plain_bytes(layout, accumulate=False, **of)
    given = budget.bytes
    if budget.times_plain is not None:
        given = int((budget.times_plain - 1) * plain)
    room = _room(ranks)
    held = held_before or min(room, max(_LEAST_HELD, plain // 2))
    room, records, held, several = _least([room, _UNKNOWN if given is None else given, held, several], ranks)
    if accumulate is None:
        fits = sums <= min(plain // 2, room - plain - held)
        accumulate = bool(several and fits and records == _UNKNOWN and math.prod(ranks.shape[:2]) > 1)
        room -= sums * accumulate
    spare = min(plain // _LITTLE, room - plain - held) if records == _UNKNOWN else 0
    return MemoryPlan(
        gathered=_that_fit(optional, layout, spare),
        plain=plain,
        room=None if room > _UNKNOWN // 2 else room,
        records=None if records == _UNKNOWN else records,
        held=held,
        sums=sums if accumulate else 0,
    )


def _that_fit(optional: Sequence[str], layout: Layout, spare: int) -> tuple[str, ...]:
    """From the last block, whose backward comes first, as long as all but the largest, which is gathered in turn anyway, fit."""
    found: list[str] = []
    largest = taken = 0
    for name, count in reversed(list(zip(layout.blocks, _bytes_of_blocks(layout)))):
        if name not in optional:
            continue
        largest, taken = max(largest, count), taken + count
        if taken - largest > spare:
            break
        found.append(name)
    return tuple(reversed(found)) if len(found) > 1 else ()


def _bytes_of_blocks(layout: Layout, model_ranks: int = 1) -> list[int]:
    blocks = [0] * len(layout.blocks)
    for entry in layout.parameters:
        blocks[entry.block] += math.prod(entry.shape) // (model_ranks if entry.cut >= 0 else 1) * entry.parameter.element_size()
    return blocks


def plain_bytes(layout: Layout, *, shard_ranks: int, model_ranks: int, accumulate: bool) -> int:
    """dp/planning/appraisal.cpp counts the same for blocks that are gathered again."""
    blocks, values, trainable = _bytes_of_blocks(layout, model_ranks), 0, 0
    for entry in layout.parameters:
        count = math.prod(entry.shape) // (model_ranks if entry.cut >= 0 else 1)
        values += count
        trainable += count if entry.parameter.requires_grad else 0
    owned = 4 * (values + trainable * (_OPTIMIZER_VALUES + 1)) // shard_ranks
    gathered = sum(sorted(blocks)[-2:]) if shard_ranks > 1 else 0
    return owned + gathered + (4 * trainable if accumulate else 0)


def _room(ranks: Ranks) -> int:
    if ranks.device.type == "cpu":
        on_host = int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0) or math.prod(ranks.shape)
        free = _native.load("engine").host_memory_left() / on_host
    elif ranks.device.type == "cuda":
        free = torch.cuda.mem_get_info(ranks.device)[0]
    else:  # its allocator cannot tell
        free = math.inf
    return _UNKNOWN if math.isinf(free) else int(_USABLE * free)


def _least(values: list[int], ranks: Ranks) -> list[int]:
    if ranks.control is None:
        return values
    agreed = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=ranks.control)
    return agreed.tolist()


class Memory:
    """An engine's budget, and the plan that is made of it with the first session and kept by the run."""

    def __init__(self, given: int | float | str | None, *, accumulate: bool | None = None):
        self._budget, self._accumulate = MemoryBudget.parse(given), accumulate
        self._before: dict[str, Any] = {}
        self.plan: MemoryPlan | None = None

    @property
    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return self._before if self.plan is None else {"hold_memory": self.plan.held, "accumulate": self.plan.sums > 0}

    def goes_on(self, state: dict[str, Any]) -> None:
        """With a run's plan, from its checkpoint: another machine's room changes nothing."""
        self.plan, self._before = None, {name: state[name] for name in ("hold_memory", "accumulate") if name in state}

    def options(self, layout: Layout, ranks: Ranks, gathered: GatheredWeights, *, several: bool) -> dict[str, Any]:
        """Of a session. several: the step at hand has more than one microbatch. A collective."""
        if self.plan is None:
            accumulate = self._before.get("accumulate") if self._accumulate is None else self._accumulate
            self.plan = plan_memory(
                self._budget, layout, ranks, accumulate=accumulate, several=several, held_before=self._before.get("hold_memory"),
                optional=gathered.optional,
            )  # fmt: skip
            gathered.keep(self.plan.gathered)
        return {"memory_budget": self.plan.records, "hold_memory": self.plan.held, "streamed": self.plan.sums == 0}

    def in_words(self, layout: Layout, session: Any) -> str:
        if self.plan is None or session is None:
            raise RuntimeError("the plan is made as the first private forward begins: ask for it after that")
        return self.plan.in_words([layout.parameters[i].name for i in session.in_two_passes])


__all__ = ["Memory", "MemoryBudget", "MemoryPlan", "plan_memory"]
