"""A model whose trainable layers record instead of accumulating gradients. The C++ side is dp/run/session.h.

A microbatch is one forward and one backward. `backward()` clips each unit's gradient over all layers and reduces the sum
onto the noise at once; `release()` ends the logical batch and puts the noised mean into `.grad`. No gradient without noise
ever reaches Python or an optimizer, nor another rank's memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..lost_ranks import answered
from .batch import Inputs
from .checks.batches import Batches
from .checks.gate import NO_FORWARD, Gate
from .checks.values import Repeat
from .gathered import GatheredWeights
from .layout import Layout, read_layout
from .loss import check_losses
from .meetings import doubts
from .memory_budget import Memory
from .packing import Packing
from .patching import PatchedModel
from .ranks import Ranks, ranks_of
from .recording import REENTRANT
from .run_state import Terms
from .sessions import Sessions

_OWN_LOSS, _LOOKS, _MOST_FORWARDS = 1, 2, 63  # what a rank has news of, as bits; forwards before the last that are kept of a microbatch


class GhostEngine:
    """Patches `model` in place; `detach()` undoes it.

    Args:
        model: plain, in DistributedDataParallel, or sharded by `fully_shard` (FSDP2).
        batch_first: units are the first dimension of layer inputs; False: the second.
        memory_budget: what a microbatch may record until it is clipped: bytes, or "1.05x" of a step without privacy, or what the
            machine has room for (memory_budget.py).
        accumulate: sum a logical batch's microbatches on the rank (float32, whole) and reduce once, instead of reducing
            each: less traffic, more memory. None: if there are several, and room (memory_budget.py).
        attribution_check: watch the first backwards for gradients that reach other units' rows (checks/gradients.py).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        memory_budget: int | str | None = None,
        accumulate: bool | None = None,
        clipping: str = "flat",
        attribution_check: bool = True,
    ):
        self.model = model
        self.batch_first, self.loss_reduction, self.clipping = batch_first, loss_reduction, clipping
        fsdp = isinstance(model, FSDPModule)
        self.layout: Layout = read_layout(model, fsdp=fsdp)
        self.ranks: Ranks = ranks_of(model, self.layout, fsdp=fsdp)
        self._gathered, self.memory = GatheredWeights(model, self.layout), Memory(memory_budget, accumulate=accumulate)
        self.sessions = Sessions(self.layout, self.ranks, self.memory, self._gathered, clipping=clipping, checked=attribution_check)
        self.run = self.sessions.run  # constants, ledger, next step
        self.in_forward, self._doubts, self._look_is_due = False, 0, False
        self.inputs: Inputs | None = None  # of the last forward
        self.forwards: list[Inputs] = []  # that the microbatch at hand has begun with; none: a layer called on its own
        self._enabled, self._detached = True, False
        self._communicates = fsdp or self.ranks.model_ranks > 1
        self._gate = Gate(model, self.layout, self.ranks, communicates=self._communicates)
        self.weights = self._gate.weights
        self._patches = PatchedModel(self, model, fsdp=fsdp)

    # The privacy engine's settings ----------------------------------------------------------------------------------

    def set_constants(
        self,
        *,
        terms: Terms,
        batches: Batches,
        trained: Callable[[], Iterable[nn.Parameter]] = tuple,
        charge: Callable[[float], None] = lambda _: None,
        **constants: Any,
    ) -> None:
        """terms() gives (clip norm, noise multiplier) whenever a logical batch begins; charge(noise multiplier) is called then, before
        anything of it is released. batches: which ones a step may be made of. trained() gives the optimizer's parameters. The other
        constants are RunState's."""
        self.run.set_constants(terms=terms, **constants)
        self._gate.open_for(batches, trained, terms)
        self._charge = charge
        self.sessions.drop()

    def attach_ledger(self, path: str, header: dict) -> None:
        """Write-ahead: every release is on disk before its gradient is seen. Rank 0 writes. ValueError for a second ledger."""
        self.run.attach_ledger(path, header)
        self.sessions.drop()

    @property
    def next_step(self) -> tuple[int, int]:
        """Step and attempt that the next logical batch is charged as. RuntimeError within one."""
        if self.session is not None and self.session.open:
            raise RuntimeError(
                "a checkpoint is taken and loaded between steps: a logical batch is under way, call optimizer.step() or "
                "optimizer.zero_grad() first"
            )
        return self.sessions.at

    def let_go_of_ledger(self) -> None:
        """Closes the ledger, so that it can be read, and locked anew by the next session or process."""
        _ = self.next_step  # not within a logical batch
        self.sessions.drop()

    def resume(self, step: int, attempts: list[tuple[int, int]], *, ledger_open: bool) -> None:
        """Goes on at `step` under a new key. attempts: the steps from there on that the ledger has charged, each with the
        first attempt it may be now."""
        _ = self.next_step  # not within a logical batch
        self.sessions.drop()
        self.weights.forget()
        self.run.resume(step, attempts, ledger_open=ledger_open)

    # Forward --------------------------------------------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """A trainable layer that is called now is part of a private step."""
        return self._enabled and torch.is_grad_enabled() and not self._patches.repeating

    @property
    def session(self) -> Any:
        return self.sessions.now

    @property
    def packing(self) -> Packing | None:
        """How the last forward's batch was packed."""
        return None if self.inputs is None else self.inputs.packing

    @property
    def provenance(self) -> Any:
        """Whose rows tensors have (provenance/proof.py)."""
        return self._gate.provenance

    def begin_forward(self, given: Inputs) -> None:
        """The model's forward begins on `given`; it is a microbatch if the engine is recording."""
        self.inputs = given
        if self.recording:
            self._begin(given)
            self._gathered.record()
            self.in_forward = True
        else:
            self._gathered.compute_apart()

    def end_forward(self) -> None:
        self.in_forward = False

    def meet(self, given: Any = ()) -> None:
        """Before the model's forward, of these arguments, gathers anything: the ranks are at the same place of the run, or all of them raise."""
        if self.recording:
            self._gathered.begin_forward()
            self._gate.forward(self.sessions.at, given, anew=self.sessions.is_due)
        elif not torch.compiler.is_compiling():
            self._gate.evaluation()

    def meet_to_save(self, *, released: bool = False, together: bool = True) -> bool:
        """Before all ranks save, load or report together, or one reports alone (Gate.saving). A collective: RuntimeError on all of them if some are elsewhere."""
        return self._gate.saving(released=released, together=together)

    def _begin(self, given: Inputs) -> None:
        self._prepare()
        self.charge_skipped()
        if given.packing is None or given.units == 0:
            self.session.begin_microbatch(max(given.units, 1), of_nobody=given.units == 0)
        else:
            self.session.begin_packed(*given.packing.described())
        given.earlier = [each for each in self.forwards[-_MOST_FORWARDS:] if each.token() is not None]  # an evaluation's are gone
        self.forwards = [*given.earlier, given]

    def units_of(self, x: torch.Tensor) -> int:
        """How many units the forward at hand is over; the input x counts them if a layer is called on its own."""
        packed = bool(self.forwards) and self.forwards[-1].packing is not None
        begun = self.session is not None and self.session.units >= 0
        if not begun or not (self.in_forward or packed):
            self.inputs, self.forwards = None, []
            self._prepare()
            self.session.begin_microbatch(x.shape[0 if self.batch_first or x.dim() < 2 else 1])
        return self.session.units

    def _prepare(self) -> None:
        batches = self._gate.batches  # there are some, or RuntimeError
        if self.sessions.prepare(several=batches.more):
            batches.charges.session_is_new()

    # Backward and step ----------------------------------------------------------------------------------------------

    def backward(self, loss_per_unit: torch.Tensor) -> None:
        """The backward of a microbatch, from [units] losses: one backward of their sum, then clipping and reduction. After an error nothing of it is kept."""
        session = self.session
        if session is None or session.units < 0:
            raise RuntimeError(NO_FORWARD)
        forwards, self.forwards = self.forwards, []
        self.inputs = forwards[-1] if forwards else self.inputs  # not an evaluation's, that came since
        units = forwards[-1].units if forwards else session.units
        try:
            axes = {axis.place for each in forwards for axis in each.padding}
            before, self._doubts = self._doubts, doubts()
            opened = self.provenance.opened() | self.weights.buffers.moved_anew() | self._patches.aside.take_news() | (self._doubts > before)
            # Due until a check has passed: the signs show once, and an error may come between.
            self._look_is_due = (bool(forwards) and (self.sessions.look_is_new(loss_per_unit, forwards, axes) or opened)) or self._look_is_due
            news = _OWN_LOSS * self._patches.own_loss.pending + _LOOKS * self._look_is_due
            news = self._gate.backward(self.sessions.at, loss_per_unit, units, lambda: check_losses(loss_per_unit, units, forwards, self.ranks.data_ranks), news=news, alike=self.sessions.alike.digest())
            if news & _OWN_LOSS and self._gate.together(self.sessions.at, self._patches.compare_own_loss):
                self._patches.own_loss.settled()
        except (ValueError, RuntimeError):
            session.give_up_microbatch()
            raise
        tape, self.in_forward = session.tape, True  # activation checkpointing runs layers again, of the same microbatch
        try:
            with self._gate.watched():
                if (attribution := self.sessions.attribution) is not None:
                    repeats = [Repeat(self.model, self._patches.again, lambda: self._patches.trace, each, self.ranks.device, self._communicates, self._patches.unguarded, own_loss=self._patches.own_loss) for each in forwards]
                    self._look_is_due = True
                    self._look_is_due = not attribution(session, loss_per_unit, repeats, new=bool(news & _LOOKS))
                if not session.open:
                    self._begun_with = self.run.begin_logical_batch(session, self._gate.batches)
                loss = loss_per_unit.sum()
                loss.backward(retain_graph=session.takes_two_passes)
                if session.takes_two_passes:
                    self._begin_charge(session)
                    session.second_pass()
                    loss.backward()
        except BaseException as error:
            session.give_up_microbatch()
            self._gathered.free()
            if tape.refused_second_backward:
                raise RuntimeError(REENTRANT) from error
            raise
        finally:
            self.in_forward = False
        self._begin_charge(session)
        more = self._gate.batches.more
        with self._gate.adding(self._drop), answered(every_error=False):
            session.clip()
            self.run.note_ledger(self.ranks)
            self._gathered.end_backward(more=more)

    def _begin_charge(self, session: Any) -> None:
        """Before the session begins its logical batch: it is charged from here on, whatever becomes of it."""
        if session.open:
            return
        charges = self._gate.batches.charges
        if charges.due:
            self._charge(self._begun_with[1])
            charges.paid(self._begun_with)
        charges.begin()

    def release(self, learning_rates: float = 0.0, settings: int = 0) -> float:
        """Ends the logical batch: puts the noised mean into `.grad` of every trainable parameter. learning_rates, settings: of the optimizer, alike
        on all ranks. Returns the variance of the noise in each of its elements."""
        session = self.session
        self._gate.step(self.sessions.at, self._check_release, learning_rates, settings)
        with answered(every_error=False):
            released = session.release()
        for entry, own in zip(self.layout.parameters, released):
            entry.parameter.grad = None  # a frozen one's is of another phase of the training
            if own is not None and entry.parameter.requires_grad:
                entry.set_gradient(own)
        variance = self.run.release_variance(self._begun_with)
        self.run.adapt(session.clip_norm)
        self._gate.batches.stepped()
        return variance

    def _check_release(self) -> None:
        self._gathered.free_all()
        if self.session is None or not self.session.open:
            raise RuntimeError(
                "step() needs a backward() since the last step, of the loss that the criterion of make_private() gives (or a Hugging "
                "Face model with labels; another loss, as of torch.nn.functional, goes backward past it, and so does the one loss of a batch that a model of another kind "
                "forms itself: have it return its logits, or the losses of each example with criterion=lambda losses: losses): nothing can be released twice"
            )
        now = self.run.terms_now()
        if now != self._begun_with:
            raise RuntimeError(
                "clip norm and noise multiplier may change between logical batches, not within one: this one began "
                f"with {self._begun_with}, now they are {now}"
            )

    def charge_skipped(self) -> None:
        """Charges draws that were passed over, in the ledger too: each is a step of no examples. A collective if there are any."""
        session, batches = self.session, self._gate.batches
        while batches.skipped and session is not None:
            self.run.charge_step_of_nobody(session, batches.passed_over[0], self.ranks)
            batches.passed_over.popleft()
            batches.charges.begin()

    def pause(self) -> None:
        """A step() that a BatchMemoryManager has announced as one that only ends a part of the logical batch."""
        self._gate.batches.paused()

    def abandon(self) -> None:
        """Drops the logical batch; it stays charged. A forward before its first backward stays (`zero_grad(); loss.backward()`)."""
        if self.session is not None and (self.session.open or self.session.units < 0):
            self._drop()

    def _drop(self) -> None:
        self.session.abandon()
        self._gathered.free()
        self._gate.batches.dropped()

    @property
    def bytes_sent(self) -> int:
        """Gradient bytes this rank has sent."""
        return 0 if self.session is None else self.session.bytes_sent

    # The patched model ----------------------------------------------------------------------------------------------

    @property
    def watching(self) -> bool:
        """Whether steps are private: no longer after detach(), nor while hooks are disabled."""
        return self._enabled and not self._detached

    def enable(self, enabled: bool = True) -> None:
        if not self._enabled:
            self.weights.end_phase()
        self._enabled = enabled
        self._patches.enable(enabled)

    def detach(self) -> None:
        """Leaves the model as it was."""
        self._detached = True
        self.sessions.drop()
        self._gate.close()
        self._gathered.let_go()
        self._patches.detach()

    def __reduce__(self) -> tuple:
        return _idle_engine, ()


def _idle_engine() -> GhostEngine:
    """Of a model that was copied, or saved whole: it is not private, and its engine does nothing."""
    idle = object.__new__(GhostEngine)
    idle._enabled, idle.inputs, idle.forwards, idle.batch_first, idle.ranks = False, None, [], True, Ranks(torch.device("cpu"))
    return idle


__all__ = ["GhostEngine"]
