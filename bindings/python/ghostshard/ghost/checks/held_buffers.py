"""Buffers of the model are weights that nobody trains: what a loop writes to them between two forwards (a mean of the batch, a centre) would be in all
outputs that follow, and is saved with the weights, without noise. What the model's own forward writes is looked at elsewhere (values.py).

As of the weights (held_weights.py) a sample is kept after every forward and compared before the next. Taken are values that are all
alike (a temperature that is annealed) and those of an earlier forward of this run. Integers are counters and places.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from ..own_part import own_part
from ..provenance import Drawn
from ..provenance.drawn import version_of
from .compared import same
from .samples import Samples, Views, side_by_side

_REFUSAL = (
    "buffer {!r} is not what the last forward left: {}, and nothing tells whether what was written had read private data without noise. "
    "Nothing of this was applied. Put it back before the next forward (after an evaluation with others), let it follow from public data before the first backward, "
    "or load a checkpoint with load_checkpoint(). If all that was written are released values and public numbers, say so with make_private(allow_vouched=True), "
    "which the report states"
)

_SMALL = 1 << 16  # elements
_MOST = 64  # forwards whose digests are taken together, later, because that is a wait for a device

Before = dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]  # (id of the module, name) -> the buffer, and a copy of what it held


class HeldBuffers:
    def __init__(self, model: nn.Module):
        self._model = model
        self.before: Before = {}  # of the last forward that was recorded: all in the first one, small ones in others
        self._versions: dict[tuple[int, str], int] = {}  # of those, then: what was not written to needs no wait for a device
        self._kept: Samples | None = None
        self._earlier: set[bytes] = set()  # digests
        self._undigested: list[Samples] = []  # earlier ones too
        self._moving: set[tuple[int, str]] = set()  # what forwards write to
        self._moved_anew = False
        self._wrong = ""
        self._views = Views(side_by_side)

    def forget(self) -> None:
        self._kept, self._wrong = None, ""

    def begin_forward(self) -> None:
        """One that is recorded."""
        self.before = {
            (id(module), name): (buffer, buffer.detach().clone())
            for module in self._model.modules() for name, buffer in module._buffers.items()
            if buffer is not None and buffer.device.type != "meta" and (self._kept is None or buffer.numel() <= _SMALL)
        }  # fmt: skip
        self._versions = {place: version_of(buffer) for place, (buffer, _) in self.before.items()}
        for name, buffer in self._model.named_buffers():
            if isinstance(buffer, Drawn) and buffer.origin.memory.wrong:
                self._wrong = _REFUSAL.format(name, "values of a private batch were written to it")
        if not self._wrong:
            self._wrong = self._replaced("it was replaced or changed (load_state_dict, copy_, an assignment)")

    def end_forward(self) -> None:
        after = {(id(module), name): buffer for module in self._model.modules() for name, buffer in module._buffers.items() if buffer is not None}
        written = {place for place, (buffer, _) in self.before.items() if place in after and (after[place] is not buffer or version_of(buffer) != self._versions[place])}
        moved = {place for place in written if (held := self.before[place][1]).is_floating_point() and not same(after[place].detach(), held)}
        self._moved_anew = self._moved_anew or not moved <= self._moving
        self._moving |= moved
        now = self._sampled()
        if not now.empty:
            self._kept = now
            self._undigested.append(now)
        if len(self._undigested) >= _MOST:
            self._digest()

    def moved_anew(self) -> bool:
        """Since it was asked last: a forward wrote to a buffer that none had written to."""
        found, self._moved_anew = self._moved_anew, False
        return found

    def look_on(self) -> Samples:
        """Before a forward on a private batch that is not recorded, for looked_on()."""
        return self._sampled()

    def looked_on(self, before: Samples) -> None:
        """After it: what it wrote to buffers follows from examples."""
        after = self._sampled()
        if after.same_as(before):
            return
        values = before.of_each()
        for name, now in after.of_each().items():
            then = values.get(name)
            if then is not None and now.is_floating_point() and then.shape == now.shape and not same(now, then):
                self._wrong = self._wrong or _REFUSAL.format(name, "a forward on a private batch that is no private step's wrote to it")

    def changed_since(self) -> str:
        """What refuses the buffers as they are after the last forward that was recorded, or ""."""
        return self._wrong or self._replaced("it was replaced or changed after that")

    def _replaced(self, how: str) -> str:
        """What refuses buffers that are none of those that forwards left."""
        kept = self._kept
        if kept is None:
            return ""
        now = self._sampled()
        if now.same_as(kept):
            return ""
        before = kept.of_each()
        name = next((name for name, value in now.of_each().items() if not (name in before and same(value, before[name])) and not _all_alike(value)), None)
        if name is None:
            return ""
        self._digest()
        return "" if now.digest() in self._earlier else _REFUSAL.format(name, how)

    def changed(self) -> str:
        """What refuses the buffers that the last forward had, or ""."""
        wrong, self._wrong = self._wrong, ""
        return wrong

    def _digest(self) -> None:
        self._earlier |= {each.digest() for each in self._undigested}
        self._undigested.clear()

    def _sampled(self) -> Samples:
        return Samples(self._views.of(self._named()))

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, own_part(buffer)) for name, buffer in self._model.named_buffers() if buffer.device.type != "meta")


def _all_alike(value: torch.Tensor) -> bool:
    return value.numel() == 0 or bool((value == value[:1]).all())


__all__ = ["HeldBuffers"]
