"""Whole numbers among a forward's arguments go to the model as copies, because some models write to them: Transformers' heads for questions clamp positions in
place, others put a first token into the ids. So autograd and the checks find what the batch held, and what was written comes to the loop's own tensor when the
forward has ended, as if the model had written to that.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from .tensor_trees import mapped, tensors_in


class HandedIn:
    """args, kwargs: as the model gets them. written: the arguments to whose copies it wrote."""

    def __init__(self, args: tuple, kwargs: dict):
        given = {} if torch.compiler.is_compiling() else {id(each): each for each in tensors_in((args, kwargs)) if _has_whole_numbers(each)}
        memories = Counter(each.untyped_storage().data_ptr() for each in given.values())
        alone = [each for each in given.values() if memories[each.untyped_storage().data_ptr()] == 1]  # who writes to one of two views writes to the other
        self._pairs = {id(each): (each, each.clone()) for each in alone}
        self.args, self.kwargs = self._mapped(args), self._mapped(kwargs)

    def _mapped(self, value: Any) -> Any:
        return mapped(lambda each: self._pairs[id(each)][1] if id(each) in self._pairs else each, value) if self._pairs else value

    def with_copies(self, of: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """These arguments and their copies."""
        return (*of, *(self._pairs[id(each)][1] for each in of if id(each) in self._pairs))

    @property
    def written(self) -> list[torch.Tensor]:
        return [value for value, copy in self._pairs.values() if copy._version and not torch.equal(value, copy)]

    def write_back(self) -> dict[int, torch.Tensor]:
        """The arguments hold what was written. What they held, by their ids."""
        held = {id(value): value.clone() for value in self.written}
        for number in held:
            value, copy = self._pairs[number]
            value.copy_(copy)
        return held


def _has_whole_numbers(value: torch.Tensor) -> bool:
    return type(value) is torch.Tensor and value.layout is torch.strided and value.numel() > 0 and not (value.is_floating_point() or value.is_complex())


__all__ = ["HandedIn"]
