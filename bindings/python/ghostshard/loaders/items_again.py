"""Data sets that are set otherwise within a pass: mixing that a loop switches on later (`dataset.mixup = True`), hard examples that it takes several times (`subset.indices = …`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from .items import refuse_mixed_or_repeated, sources
from .items_digest import items_digest
from .set_so import Settings
from .units import refuse_repeated
from .within import within

_DEPTH, _ENTRIES = 3, 64  # of objects within each other, and of a dict
_MOST, _MOST_READ = 32, 512  # looks, and values of each
_WHOLE, _SAMPLED = 1024, 64  # values of a list that are compared, and of a longer one

_MOVED = (
    "the data set's items are not what they were when this pass began, or stand in another order, but by this sampling an index is drawn in one step of the pass, or in every so many steps: "
    "an example that goes over to another index would be drawn more often than epsilon counts. Change the data set between passes (with noise_bands or noise_chain not at all), or take "
    "Poisson sampling without them"
)


class ItemsAgain:
    """Looks at the items again when their data set is not set as it was when they were looked at. In each process that makes items."""

    def __init__(self, dataset: Any):
        self._dataset = dataset
        self._stay: str | None = None
        self._settings = self._in_pass = self._as_it_is()
        self._chosen = self._indices()

    def begin_pass(self, *, stay: str | None) -> None:
        """stay: the items' digest, if an index is one example through the pass, as each is drawn in one step of it, or in every so many steps."""
        self._stay = stay
        if stay is not None:
            self._in_pass = self._as_it_is()  # what it was set to in a pass before is no answer here

    def __call__(self) -> None:
        """Whenever a batch of its items was made. ValueError if items follow from others, are others' copies, or stand in another order where they must stay."""
        if self._stay is not None and self._in_pass.are_new(self._dataset) and items_digest(self._dataset) != self._stay:
            raise ValueError(_MOVED)
        before, self._chosen = self._chosen, self._indices()
        if (new := self._settings.are_new(self._dataset)) or self._chosen != before:
            refuse_repeated(self._dataset)  # at every choice, as a loop may choose anew all the time, and no item is read for it
        if new:
            refuse_mixed_or_repeated(self._dataset)

    def _indices(self) -> list[Any]:
        """Of torch's own choices among data sets."""
        return [_number_of(each.indices) for each in sources(self._dataset) if isinstance(each, Subset) and isinstance(each.indices, (list, tuple, torch.Tensor, np.ndarray))]

    def _as_it_is(self) -> Settings:
        settings = Settings(_settings_of, most=_MOST, frugal=True)
        settings.are_new(self._dataset)
        return settings


def _settings_of(dataset: Any) -> Iterator[tuple[tuple, Any]]:
    of_all = (_set_to(each, (number,), _DEPTH) for number, each in enumerate(sources(dataset)))
    return itertools.islice(itertools.chain.from_iterable(of_all), _MOST_READ)


def _set_to(value: Any, path: tuple, depth: int) -> Iterator[tuple[tuple, Any]]:
    """What `value` holds, by its path: a plain value, or a number for many."""
    if value is None or isinstance(value, (bool, int, float, str)):
        yield path, value
    elif isinstance(value, (list, tuple, torch.Tensor, np.ndarray)):
        yield path, _number_of(value)
    elif isinstance(value, Mapping) and not isinstance(value, dict):
        return  # an open file, perhaps, whose entries are read when they are asked for
    elif depth and isinstance(value, dict):  # one number, as it may be what was made of the items so far
        yield path, hash((len(value), *(found for name, each in itertools.islice(value.items(), _ENTRIES) for found in _set_to(each, (str(name),), depth - 1))))
    elif depth and not (len(path) > 1 and isinstance(value, Dataset)):
        for name, each in within(value):
            yield from _set_to(each, (*path, name), depth - 1)


def _number_of(values: Any) -> int:
    """Another one if other values stand there; of a tensor also if it was written to."""
    if isinstance(values, torch.Tensor):
        return hash((id(values), 0 if values.is_inference() else values._version, tuple(values.shape)))
    if isinstance(values, np.ndarray):
        flat = values.reshape(-1) if values.flags.c_contiguous else values.flat
        few = flat if values.size <= _WHOLE else flat[np.linspace(0, values.size - 1, _SAMPLED).astype(np.int64)]
        return hash((values.shape, np.asarray(few).tobytes() if values.dtype != object else id(values)))
    if len(values) <= _ENTRIES:
        values = [_number_of(each) if isinstance(each, (torch.Tensor, np.ndarray)) else each for each in values]
    few = values if len(values) <= _WHOLE else [values[i] for i in range(0, len(values), len(values) // _SAMPLED)]
    try:
        return hash((len(values), *few))
    except TypeError:  # lists of lists, for example
        return hash((len(values), *map(type, few)))


__all__ = ["ItemsAgain"]
