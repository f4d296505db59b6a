"""Checks that no unit's gradient reaches other units' rows, before per-unit norms are trusted.

The rows of unit u must hold the effect of u's loss on a layer's parameters and nothing else: u's factor bounds exactly the
rows whose norm was taken. A layer that mixes units breaks that without any error. So at a session's first microbatch
of two units or more, the losses of a random half of them go backward alone, then those of the other half. All rows of
units whose losses stayed behind must have gradients of exactly zero (dp/recording/attribution.h). Both halves are needed: with
two units a leak from the later to the earlier shows in one of the two only. Then all go backward together: the gradients of each
unit must be as large as they were among half of the others. (A gradient that is divided by the norm of all of them reaches nobody.)

Gradients that are not a number decide nothing, since a unit that is not finite makes them out of zeros (0·inf): the
check is then made again at the next microbatch. Effects of another unit's *values* without a gradient between them (frozen
layers that mix, detached statistics) are looked for in forward, with other inputs (values.py, and by_gradients.py where outputs do not show them), and in the criterion (criterions.py).

A session checks once for packed batches and once for others, because each may go another way through the model. On several
ranks all check at the same microbatch, even those with no units or one, because backward communicates; and all learn of one
rank's finding. They can agree on the microbatch only if their batches are all packed or none is.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...lost_ranks import answered
from ..batch import Inputs
from ..graph import nodes_under
from ..provenance import functions_under, of_no_forward
from .found_lengths import VaryingLengths, find_lengths
from .left_beside import criterions_under, own_losses_under
from .padded_gradients import PaddedGradients, outputs_under
from .padding import settled_axes
from .seen import PUT_BACK, Ones, Seen
from .state import State
from .values import APART, CARRIED, GRADED, KEPT, MIXED, OTHERWISE, PADDED, UNKNOWN, Repeat

_PADDED_AGAIN = 20  # one in so many batches whose padding is known
_MOST_EARLIER = 3  # forwards of a microbatch that are looked at beside its last
_MOST_FUNCTIONS = 8
_UNTOLD = 20
_CANCELLED = 1e-9  # of the squared gradients of a unit


_PADDED = (
    "how far a batch is padded follows from its longest example, but here {} with it, so one example would move the losses of all others, and no clip "
    "norm bounds by how much: a mean over padded places, the last place of a padded row, attention without a mask, labels of padded "
    "places that count. Mask them (attention_mask, lengths, labels of -100, a mean over each example's own places), or pad all examples to one "
    "length, whatever their batch (padding='max_length'). Nothing of this backward was kept"
)


class AttributionCheck:
    """The check of one session. control: the group of all ranks; None for one rank alone. names: of parameters, by number.

    A path through the model may open later (a warm-up, a length, an expert), so the check is made again at random later
    microbatches: one in 600, at the price of three backwards and seven to eleven forwards (one of half of the batch), and of some of four examples, so below 1 % of the time.
    """

    again = 1 / 600
    more_calls = 8  # of a criterion that are repeated: what is dropped beyond a threshold of the batch often moves with no half of it

    def __init__(self, control: Any, names: list[str]):
        self._control = control
        self._names = names
        self._settled: set[bool] = set()  # kinds of batches: packed or not
        self._seen = Seen()
        self._lengths = VaryingLengths()
        self._padded: set[tuple] = set()  # those with which padding was looked at, on this rank, and along which axis
        self._functions: set[frozenset[str]] = set()  # between outputs and losses, when it was checked
        self._coins: random.Random | None = None  # the same on all ranks; from the first check on
        self._ones, self._untold = Ones(), 0  # _untold: checks in which no output moved at all

    def is_new(self, losses: torch.Tensor, forwards: Sequence[Inputs]) -> bool:
        """Whether the model was as at no check (hooks, code, settings, functions that its code names, operations that a forward ran), or a criterion is set
        so, or the losses are formed of its outputs by functions that were in no loss that was checked, since what is computed may have changed."""
        set_anew, functions = self._seen.take_news(), functions_under(losses)
        calls = criterions_under(losses, of_no_forward)  # what a model calls is of its forward
        set_anew = self._seen.computes_anew([each for each in forwards if _kind(each) == _kind(forwards[-1])], calls) or set_anew
        many = len(self._functions) >= _MOST_FUNCTIONS  # kinds: from then on, by a function that was in none of them
        by_others = not functions <= frozenset().union(*self._functions) if many else functions not in self._functions
        return bool(self._settled) and (set_anew or by_others or self._lengths.look_anew)

    def look_at_criterion(self, criterion: Any) -> None:
        """After a call."""
        self._seen.after_call(criterion)

    def look_at_forward(self, model: nn.Module, inputs: Any, output: Any) -> None:
        """After it."""
        self._seen.after_forward(model, inputs, output)
        self._lengths.note(inputs, output)

    def padding_is_new(self, places: Iterable[tuple[int, int]]) -> bool:
        """Whether it was not looked at how far a batch is padded along some of its axes, for the model as is_new() saw it; true at some later batches too."""
        return any((self._seen.look, place) not in self._padded for place in places) or secrets.randbelow(_PADDED_AGAIN) == 0

    def __call__(self, session: Any, losses: torch.Tensor, repeats: list[Repeat], *, new: bool = False) -> bool:
        """Runs before the backward of [units] losses, and keeps their graph. RuntimeError on all ranks if rows of other units
        were reached. False if it told nothing of what is new, so that the next batch is to be looked at.

        repeats: of the model's forwards, the last one's last; none if its layers were called one by one. new: is_new() or padding_is_new() on any
        rank.
        """
        units, repeat = len(losses), repeats[-1] if repeats else None
        packed = repeat is not None and repeat.inputs.packing is not None
        known = self._seen.layers_alone if repeat is None else not new
        if self._control is not None and self._settled:
            if units and packed not in self._settled:
                raise ValueError(f"on several ranks all batches are packed or none is: this one is {_name(packed)}")
            if not new and not self._by_lot():
                self._look_at_criterions(losses)
                return True
        elif packed in self._settled and known and not self._by_lot():
            self._look_at_criterions(losses)
            return True
        look = () if repeat is None else self._seen.look
        # One seed for all: ranks that hold parts of the same units must choose the same half.
        calls = criterions_under(losses)
        seed = self._refuse_otherwise(repeats, calls, secrets.randbits(62))
        due, any_packed, any_plain = self._highest([units > 1, units > 0 and packed, units > 0 and not packed])
        if any_packed and any_plain:
            raise ValueError("on several ranks all batches are packed or none is: here some rank's are and another's are not")
        if self._coins is None and (due or repeat is not None):
            self._coins = random.Random(seed)
        if not due:
            self._look_at_one(losses, repeat, calls)
            return False
        half = _half_of(units, seed)
        reached, undecided, output = -1, False, APART
        coins, masses = State(nn.Module(), losses.device), []
        for part in ([u in half for u in range(units)], [u not in half for u in range(units)], [True] * units):
            coins.again()  # a layer may run again in backward
            found, unclear, own = self._watched(session, losses, part if units > 1 else [True] * units)
            reached, undecided = max(reached, found), undecided or unclear
            masses.append(own)
        coins.again()
        scaled = not undecided and any(_other_masses(masses[u not in half], masses[2], u) for u in range(units))
        chosen = torch.tensor([u in half for u in range(units)], dtype=torch.bool)
        of_model = own_losses_under(losses)
        looked_at = [each if each.inputs.own_losses in of_model else replace(each, own_loss=None) for each in self._some_of(repeats, units, packed=packed, seed=seed)]
        if looked_at:
            output = max(each.reaches_others(chosen, self._highest) for each in looked_at)
        if new or not self._settled:
            self._lengths.looked()
            for each in looked_at:
                find_lengths(each, units, seed)
        nodes = outputs_under(losses)
        padded = [PaddedGradients(nodes.get(each.inputs.forward, ()), each.inputs.padded_outputs, each.inputs.found_lengths) for each in looked_at]
        axes = next((each.inputs.padding for each in reversed(looked_at) if each.inputs.padding), ())
        pooled = all(each.inputs.pooled for each in looked_at)
        if not (pooled or any(each.inputs.padded_outputs for each in looked_at)):
            axes = ()  # which of their extents are places is not known
        places = {(each.shape, each.shape[each.places.d - 1]) for one in looked_at for of in one.inputs.padded_outputs.values() for each in of}
        loss = max([APART, *(each.reaches_others(chosen, losses.device, axes, pooled=pooled, places=places) for each in calls)])
        reached, undecided, scaled, output, loss, watch = self._highest([reached, undecided, scaled, output, loss, any(each.watches for each in padded)])
        self._refuse(reached, bool(scaled), output, loss, "".join([why for each in looked_at for why in each.refusals][:1]))
        if watch:
            self._look_at_places(session, losses, padded)
        if not undecided and not self._highest([not looked_at or any(each.inputs.told for each in looked_at)])[0]:
            self._untold += 1
            undecided = self._untold < _UNTOLD
        if not undecided:
            self._settled.add(bool(any_packed))
            self._seen.checked([each.inputs for each in looked_at], calls, of_model=repeat is not None)
            self._functions.add(functions_under(losses))
            self._padded |= {(look, place) for place in settled_axes(looked_at)}
        return not undecided

    def _look_at_places(self, session: Any, losses: torch.Tensor, padded: list[PaddedGradients]) -> None:
        """A backward more, which communicates."""
        coins = State(nn.Module(), losses.device)  # a layer may run again
        with ExitStack() as watching:
            for each in padded:
                watching.enter_context(each.watched())
            self._watched(session, losses, [True] * len(losses))
        coins.again()
        self._refuse(-1, False, APART, *self._highest([PADDED if any(each.found for each in padded) else APART]), "")

    def _refuse_otherwise(self, repeats: list[Repeat], calls: list[Any], seed: int) -> int:
        """RuntimeError on all ranks if one cannot repeat forwards and calls as they were. Gives a seed for all."""
        found = self._seen.otherwise(repeats, calls)
        moved, seed = self._highest([bool(found), seed])
        if moved:
            raise RuntimeError(found or "on another rank a forward or a criterion cannot be repeated as it was: what it says there. Nothing of this backward was kept")
        return seed

    def _look_at_criterions(self, losses: torch.Tensor) -> None:
        """With other halves than at the check of the model, at so many microbatches after it."""
        if self.more_calls == 0:
            return
        self.more_calls -= 1
        units, calls = len(losses), criterions_under(losses)
        seed = self._refuse_otherwise([], calls, secrets.randbits(62))
        half = _half_of(units, seed)
        chosen = torch.tensor([u in half for u in range(units)], dtype=torch.bool)
        found = [each.reaches_others(chosen, losses.device) for each in calls] if units > 1 else []
        self._refuse(-1, False, APART, *self._highest([max([APART, *found])]), "")

    def _some_of(self, repeats: list[Repeat], units: int, *, packed: bool, seed: int) -> list[Repeat]:
        """As many on every rank: the last forward, and some of those before it, which may go other ways (a second tower, a flag)."""
        alike = [each for each in repeats[:-1] if _kind(each.inputs) == (units, packed)]
        earlier = random.Random(seed).sample(alike, min(_MOST_EARLIER, len(alike)))
        most = self._highest([len(earlier)])[0]
        return [*earlier, *repeats[-1:] * (most - len(earlier)), *repeats[-1:]]

    def _look_at_one(self, losses: torch.Tensor, repeat: Repeat | None, calls: list[Any]) -> None:
        """Of batches of one example on every rank: it has no others, but what the model and the criterion keep of it may reach those of later batches."""
        if repeat is None:
            return
        by_lot, (new,) = self._by_lot(), self._highest([self._ones.is_new(self._seen.look, repeat.inputs.ran, calls)])
        if not (new or by_lot):
            return
        everybody = torch.ones(len(losses), dtype=torch.bool)
        output = repeat.reaches_others(everybody, self._highest)
        loss = max([APART, *(each.reaches_others(everybody, losses.device) for each in calls)])
        kept = [each if each in (KEPT, CARRIED) else APART for each in (output, loss)]
        self._refuse(-1, False, *self._highest(kept), "")
        self._ones.add(self._seen.look, repeat.inputs.ran, calls)

    def _refuse(self, reached: int, scaled: bool, output: int, loss: int, why: str) -> None:
        if reached >= 0:
            raise RuntimeError(
                f"parameter {self._names[reached]!r}: an example's gradient must not depend on other examples, but here "
                "the loss of some reached the rows of others. Some layer mixes examples: attention across the batch or "
                "across packed texts, statistics of the batch, batch and time in each other's place. Nothing of this "
                "backward was kept"
            )
        if scaled:
            raise RuntimeError(
                "an example's gradient must not depend on other examples, but here it was another one when the losses of the others went "
                "backward beside it: a hook on gradients, or a backward of your own, divides by the norm of all or takes their mean. "
                "Nothing of this backward was kept"
            )
        if OTHERWISE in (output, loss):
            raise RuntimeError(PUT_BACK.format(f"something that sends {'the model' if output == OTHERWISE else 'the criterion'} another way"))
        if output == KEPT:
            raise RuntimeError(
                "the model's buffers follow from examples (running statistics, an average of activations): they have no noise, and would be "
                "saved with the weights. Make them follow from public data alone, and freeze them. Nothing of this backward was kept"
            )
        if output == CARRIED:
            raise RuntimeError(
                "the model keeps what follows from examples (a memory, a queue, the state of the batch before), and its outputs for the next batch "
                "follow from it: an example would be in the gradients of others, in steps that it was not drawn for. Nothing of this backward "
                "was kept"
            )
        if PADDED in (output, loss):
            raise RuntimeError(_PADDED.format("outputs, or losses of its own, changed" if output == PADDED else "losses changed"))
        if GRADED in (output, loss):
            raise RuntimeError(
                "an example's gradient must not depend on other examples, but here gradients changed with the inputs of others, where outputs may not: statistics of the "
                "batch behind a head, a gate or an adapter of zeros; a backward of your own, a hook, a straight-through estimate or a rounding that follows from the batch. "
                "Nothing of this backward was kept"
            )
        if output == UNKNOWN:
            raise RuntimeError(
                "whether the model keeps its examples apart cannot be told, because it takes no other inputs in the place of some of them "
                f"({why or 'on another rank'}). attribution_check=False leaves this check out"
            )
        if output:
            raise RuntimeError(
                "an example's output must not depend on other examples, or its gradient does too, but here outputs "
                "changed with the inputs of others. Some layer mixes examples, frozen or without a gradient. Nothing "
                "of this backward was kept. (If the output has what is of pairs of examples, as CLIP's logits_per_image, wrap the model, so that its "
                "forward gives each example's own embeddings alone)"
            )
        if loss == MIXED:
            raise RuntimeError(
                "an example's loss must not depend on other examples, but here losses that the criterion gave changed with the outputs or the "
                "targets of others: statistics of the batch, or weights that follow from it. Nothing of this backward was kept"
            )
        if loss == CARRIED:
            raise RuntimeError(
                "the criterion keeps numbers or tensors that follow from examples (running statistics, an average of its losses): in later "
                "batches they would be in the losses of others. Nothing of this backward was kept"
            )
        if loss == UNKNOWN:
            raise RuntimeError(
                "whether the criterion keeps its examples apart cannot be told, because it takes no other outputs and targets in the place of "
                "some of them. attribution_check=False leaves this check out"
            )

    def _by_lot(self) -> bool:
        return self._coins is not None and self._coins.random() < self.again

    def _watched(self, session: Any, losses: torch.Tensor, chosen: list[bool]) -> tuple[int, bool, dict[int, list[float]]]:
        # A rank without units has one unit of zeros in their place, which has no loss.
        session.begin_attribution_check(chosen or [True] * session.units)
        with _leaves_untouched(losses):
            losses.backward(torch.tensor(chosen, dtype=losses.dtype, device=losses.device), retain_graph=True)
        masses = session.watched_masses()
        return *session.end_attribution_check(), masses

    def _highest(self, mine: list[int]) -> list[int]:
        if self._control is None:
            return mine
        of_all = torch.tensor([int(each) for each in mine])
        with answered():
            dist.all_reduce(of_all, dist.ReduceOp.MAX, group=self._control)
        return of_all.tolist()


def _kind(forward: Inputs) -> tuple[int, bool]:
    """Of a microbatch's forwards those of one kind are looked at together."""
    return forward.units, forward.packing is not None


def _half_of(units: int, seed: int) -> set[int]:
    """Of an odd number of units: a batch that is paired with itself (turned round, neighbours) has no such half of whole pairs."""
    size = units // 2
    return set(random.Random(seed).sample(range(units), size - (size > 0 and size % 2 == 0)))


def _other_masses(alone: dict[int, list[float]], together: dict[int, list[float]], unit: int) -> bool:
    """Beyond rounding, of some parameter: a unit's rows have the same numbers in both, up to bfloat16's half unit in the last place, squared. Where terms
    cancel, what is left of them is rounding, a share of all. Not a number decides nothing."""
    least = _CANCELLED * sum(of_units[unit] for of_units in together.values())
    pairs = [(alone[each][unit], together[each][unit]) for each in together if each in alone]
    return any(abs(one - two) > max(4e-3 * max(one, two), least) for one, two in pairs)


def _name(packed: bool) -> str:
    return "packed" if packed else "not"


@contextmanager
def _leaves_untouched(losses: torch.Tensor) -> Iterator[None]:
    """Gradients of the caller's own leaves, such as inputs, stay what they were."""
    variables = (getattr(node, "variable", None) for node in nodes_under([losses]))
    leaves = [(each, each.grad) for each in variables if isinstance(each, torch.Tensor)]
    for leaf, _ in leaves:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, gradient in leaves:
            leaf.grad = gradient
