"""The keys that generators of the program's own gave to the coins and the noise of an engine's runs."""

from __future__ import annotations

import collections
import hashlib
import secrets

import torch


class GivenKeys:
    """A key stands for fresh randomness, which epsilon counts on. A generator that is seeded again, or another one of the same seed, gives
    the same words: all runs of an engine share this object, and none of them gets a key that one had before."""

    def __init__(self) -> None:
        self._times: collections.Counter[bytes] = collections.Counter()
        self._set_apart = b""

    def set_apart(self) -> None:
        """From here on the same generators give other keys than ever before: a checkpoint's process had keys too, of all runs of its engine, and which nobody knows."""
        self._set_apart = secrets.token_bytes(32)

    def fresh(self, key: bytes) -> bytes:
        """The key itself, or one that follows from it and from how often it was given before."""
        key = hashlib.sha256(key + self._set_apart).digest() if self._set_apart else key
        times = self._times[key]
        self._times[key] += 1
        return hashlib.sha256(key + times.to_bytes(8, "little")).digest() if times else key


def bytes_of(generator: torch.Generator) -> bytes:
    """The next 32 of the generator's."""
    drawn = torch.randint(0, 256, (32,), dtype=torch.uint8, generator=generator, device=generator.device)
    return bytes(drawn.tolist())


__all__ = ["GivenKeys", "bytes_of"]
