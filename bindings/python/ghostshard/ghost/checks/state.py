"""What a forward may move beside its output: generators and buffers. Forwards of a check leave both as they were."""

from __future__ import annotations

import random
from typing import Any

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

    def held(self) -> list[torch.Tensor]:
        """Copies of the buffers as they are now."""
        return [module._buffers[name].detach().clone() for module, name, _, _ in self._buffers if module._buffers.get(name) is not None]

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


def copied(value: Any) -> Any:
    """Numbers and tensors in lists, which may be written to."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return [copied(each) for each in value] if isinstance(value, list) else value


def alike(one: Any, two: Any) -> bool:
    """The same numbers and tensors, in the same places."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        close = one.is_floating_point() and one.shape == two.shape
        return torch.allclose(one, two, rtol=1e-4, atol=1e-6, equal_nan=True) if close else torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(alike(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(alike, one, two))
    same_number = isinstance(one, float) and isinstance(two, float) and abs(one - two) <= 1e-4 * abs(one)
    return type(one) is type(two) and (same_number or one == two or not isinstance(one, (int, float)))


__all__ = ["State", "alike", "copied"]
