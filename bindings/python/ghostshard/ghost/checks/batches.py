"""Which batches a private step may be made of: those of one draw of the private loader, each once.

The charge of a step is that of one Poisson draw. It is too small if a step is made of several draws, of a draw that another
step was made of, or of batches that nobody drew; and the clip norm bounds a part of an example if one example is several
units, or goes backward twice. Nothing of this shows in a plain tensor. So the loader says which batch it hands out
(loaders/stamps.py), its tensors know whose their rows are (ghost/provenance), and every backward and every step is asked whether it fits.
"""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import replace
from typing import Any, Protocol

import torch

from ..provenance import NoProvenance, Provenance, may_train
from ..tensor_trees import tensors_in
from ..uncompiled import Held
from .charges import Charges, EachDraw
from .own_batches import OwnBatches
from .passed_over import PassedOver
from .presence import Presence

OWN = (
    "Insist on batches of your own with make_private(own_batches=True): each step is then charged as if it held every example"
)


class Batches(Protocol):
    @property
    def place(self) -> tuple[int, int, int, int, int]:
        """A digest of items at the beginning of this pass, passes over the loader, draws begun, batches of this one handed out and gone backward: the same on all ranks."""
        ...

    def report_to(self, presence: Presence) -> None:
        """Whether this rank is in a pass over the loader is told to it from here on."""
        ...

    broken: str  # why the run cannot go on, raised where all ranks learn of it
    units: int  # that were drawn, of the step at hand
    places: int  # that these have together, padding too: of tokens
    skipped: int  # draws that must still be charged as steps of no examples
    turn: int  # of the draw at hand, if groups take turns (loaders/cyclic.py)
    provenance: Provenance | NoProvenance
    charges: Charges

    def may_train(self, losses: torch.Tensor, leaf: torch.Tensor) -> bool:
        """Whether a leaf that is no parameter is the batch's own, and may get a gradient, of which nothing is clipped or noised."""
        ...

    def check_forward(self) -> None:
        """RuntimeError if the run cannot go on."""
        ...

    def check_backward(self, losses: torch.Tensor, units: int) -> None:
        """ValueError or RuntimeError unless a backward of these [units] losses may come now."""
        ...

    def met_together(self, units: int) -> None:
        """A backward is to come, of so many units on all ranks together; 0: of one rank alone."""
        ...

    def will_refuse(self, why: str) -> None:
        """The next event is refused, where all ranks learn of it, unless the user vouched for it."""
        ...

    def went_backward(self) -> None: ...

    @property
    def more(self) -> bool:
        """Whether another batch of the same step is to follow the one at hand, as far as it is known."""
        ...

    def check_step(self) -> None:
        """RuntimeError if the draw has batches that have not gone backward."""
        ...

    def stepped(self) -> None: ...

    def paused(self) -> None:
        """A BatchMemoryManager has announced that this step() only ends a part of the logical batch."""
        ...

    def dropped(self) -> None:
        """The logical batch was given up."""
        ...

    def end(self) -> None:
        """No step comes any more: the model was taken back."""
        ...


class DrawnBatches:
    """Batches of the private loader; the receiver of its stamps. One draw at a time: each is stepped, or charged all the same.

    charge: called for each draw that was handed out and will not be trained on, unless its pass is charged already; gives the terms
    that it charged. sampler: whose settings stay what they are now.
    """

    def __init__(
        self, charge: Any, *, sampler: Any = None, allow_vouched: bool = False, batch_first: bool = True, charges: Charges | None = None
    ):
        self._charge = charge
        self.charges = EachDraw() if charges is None else charges
        self._sampler, self._settings = sampler, _settings_of(sampler)
        self.provenance = Provenance(allow_vouched=allow_vouched, batch_first=batch_first)
        self._allow_vouched = allow_vouched
        self.passed_over: deque[int] = deque()  # the turns of draws that must still be charged as steps of no examples
        self.turn = 0
        self._draw: tuple[int, int] | None = None
        self._waiting: deque = deque()  # pieces that were handed out and have not gone backward
        self._count = self._done = self._passes = self._draws = self._units = self.places = 0
        self._presence: Presence | None = None
        self._fate = ""  # of the draw: "" while steps may be made of it
        self._warned = False
        self._skips = PassedOver()
        self.broken = ""  # why the run cannot go on
        self._ended = False
        self._uncompiled = Held()  # from a batch to its step, wherever its loop is left: what is made of it is followed

    @property
    def place(self) -> tuple[int, int, int, int, int]:
        items = 0 if self._draw is None else getattr(getattr(self._sampler, "stamps", None), "items", 0)
        return items, self._passes, self._draws, self._done + len(self._waiting), self._done

    def report_to(self, presence: Presence) -> None:
        self._presence = presence

    @property
    def units(self) -> int:
        return self._units

    @property
    def skipped(self) -> int:
        return len(self.passed_over)

    # The loader's side ----------------------------------------------------------------------------------------------

    def hand_out(self, piece: Any, batch: Any) -> Any:
        if self._ended:
            return batch
        if _settings_of(self._sampler) != self._settings:  # raised where the other ranks learn of it too
            self.broken = (
                f"the private loader's sampler was changed, from {self._settings} to {_settings_of(self._sampler)}, but each step is charged as "
                "make_private() found it. Build another loader, and call make_private() of a new run"
            )
        if piece.draw != self._draw:
            self._finish(piece.draw)
            self.charges.hand_out(piece.draw[0])
            self._passes += self._draw is None or piece.draw[0] != self._draw[0]
            self._draw, self._count, self._fate, self.turn = piece.draw, piece.count, "", piece.turn
            self._waiting.clear()
            self.provenance.forget()
            self._skips.begin(piece.draw[0])
            self._draws, self._done, self._units, self.places = self._draws + 1, 0, 0, 0
        self._uncompiled.take()
        self._units += piece.units
        self.places += max((each.shape[0] * each.shape[1] for each in tensors_in(batch) if each.dim() > 1), default=piece.units)
        if self._presence is not None:
            self._presence.took(self._passes)
        piece = replace(piece, constants=self.provenance.constants)
        self._waiting.append(piece)
        return self.provenance.hand_out(piece, batch)

    def left(self, number: int) -> None:
        if self._presence is not None and self._draw is not None and number == self._draw[0] and not self._ended:
            self._presence.left()

    def end_of_pass(self) -> None:
        if self._presence is not None:
            self._presence.ended()
        if self._draw is not None and not self._fate and self._done == 0 and not self._ended:
            self._finish(self._draw)

    def _finish(self, following: tuple[int, int]) -> None:
        """The draw before `following` gets no further chance."""
        if self._draw is None or self._fate or self.charges.over(self._draw[0]):
            return
        if self._done:
            raise RuntimeError(
                "a step is made of one draw of the private loader, but the next draw was asked for before optimizer.step(): an "
                "example would be in the step more often than epsilon counts. Call step() after every draw. For larger "
                "batches give the loader a larger batch_size; to save memory pass accumulation_steps=k to make_private(), so "
                "that the loader cuts each draw into k batches, or use a BatchMemoryManager. To skip this draw call "
                "optimizer.zero_grad(): it stays charged"
            )
        self._fate = "it was passed over and charged as a step of no examples"
        if self.charges.due:
            self.passed_over.append(self.turn)
            self.charges.paid(self._charge())
        if self._units == 0 and following[0] == self._draw[0]:
            # Raised by the next forward or backward, where the other ranks learn of it too.
            self.broken = (
                "a draw of the private loader had no example, and no step was made of it. An empty batch is a step like any "
                "other: whether a step is taken tells who was drawn, which no epsilon covers. Take `if len(x) == 0: continue` "
                "out of the loop"
            )
            return
        self._passed_over()
        if not self._warned and not self.broken:
            self._warned = True
            warnings.warn(
                "a batch of the private loader was passed over. Its draw is charged like the others, but epsilon holds only if "
                "the choice did not depend on the data",
                stacklevel=4,
            )

    def _passed_over(self) -> None:
        self.will_refuse(self._skips.passed(self._units, self.provenance.constants.read if self.provenance.constants is not None else ""))

    def will_refuse(self, why: str) -> None:
        if not self._allow_vouched:
            self.broken = self.broken or why

    # The loop's side ------------------------------------------------------------------------------------------------

    def check_forward(self) -> None:
        if self.broken:
            raise RuntimeError(self.broken)

    def check_backward(self, losses: torch.Tensor, units: int) -> None:
        self.check_forward()
        if not self._waiting:
            raise RuntimeError(self._why_not())
        if fate := self._fate or self.charges.over(self._draw[0] if self._draw else 0):
            raise RuntimeError(f"this batch's draw can have no step any more: {fate}. Go on with the next draw")
        drawn = self._waiting[0].units
        if units != drawn:
            raise ValueError(
                f"this backward is over {units} units, but the private loader's batch has {drawn} examples: each example must "
                "be one unit, and each batch goes backward whole. Several rows of one example (crops, turns, "
                "x.view(-1, d)) stay together in [examples, rows, ...], or units=[rows] in the model's call says whose each "
                f"row is. A collate_fn drops no examples: leave those that it cannot use out of the data set (torch.utils.data.Subset). To cut batches use accumulation_steps= or a BatchMemoryManager. If this is no batch of that loader: "
                f"{OWN}"
            )
        self.provenance.check(losses, self._waiting[0])

    def may_train(self, losses: torch.Tensor, leaf: torch.Tensor) -> bool:
        return may_train(losses, leaf, self._waiting[0], vouched=self._allow_vouched)

    def _why_not(self) -> str:
        if self._draw is None:
            return (
                "no batch of the private loader is under way. Train on the loader that make_private() returned: it draws as "
                "epsilon assumes. (Hugging Face's Trainer makes a loader of its own: docs/python.md has a subclass that does "
                f"not. Accelerate's prepare() must not have the private loader.) {OWN}"
            )
        if self._fate:
            return (
                f"a step is made of one draw of the private loader, once: {self._fate}, and no other batch was handed out "
                f"since. Take the next batch from the loader, one at a time. {OWN}"
            )
        return (
            "the private loader's batch has gone backward already: its examples would count twice under one noise. Add up all "
            "losses of a batch and go backward once. (An optimizer that needs a second gradient of the batch at other weights, such as SAM, would need a second "
            f"release of it: take one that steps by one gradient.) {OWN}"
        )

    def met_together(self, units: int) -> None:
        if self.provenance.constants is not None:
            self.will_refuse(self.provenance.constants.went_with(units))

    def went_backward(self) -> None:
        self._waiting.popleft()
        self._done += 1

    @property
    def more(self) -> bool:
        return self._done + 1 < self._count

    def check_step(self) -> None:
        if self._done < self._count:
            raise RuntimeError(
                f"step() after {self._done} of the {self._count} batches that this draw comes in: a step is made of the whole "
                "draw. Call step() after the last of them"
            )

    def stepped(self) -> None:
        self._uncompiled.let_go()
        self._fate = "the last draw has had its step"
        self.will_refuse(self._skips.stepped(self._units))

    def paused(self) -> None:
        pass

    def dropped(self) -> None:
        if self._done and not self._fate:
            self._fate = "its logical batch was dropped, and stays charged"
            self._passed_over()

    def end(self) -> None:
        self._uncompiled.let_go()
        self._ended = True


def _settings_of(sampler: Any) -> dict[str, Any]:
    """Those that epsilon follows from."""
    names = ("sample_rate", "num_samples", "rank", "world_size", "max_batch_size", "bins", "groups")
    return {name: getattr(sampler, name) for name in names if hasattr(sampler, name)}


__all__ = ["OWN", "Batches", "DrawnBatches", "OwnBatches"]
