"""What a forward may move beside its output: generators and buffers. Forwards of a check leave both as they were."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn


class State:
    """The states at construction of Python's, NumPy's and torch's generators (the host's and the device's own), and of the
    model's buffers."""

    def __init__(self, model: nn.Module, device: torch.device):
        self._model, self._device = model, device
        self._python, self._numpy, self._host = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        self._buffers = [
            (module, name, buffer, buffer.clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def now(self) -> State:
        return State(self._model, self._device)

    def again(self) -> None:
        """Goes back to the states at construction: the next draws repeat all draws since."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        if self._own is not None:
            torch.get_device_module(self._device).set_rng_state(self._own, self._device)
        for module, name, buffer, before in self._buffers:
            module._buffers[name] = buffer
            if not torch.equal(buffer, before):  # the graph may hold one that did not change, as it is
                with torch.no_grad():
                    buffer.copy_(before)


__all__ = ["State"]
