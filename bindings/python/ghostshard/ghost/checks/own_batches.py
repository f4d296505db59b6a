"""Batches that a program makes itself, with the private loader or without one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..provenance import NoProvenance, may_train
from .charges import EachDraw
from .presence import Presence


class OwnBatches:
    """Batches of the caller's own, each step charged as if it held every example. That it holds none twice is the caller's word,
    so more than `backwards` backwards to a step are refused, unless a BatchMemoryManager cuts a batch. A table that is an argument looks
    like a batch, so whether inputs_may_train is the caller's word, too."""

    broken = ""
    units = places = skipped = turn = 0
    charges = EachDraw()

    def __init__(self, backwards: int = 1, *, inputs_may_train: bool = False, announced: Callable[[], bool] = lambda: False):
        """announced() says whether the next step() only ends a part of the logical batch."""
        self.provenance = NoProvenance()
        self._announced = announced
        self._inputs_may_train = inputs_may_train
        self._backwards = backwards
        self._done = 0
        self._allowed = backwards

    @property
    def place(self) -> tuple[int, int, int, int, int]:
        return 0, 0, 0, 0, self._done

    def report_to(self, presence: Presence) -> None:
        pass

    def check_forward(self) -> None:
        pass

    def check_backward(self, losses: torch.Tensor, units: int) -> None:
        if self._done >= self._allowed:
            raise RuntimeError(
                f"backward number {self._done + 1} in one step: an example in two of them would count twice under one noise. "
                "Add up all losses of a batch and go backward once. If the backwards of a step are over different examples, "
                "say how many there are with make_private(own_batches=True, accumulation_steps=k), or use a BatchMemoryManager"
            )

    def may_train(self, losses: torch.Tensor, leaf: torch.Tensor) -> bool:
        return self._inputs_may_train and may_train(losses, leaf)

    def met_together(self, units: int) -> None:
        pass

    def will_refuse(self, why: str) -> None:
        pass

    def went_backward(self) -> None:
        self._done += 1

    @property
    def more(self) -> bool:
        return self._done + 1 < self._backwards or self._announced()

    def check_step(self) -> None:
        pass

    def stepped(self) -> None:
        self._done, self._allowed = 0, self._backwards

    def paused(self) -> None:
        self._allowed = self._done + 1

    dropped = stepped

    def end(self) -> None:
        pass


__all__ = ["OwnBatches"]
