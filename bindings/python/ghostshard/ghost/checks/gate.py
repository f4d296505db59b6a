"""What a private run asks before every forward, backward and step: are the ranks together, is the batch one that may be used now,
and are all parameters that train clipped and noised?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ...lost_ranks import answered
from ..layout import Layout
from ..provenance import NoProvenance, Provenance, guard
from ..ranks import Ranks, world_size
from .agreement import BACKWARD, EVALUATION, FORWARD, SAVING, STEP, Agreement
from .alike import digest_of_modes
from .batches import Batches
from .held_weights import HeldWeights
from .parameters import no_gradients_of_autograd, refuse_strangers, refuse_uncovered
from .read_together import NOTHING_READ, WHY, ReadTogether
from .replicas import NONE, Replica, Replicas
from .twins import Twins

NO_FORWARD = (
    "backward() needs a forward of the private model with gradients enabled before it, once for each (zero_grad() after a backward drops its draw)"
)
_FORKED = (
    "this process is a copy of the one that called make_private() (fork, multiprocessing): both would draw the same examples and add the same noise, which "
    "goes out when one takes the difference. Call make_private() in the process that trains"
)

_BEGUN_LATER = (
    "torch.distributed was begun with {} ranks after make_private(), which found this process alone: each rank would train a model of its own on all the data, with noise of its own, "
    "and epsilon would count one. Call make_private() after init_process_group() (TrainingArguments and Accelerator call it, too), with a model in DistributedDataParallel or sharded by FSDP2Wrapper"
)


class Gate:
    """communicates: a forward does, so that ranks must meet before it."""

    def __init__(self, model: nn.Module, layout: Layout, ranks: Ranks, *, communicates: bool):
        self._model, self._layout = model, layout
        self.weights = HeldWeights(layout, model)
        self._replicas, self._twins = Replicas(ranks, self.weights), Twins(ranks)
        self._agree = Agreement(ranks.control, self._refuse_apart)
        self._read_together = ReadTogether()
        self._communicates = communicates and ranks.control is not None
        self._process, self._world = os.getpid(), world_size()
        self._batches: Batches | None = None
        self._nobodys = NoProvenance()
        guard(layout)
        self._trained: Callable[[], Iterable[nn.Parameter]] = tuple
        self._terms: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)

    def open_for(
        self, batches: Batches, trained: Callable[[], Iterable[nn.Parameter]], terms: Callable[[], tuple[float, float]]
    ) -> None:
        """trained() gives the optimizer's parameters, terms() clip norm and noise multiplier."""
        self._batches, self._trained, self._terms = batches, trained, terms
        batches.report_to(self._agree.presence)

    @property
    def batches(self) -> Batches:
        if self._batches is None:
            raise RuntimeError("the model belongs to no optimizer yet: make_private() gives it one")
        return self._batches

    @property
    def provenance(self) -> Provenance | NoProvenance:
        return self._nobodys if self._batches is None else self._batches.provenance

    @property
    def draws_to_charge(self) -> int:
        return 0 if self._batches is None else self._batches.skipped

    def close(self) -> None:
        """The model was taken back: what the loader hands out from now on is nobody's step."""
        if self._batches is not None:
            self._batches.end()

    def forward(self, at: tuple[int, int], given: Any = (), *, anew: bool = False) -> None:
        """at, here and below: step and attempt that the logical batch is charged as. given: the forward's arguments. anew: its session is still to be made,
        which is a collective. Raises on all ranks alike."""
        self._refuse_copies()
        if self._communicates or self.draws_to_charge or anew:
            self._twins.vouched = self.weights.vouched
            self._meet(FORWARD, at, self.batches.check_forward, tell=lambda: self._twins.here(given))

    def evaluation(self) -> None:
        """Before a forward that records nothing. RuntimeError on all ranks if it communicates and some are elsewhere."""
        if self._communicates:
            self._agree.elsewhere(EVALUATION)

    def saving(self, *, released: bool = False, together: bool = True) -> bool:
        """Before all ranks save, load or report. RuntimeError on all of them if some are elsewhere, or if the run cannot go on. A collective, unless this
        rank reports alone (together=False). Whether the weights of any are not what the last step made of them; released=True: RuntimeError then."""
        changed = self.weights.changed_since_a_step()
        why = (self._batches.broken if self._batches is not None else "") or (changed if released else "")
        if together:
            return bool(self._agree.elsewhere(SAVING, RuntimeError(why) if why else None, bool(changed)))
        if why:
            raise RuntimeError(why)
        return bool(changed)

    def backward(
        self, at: tuple[int, int], losses: Any, units: int, check: Callable[[], None], *, news: int = 0, alike: int = 0
    ) -> int:
        """check(): the engine's own. news: bits. Returns those that any rank has. alike: of what the loop has set (set_alike.py), a number that all ranks have alike."""

        def all_checks() -> None:
            check()
            self.batches.check_backward(losses, units)
            if self.batches.place[-1] == 0:  # once a step, and before the step
                refuse_uncovered(self._model, self._layout, self._trained())
                self.weights.check()
            refuse_strangers(losses, self._layout, units, lambda leaf: self.batches.may_train(losses, leaf))

        first = self.batches.place[-1] == 0  # as the weights are looked at
        modes = digest_of_modes(self._model) if first and self._agree.several else 0
        news = self._meet(BACKWARD, at, all_checks, news, settings=modes, tell=self._replicas.here if first else lambda: NONE, units=units, alike=alike)
        self.batches.met_together(self._agree.units)
        return news

    def together(self, at: tuple[int, int], check: Callable[[], Any]) -> bool:
        """check() within a backward: if it raises on one rank, all raise. Whether it is true on any rank."""
        return bool(self._meet(BACKWARD, at, check))

    @contextmanager
    def adding(self, drop: Callable[[], None]) -> Iterator[None]:
        """Within, the microbatch's sum is added to the logical batch's. It counts as gone backward from here on: after an interrupt nobody knows how far that
        came, and who goes on with the same batch must not add it twice. So the logical batch is dropped then."""
        try:
            self.batches.went_backward()
            yield
        except BaseException:
            drop()
            raise

    @contextmanager
    def watched(self) -> Iterator[None]:
        """RuntimeError if autograd forms a trainable parameter's gradient within; LostRank if another rank is gone."""
        with answered(every_error=False), no_gradients_of_autograd(self._layout):
            yield

    def step(self, at: tuple[int, int], check: Callable[[], None], learning_rates: float, settings: int) -> None:
        """learning_rates, settings: of the optimizer, numbers that all ranks have alike."""

        def all_checks() -> None:
            check()
            self.batches.check_forward()
            self.batches.check_step()
            refuse_uncovered(self._model, self._layout, self._trained())
            self.weights.check()
            if not self.weights.vouched:
                self.weights.settings.check(self.batches.place[1], self.batches.units, self.batches.places)

        self._meet(STEP, at, all_checks, learning_rates=learning_rates, settings=settings)

    def _meet(
        self, event: int, at: tuple[int, int], check: Callable[[], Any], news: int = 0, learning_rates: float = 0.0, settings: int = 0,
        tell: Callable[[], Replica] = lambda: NONE, units: int = 0, alike: int = 0,
    ) -> int:  # fmt: skip
        self._refuse_copies()  # before it talks in the place of the first
        wrong, replica = None, NONE
        try:
            news |= bool(check())
            replica = tell()
        except Exception as error:  # whatever it is, the other ranks wait for this one
            wrong = error
        place = (*at, *self.batches.place, self.batches.skipped, self._layout.digest_of_trainable(), alike, settings)
        in_step = event in (BACKWARD, STEP) and self._agree.several
        reads = self._read_together.here() if in_step else NOTHING_READ
        news = self._agree(event, place, (*self._terms(), learning_rates), wrong, news, replica, units, reads)
        if in_step and self._read_together.refuses(self._agree.reads, self.weights.settings.given()):
            self.batches.will_refuse(WHY)
        return news

    def _refuse_apart(self, event: int, found: Sequence[Replica]) -> None:
        (self._twins if event == FORWARD else self._replicas).refuse_apart(found)

    def _refuse_copies(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(_FORKED)
        if (now := world_size()) > self._world:
            raise RuntimeError(_BEGUN_LATER.format(now))


__all__ = ["NO_FORWARD", "Gate"]
