"""How a model and its criterions are when they compute, whether they were so at a check, and whether they still are.

A check repeats forwards and calls before a backward. What is so only for the time of a forward (a flag that the loop sets back, a mode of torch's) is so
again when it is repeated; what cannot be (hooks that were removed, a function that was put back) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ... import _native
from ...loaders.names import Names
from ...loaders.set_so import Settings
from ..batch import Inputs
from .looks import Looks, Moved, moved_since

PUT_BACK = (
    "{} is another than it was in the forward of this batch, or when its loss was formed: what these compute is looked at before backward, and would be something else. Set it "
    "before the loop, or set it back after backward(). Nothing of this backward was kept"
)


@dataclass(frozen=True)
class As:
    """How a model was after a forward."""

    look: tuple
    names: int  # which functions those in its code were (loaders/names.py)
    modes: tuple  # of torch's, that were on

    @property
    def kind(self) -> tuple:
        """Of those that are checked alike."""
        return self.names, tuple(type(each) for each in self.modes)


@dataclass(frozen=True)
class Again:
    """What is otherwise when a forward is repeated, and can be as it was for that time."""

    moved: Moved
    modes: tuple

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self.moved.put_back())
            for mode in self.modes:
                stack.enter_context(mode)
            yield


class Seen:
    """Of one session."""

    def __init__(self) -> None:
        self._looks = Looks()  # with which the model was checked
        self._names, self._kinds = Names(), set[tuple]()
        self._traces, self._call_traces = (_native.load("engine").KnownTraces() for _ in range(2))
        self._criterions = Settings()
        self._criterion_was: dict[int, dict[tuple, Any]] = {}  # after its latest call
        self._latest = As((), -1, ())
        self._anew = False

    def after_forward(self, model: nn.Module, inputs: Inputs, output: Any) -> None:
        if inputs.ran is not None and inputs.ran.trace not in self._traces:
            inputs.ran.keep(output)
        self._latest = inputs.was = As(self._looks.of(model), self._names.look(model), _modes())
        self._anew = self._anew or self._latest.look not in self._looks or self._latest.kind not in self._kinds

    def after_call(self, criterion: Any) -> None:
        self._anew = self._criterions.are_new(criterion) or self._anew
        self._criterion_was[id(criterion)] = self._now(criterion)

    def _now(self, criterion: Any) -> dict[tuple, Any]:
        return {**self._criterions.now(criterion), ("modes",): _modes()}

    def take_news(self) -> bool:
        """Since it was asked last, whether a forward or a call was so as at no check."""
        anew, self._anew = self._anew, False
        return anew

    @property
    def look(self) -> tuple:
        """After the latest forward."""
        return self._latest.look

    def computes_anew(self, forwards: Sequence[Inputs], calls: Sequence[Any]) -> bool:
        """Whether some ran operations that none ran that was checked."""
        new = any(each.ran is not None and each.ran.trace not in self._traces for each in forwards)
        return new or any(each.trace not in self._call_traces for each in calls)

    def checked(self, forwards: Sequence[Inputs], calls: Sequence[Any], *, of_model: bool) -> None:
        """As it was in the latest forward. forwards, calls: those that were repeated."""
        for each in forwards:
            if each.ran is not None:
                self._traces.add(each.ran.trace)
        for each in calls:
            self._call_traces.add(each.trace)
        self._looks.add(self.look if of_model else ())
        self._kinds.add(self._latest.kind)

    @property
    def layers_alone(self) -> bool:
        """They were checked without a forward of the model's."""
        return () in self._looks

    def otherwise(self, repeats: Sequence[Any], calls: Sequence[Any]) -> str:
        """Why forwards and calls cannot be repeated as they were; "" if they can, and the inputs of each say how."""
        now = self._looks.of(repeats[-1].model) if repeats else ()
        modes = _modes()
        found = self._names.moved if repeats else ""
        for each in repeats:
            was = each.inputs.was
            moved = moved_since(was.look, now, each.model)
            each.inputs.again = Again(moved, tuple(mode for mode in was.modes if not any(mode is on for on in modes)))
            found = found or moved.name or "a function" * (was.names != self._names.number)
        for each in calls:
            was, now_set = self._criterion_was.get(id(each.criterion), {}), self._now(each.criterion)
            if not found and any(now_set.get(path, value) != value for path, value in was.items()):  # a list may have grown
                found = f"a setting, or a mode, of {getattr(each.criterion, '__name__', type(each.criterion).__name__)}"
        return PUT_BACK.format(found) if found else ""


class Ones:
    """How models were where a batch of one example was looked at, which tells less than one of several."""

    _MOST = 8  # a counter sets a model otherwise each time

    def __init__(self) -> None:
        self._looks: set[tuple] = set()
        self._traces, self._call_traces = (_native.load("engine").KnownTraces() for _ in range(2))

    def is_new(self, look: tuple, ran: Any, calls: Sequence[Any]) -> bool:
        runs = (ran is not None and ran.trace not in self._traces) or any(each.trace not in self._call_traces for each in calls)
        return runs or (look not in self._looks and len(self._looks) < self._MOST)

    def add(self, look: tuple, ran: Any, calls: Sequence[Any]) -> None:
        self._looks.add(look)
        if ran is not None:
            self._traces.add(ran.trace)
        for each in calls:
            self._call_traces.add(each.trace)


def _modes() -> tuple:
    """Of torch's, that are on."""
    return (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())


__all__ = ["PUT_BACK", "Ones", "Seen"]
