"""The generators that a data set or a collate_fn may toss."""

from __future__ import annotations

import random

import numpy as np
import torch


class Coins:
    """Their states at construction."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def tossed(self) -> bool:
        """Whether one of them is in another state now."""
        now = Coins()
        numpy_same = all(np.array_equal(one, two) for one, two in zip(now._numpy, self._numpy))
        return not (numpy_same and now._python == self._python and torch.equal(now._torch, self._torch))

    def again(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)


__all__ = ["Coins"]
