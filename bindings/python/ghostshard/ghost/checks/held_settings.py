"""Settings that a program changes between steps (learning rate, decay, clip norm, noise, which modules and parameters train): do they follow from what it
read of private batches?

A number that was read is known as such (provenance/constants.py), also as an attribute of a module. A branch leaves none: `if loss.item() < best: ... else:
group["lr"] *= 0.5` writes a number of the program's own. So for each setting it is noted in which steps it began to change. Taken are changes in every
step (schedules, warm-up), in every k-th, at the beginning of a pass, at one place of a pass, and what a scheduler writes that is stepped so. What is left
is refused at the third change if it goes with the outcome of one comparison of read values (provenance/decisions.py), and at the fourth if the
setting goes back to what it was after values were read without a trace (float(), NumPy). A setting that is the same function of one read
number in five steps, as `0.1 * math.exp(-loss.item())`, is refused, too; and one that follows smoothly from how much was drawn or read so far (a schedule by
tokens), or always has the same value for the same extent of a draw.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ..provenance import DECISIONS, READS, Read, ReadInt

_NUMBERS = (Read, ReadInt)
_LEAST = 3  # changes that tell
_AFFINE = 5  # steps in a row
_SMOOTH = 9  # of a function whose form is not known
_SMOOTHER = 0.04  # a setting's change for each example or token that came, than its change for each step
_TABLE = 16  # steps
_EXTENTS = ("how many examples were drawn", "how far they were padded") * 2  # of this draw, and of the one before, after which loops set it
_OF_DRAWS = ("how many examples were drawn so far", "how many places their batches had so far") * 2
_AMOUNTS = (*_OF_DRAWS, *("what was read so far",) * 2, *("a number that was read before",) * 2)
_FUNCTIONS: tuple[Callable[[float], float], ...] = (float, math.exp, lambda v: math.exp(-v), math.log, math.sqrt, math.tanh, lambda v: v * v, lambda v: 1 / v)
_FOLLOWS = (
    "the {} follows from values of private batches as it seems: {}. What is released would follow from them without noise. Let it follow from the step, from a "
    "scheduler that is stepped at every step or pass, or from public data; if it does, say so with make_private(allow_vouched=True), which the report states"
)
_HOLDS = (
    "{}.{} is a number that was read from a private batch (its loss, its values): each example's gradient would follow from others. Let it follow from the step, or "
    "from public data"
)

_TURNS = (
    "{} was stepped {} times in one step and {} times in another, as often as the draw has physical batches: the learning rate would follow from how many examples were "
    "drawn. Step it once for every optimizer.step() that is no part of a logical batch, or once for every pass"
)


# What a loop may do between two steps, whatever it is: done or not, it is a setting of the step.
WEIGHTS = ("weights", "change of weights between steps")
STATES = ("states", "change of what the optimizer keeps")
GRADIENTS = ("gradients", "change of gradients between release and step")
LEFT_OUT = ("steps", "choice of releases that no step applied")
_AFTER_THE_RELEASE = (GRADIENTS, LEFT_OUT)  # what decides it may be compared before that, too
_ENOUGH = 8  # steps, until an outcome goes with one of these by no chance


class _Change(NamedTuple):
    step: int
    of_pass: int  # steps since the pass began
    value: Any
    outcomes: dict
    reads: bool


@dataclass
class _Setting:
    value: Any
    changed: int = -1  # the latest step
    begun: collections.deque[_Change] = field(default_factory=lambda: collections.deque(maxlen=16))  # changes after a step without any
    latest: collections.deque[tuple[Any, list[float]]] = field(default_factory=lambda: collections.deque(maxlen=_AFFINE))  # with what was read before each
    amounts: collections.deque[tuple[Any, list[float]]] = field(default_factory=lambda: collections.deque(maxlen=_SMOOTH))  # with _AMOUNTS, in steps in a row
    by_extent: collections.deque[tuple[Any, tuple]] = field(default_factory=lambda: collections.deque(maxlen=_TABLE))  # in every step, with the draw's


class HeldSettings:
    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._optimizer: Any = lambda: None  # a weak reference
        self._held: dict[Any, _Setting] = {}
        self._seen: dict[Any, set[bool]] = {}  # outcomes by place
        self._step = self._pass = self._pass_began = 0
        self._decisions, self._reads = DECISIONS.count, READS.count
        self._extents = (0, 0, 0, 0)
        self._drawn, self._read = [0.0] * 4, [0.0] * 2
        self._turns: dict[tuple, int] = {}  # of schedulers, so far
        self._turns_seen: dict[tuple, set[int]] = {}  # in one step
        self.done: set[tuple] = set()  # of WEIGHTS and its kin, since the last release
        self._compared: dict[Any, bool] = {}  # outcomes before the last release
        self._moves: dict[Any, collections.Counter] = {}  # by one of these and place: how often it was done or not, with each outcome

    def follow(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._held.clear()

    def given(self) -> list[float]:
        """Numbers that schedules of the optimizer got since this was asked last."""
        optimizer = self._optimizer()
        found = [] if optimizer is None else list(optimizer.metrics)
        if found:
            optimizer.metrics.clear()
        return found

    def check(self, passes: int, units: int = 0, places: int = 0) -> None:
        """Before every release. ValueError if a setting follows from values of private batches. passes: over the loader. units, places: of this draw, and how
        many places its examples have together."""
        self._step += 1
        if passes != self._pass:
            self._pass, self._pass_began = passes, self._step
        outcomes: dict[Any, bool] = dict(DECISIONS.since(self._decisions))
        longer, self._compared = {**outcomes, **{(*place, "before"): outcome for place, outcome in self._compared.items()}}, outcomes
        for place, outcome in longer.items():
            self._seen.setdefault(place, set()).add(outcome)
            for each in (WEIGHTS, STATES, *_AFTER_THE_RELEASE):
                self._moves.setdefault((each, place), collections.Counter())[each in self.done, outcome] += 1
        reads = READS.since(self._reads)
        self._decisions, self._reads = DECISIONS.count, READS.count
        self._extents = (units, places // max(units, 1), *self._extents[:2])
        self._drawn = [self._drawn[0] + units, self._drawn[1] + places, *self._drawn[:2]]
        if reads:
            self._read = [self._read[0] + reads[0], self._read[1] + reads[-1]]
        optimizer = self._optimizer()
        if optimizer is None:
            return
        stepped = self._schedulers_of(optimizer)
        self._check_turns(stepped)
        scheduled = any(self._held[key].value != count for key, count in stepped.items() if key in self._held)
        done = [(each, self._step if each in self.done or each not in self._held else self._held[each].value) for each in (WEIGHTS, STATES, *_AFTER_THE_RELEASE)]
        self.done = set()
        for key, value in (*stepped.items(), *_settings_of(optimizer), *self._modes(), *done):
            self._note(key, value, longer if key in _AFTER_THE_RELEASE else outcomes, reads, counts=not (scheduled and key[0] == "group"))

    def _check_turns(self, stepped: dict[tuple, int]) -> None:
        """ValueError for a scheduler that is stepped once for each physical batch, of which a larger draw has more."""
        for key, count in stepped.items():
            turns = count - self._turns.get(key, count)
            seen = self._turns_seen.setdefault(key, set())
            if key in self._turns and turns > 0:  # its constructor makes a turn too
                seen.add(turns)
            self._turns[key] = count
            if len(seen) > 1:
                raise ValueError(_TURNS.format(key[-1].removesuffix("'s turn"), *sorted(seen)[:2]))

    def _note(self, key: tuple, value: Any, outcomes: dict, reads: list[float], *, counts: bool) -> None:
        setting = self._held.setdefault(key, _Setting(value))
        changes, setting.value = setting.value != value, value
        setting.by_extent.append((value, self._extents))
        if not changes:
            setting.latest.clear()
            setting.amounts.clear()
            return
        for number, what in enumerate(_EXTENTS):
            if _is_table([(each, extents[number]) for each, extents in setting.by_extent]):
                raise ValueError(_FOLLOWS.format(key[-1], f"in {_TABLE} steps it was a function of {what}"))
        begins, setting.changed = setting.changed != self._step - 1, self._step
        setting.amounts.append((value, [*self._drawn, *self._read, *((reads[0], reads[-1]) if reads else ())]))
        for number, what in enumerate(_AMOUNTS):
            of_one = [(each, amounts[number]) for each, amounts in setting.amounts if number < len(amounts)]
            if _is_smooth(of_one) or (number < len(_OF_DRAWS) and _varies(of_one[-_AFFINE:]) and _is_function([(each, [amount]) for each, amount in of_one[-_AFFINE:]])):
                raise ValueError(_FOLLOWS.format(key[-1], f"in some steps in a row it was a function of {what}"))
        if not counts:
            return
        setting.latest.append((value, reads[:2] + reads[-2:]))
        if _is_function(setting.latest):
            raise ValueError(_FOLLOWS.format(key[-1], f"in {_AFFINE} steps it was a function of a number that was read before"))
        if begins and self._step > self._pass_began:
            setting.begun.append(_Change(self._step, self._step - self._pass_began, value, outcomes, bool(reads)))
            if why := self._why(key, list(setting.begun)):
                raise ValueError(_FOLLOWS.format(key[-1], why))

    def _why(self, key: tuple, begun: list[_Change]) -> str:
        if len(begun) < _LEAST or _in_turn(begun):
            return ""
        for place in set.intersection(*(set(each.outcomes) for each in begun)):
            if self._by_itself(key, place):
                continue
            by_value = {(each.value, each.outcomes[place]) for each in begun}
            one_sided = len({outcome for _, outcome in by_value}) == 1
            if len(self._seen[place]) == 2 and (one_sided or len(by_value) == len({value for value, _ in by_value}) < len(begun)):
                return f"it changed {len(begun)} times, in no turn, each time as the comparison in {place[0]}:{place[1]} came out"
        back = len(begun) - len({each.value for each in begun})
        if len(begun) > _LEAST and back > 1 and all(each.reads for each in begun):
            return f"it changed {len(begun)} times, in no turn, to and fro, after numbers were read"
        return ""

    def _by_itself(self, key: tuple, place: Any) -> bool:
        """Whether something is done between steps whatever the outcome there, as bounds on weights move them now and then, up to one step in 16."""
        if (times := self._moves.get((key, place))) is None:
            return False
        apart = min(times[True, True] + times[False, False], times[True, False] + times[False, True])
        return apart > self._step // 16 or (key in _AFTER_THE_RELEASE and self._step < _ENOUGH)

    def _schedulers_of(self, optimizer: Any) -> dict[tuple, int]:
        own = (optimizer, optimizer.original_optimizer)
        return {("scheduler", id(each), f"{type(each).__name__}'s turn"): count for each, count in _STEPS.items() if any(each.optimizer is one for one in own)}

    def _modes(self) -> Iterator[tuple[tuple, Any]]:
        """Which modules are in training, and which parameters train."""
        modes = []
        for module in self._model.modules():
            modes.append(module.training)
            for name, value in vars(module).items():
                if type(value) in _NUMBERS and _is_taken(type(module), name):
                    raise ValueError(_HOLDS.format(type(module).__name__, name))
        yield ("modes", "training mode of modules"), tuple(modes)
        yield ("trained", "choice of parameters that train"), tuple(each.requires_grad for each in self._model.parameters())


def _settings_of(optimizer: Any) -> Iterator[tuple[tuple, Any]]:
    if optimizer.max_grad_norm != optimizer.adapted:
        yield ("terms", "clip norm"), optimizer.max_grad_norm
    yield ("terms", "noise multiplier"), optimizer.noise_multiplier
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                yield ("group", number, f"optimizer's {name}"), _plain(value)


def _plain(value: Any) -> Any:
    """A number, a word, or several; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else None
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else value if isinstance(value, (int, float, str)) else None


def _in_turn(begun: list[_Change]) -> bool:
    """Every k-th step, or at one place of a pass."""
    apart = {two.step - one.step for one, two in zip(begun, begun[1:])}
    return len({each.of_pass for each in begun}) == 1 or (len(apart) == 1 and begun[0].step <= min(apart) + 2)


def _is_function(latest: Sequence[tuple[Any, list[float]]]) -> bool:
    """Whether the values are a·f(read) + b in all steps, of one number that was read in each."""
    values = [value for value, _ in latest]
    if len(latest) < _AFFINE or not all(isinstance(each, float) for each in values):
        return False
    for read in zip(*(reads for _, reads in latest)):
        for function in _FUNCTIONS:
            try:
                of_reads = [function(each) for each in read]
                slope = (values[1] - values[0]) / (of_reads[1] - of_reads[0])
            except (ValueError, OverflowError, ZeroDivisionError):
                continue
            scale = 1e-9 * max(map(abs, values))
            if all(abs(values[0] + slope * (each - of_reads[0]) - value) <= scale for each, value in zip(of_reads[2:], values[2:])):
                return True
    return False


def _varies(amounts: Sequence[tuple[Any, float]]) -> bool:
    """Not alike in all steps: a schedule by steps is a function of what comes in equal parts."""
    return len({round(two - one, 6) for (_, one), (_, two) in itertools.pairwise(amounts)}) > 1


def _is_smooth(amounts: Sequence[tuple[Any, float]]) -> bool:
    """Whether the value changes evenly with the amount, though not from step to step: what a schedule by steps changes for each token is as uneven as the
    tokens are."""
    if len(amounts) < _SMOOTH or not all(isinstance(value, float) for value, _ in amounts):
        return False
    moves = [two[0] - one[0] for one, two in itertools.pairwise(amounts)]
    more = [two[1] - one[1] for one, two in itertools.pairwise(amounts)]
    return all(more) and _uneven([move / each for move, each in zip(moves, more)]) < _SMOOTHER * _uneven(moves)


def _uneven(values: Sequence[float]) -> float:
    """By how much a value differs from the mean of its neighbours, of the largest."""
    return max(abs(one - 2 * two + three) for one, two, three in zip(values, values[1:], values[2:])) / (max(map(abs, values)) or 1.0)


def _is_table(seen: Sequence[tuple[Any, int]]) -> bool:
    """Whether each value came with one extent and each extent with one value, of which several came again."""
    values, extents, pairs = {repr(value) for value, _ in seen}, {extent for _, extent in seen}, {(repr(value), extent) for value, extent in seen}
    return len(seen) == _TABLE and 2 < len(values) == len(extents) == len(pairs) < _TABLE - 3


def _is_taken(kind: type[nn.Module], name: str) -> bool:
    """Whether a module's forward may take this attribute: torch's modules do, others if their code names it."""
    return kind.__module__.startswith("torch.") or name in _names_in(getattr(kind.forward, "__code__", None), kind)


def _names_in(code: Any, kind: type, depth: int = 2) -> set[str]:
    """That the code names, and the methods that it names."""
    if not isinstance(code, types.CodeType):
        return set()
    found = set(code.co_names)
    for each in code.co_consts:
        found |= _names_in(each, kind, depth)
    for name in code.co_names if depth else ():
        found |= _names_in(getattr(getattr(kind, name, None), "__code__", None), kind, depth - 1)
    return found


# Schedulers -------------------------------------------------------------------------------------------------------------

_COUNTED = "_ghostshard_counted"  # of LRScheduler.step, once it is replaced
_STEPS: weakref.WeakKeyDictionary[LRScheduler, int] = weakref.WeakKeyDictionary()  # how often each was stepped


def watch_schedulers() -> None:
    """From the first private optimizer on. May be called again."""
    step = LRScheduler.step
    if hasattr(step, _COUNTED):
        return

    @functools.wraps(step)
    def counted(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        _STEPS[self] = _STEPS.get(self, 0) + 1
        step(self, *args, **kwargs)

    setattr(counted, _COUNTED, True)
    LRScheduler.step = counted  # type: ignore[method-assign]


__all__ = ["GRADIENTS", "LEFT_OUT", "STATES", "WEIGHTS", "HeldSettings", "watch_schedulers"]
