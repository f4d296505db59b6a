"""What the model's forward writes to its parameters on a private batch follows from examples, and is in the weights without clipping and noise: a layer that its first
batch initialises (ActNorm, LSUV, whitening), a norm that is divided out. So a sample of each parameter is taken when such a forward begins and when it ends. (What the loop
writes is looked at from the first step on: held_weights.py.)

Taken are bounds on all elements and rounding; no factor, which may be a batch's. PEFT takes merged adapters out of weights in a forward: weights under adapters
are compared with the last step's alone.
"""

from __future__ import annotations

import torch
from torch import nn

from ..layout import Layout
from ..own_part import comparable, own_part
from .compared import post_processed, same
from .merged_adapters import has_adapters
from .samples import Views

_ELEMENTS = 64  # of a parameter that are looked at, up to twice as many
_MOST = 16  # forwards that are compared together, later, because comparing is a wait for a device

_REFUSAL = (
    "parameter {!r} was written to by the model's own forward on a private batch (as a layer does that its first batch initialises: ActNorm, LSUV): what it wrote follows "
    "from examples, without clipping and noise. Nothing of this was applied. Initialise it by public data or coins before make_private(), or let the forward compute with what it "
    "needs of an example and write to no parameter. If nothing that it wrote follows from examples, say so with make_private(allow_vouched=True), which the report states"
)


class ForwardWrites:
    """Of this rank's part of the parameters of `layout`."""

    def __init__(self, layout: Layout, model: nn.Module):
        self._layout, self._model = layout, model
        self._begun: torch.Tensor | None = None
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []  # before and after
        self._views = Views(_some_of)
        self._wrong = ""

    def forget(self) -> None:
        """The weights were replaced."""
        self._begun, self._wrong = None, ""
        self._pending.clear()

    def begin(self) -> None:
        self._begun = self._sample()

    def end(self) -> None:
        if self._begun is None:
            return
        self._pending.append((self._begun, self._sample()))
        self._begun = None
        if len(self._pending) >= _MOST:
            self.found()

    def found(self) -> str:
        """What refuses the weights since, or ""."""
        if self._pending and not torch.equal(*(torch.cat(each) for each in zip(*self._pending))):  # one wait for a device
            for before, after in self._pending:
                if not self._wrong and not torch.equal(before, after):
                    self._wrong = self._compared(before, after)
        self._pending.clear()
        return self._wrong

    def _compared(self, before: torch.Tensor, after: torch.Tensor) -> str:
        own = self._own()
        counts = [len(each) for each in own]
        for entry, values, one, two in zip(self._layout.parameters, own, after.split(counts), before.split(counts), strict=True):
            one = one.to(values.dtype)
            if not (same(one, two) or post_processed(one, two, factor=False) or has_adapters(self._model, entry.parameter)):
                return _REFUSAL.format(entry.name)
        return ""

    @torch.no_grad()
    def _sample(self) -> torch.Tensor:
        found = [comparable(each) for each in self._own()]
        return torch.cat([each.cpu() for each in found] if len({each.device for each in found}) > 1 else found)

    def _own(self) -> list[torch.Tensor]:
        """Some elements of each, always at the same places."""
        return [view for _, view in self._views.of(enumerate(own_part(entry.parameter) for entry in self._layout.parameters))]


def _some_of(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[:: max(1, value.numel() // _ELEMENTS)]


__all__ = ["ForwardWrites"]
