"""What tells whether two ranks, or two passes, have the same items in the same order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .coins import Coins
from .fetched import item_of

SAMPLED_ITEMS = 16


def items_digest(dataset: Any) -> str:
    """Of the length and up to 16 items at public places, first and last among them. Generators are as before afterwards.

    Items whose content cannot be read (types of one's own), or comes out otherwise a second time from the same random numbers, count by
    their type alone: an augmentation with a generator of its own is no difference. A difference of few items may lie between the
    places; another data set of the same length does not.
    """
    count = len(dataset)
    places = sorted({round(i * (count - 1) / (SAMPLED_ITEMS - 1)) for i in range(SAMPLED_ITEMS)}) if count else []
    before = Coins()
    try:
        passes = []
        for _ in range(2):
            random.seed(0)
            np.random.seed(0)
            torch.default_generator.manual_seed(0)  # the host's, as `before` is
            passes.append([content_digest(item_of(dataset, place)) for place in places])
    finally:
        before.again()
    same = [one if one == two else "differs" for one, two in zip(*passes, strict=True)]
    return f"{count} items, {hashlib.sha256('|'.join(same).encode()).hexdigest()}"


def content_digest(item: Any) -> str:
    parts = hashlib.sha256()
    _feed(item, parts)
    return parts.hexdigest()


def _feed(item: Any, into: Any) -> None:
    into.update(f"{type(item).__name__}(".encode())
    if isinstance(item, torch.Tensor):
        plain = item.detach().cpu().contiguous()
        into.update(f"{plain.dtype} {tuple(plain.shape)} ".encode())
        into.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(item, np.ndarray | np.generic) and item.dtype != object:
        into.update(f"{item.dtype} {item.shape} ".encode() + item.tobytes())
    elif isinstance(item, bytes):
        into.update(item)
    elif isinstance(item, str | int | float | complex | bool | None):
        into.update(repr(item).encode())
    elif isinstance(item, Mapping):
        for key in item:
            _feed(key, into)
            _feed(item[key], into)
    elif isinstance(item, list | tuple):
        for each in item:
            _feed(each, into)
    into.update(b")")


__all__ = ["content_digest", "items_digest"]
