"""Batches of the caller's own on several ranks: a loader that hands each rank the whole data set has every example in a step several times."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import torch.distributed as dist
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from ..lost_ranks import answered
from .items_digest import items_digest

_WHOLE = (SequentialSampler, RandomSampler, UniformWithReplacementSampler)
_SENTENCE = (
    "ranks {0} and {1} would be given the same examples: {2} goes over the whole data set on each of them. An example would be in a step once for each rank that draws it, with a part of the sum "
    "that is so many times what the noise is for. Deal the examples out, by DataLoader(…, sampler=DistributedSampler(dataset)), or leave poisson_sampling=False and own_batches out: the "
    "private loader deals them itself. If your loop takes other batches on each rank, say so by make_private(allow_vouched=True)"
)


def refuse_undealt(loader: Any) -> None:
    """ValueError for what refusing_shared() gave in a loader's place. (A loader may be there for its sizes alone, so that only who takes its batches is refused.)"""
    if said := getattr(loader, "not_dealt", ""):
        raise ValueError(said)


def _iterate(self: DataLoader) -> Iterator[Any]:
    refuse_undealt(self)
    return iter(())


def refusing_shared(loader: DataLoader, ranks: Any, *, looked_at: bool) -> DataLoader:
    """The loader, or a copy that raises ValueError when it is iterated, if two ranks that hold other data would go over the same examples. looked_at: whether
    the batches are the caller's own, without their word. A collective then."""
    if not looked_at or ranks.control is None or ranks.data_ranks == 1:
        return loader
    sampler = getattr(loader.batch_sampler, "sampler", None) or loader.batch_sampler or loader.sampler
    every: list[Any] = [None] * dist.get_world_size(ranks.control)
    with answered():
        dist.all_gather_object(every, (ranks.data_rank, items_digest(loader.dataset), _taken(sampler)), group=ranks.control)
    for (first, one), (second, other) in combinations(enumerate(every), 2):
        if one[0] != other[0] and one[1] == other[1] and _meet(one[2], other[2]):
            refusing = copy.copy(loader)
            refusing.__class__ = type(type(loader).__name__, (type(loader),), {"__iter__": _iterate, "not_dealt": _SENTENCE.format(first, second, type(sampler).__name__)})
            return refusing
    return loader


def _taken(sampler: Any) -> tuple:
    """Which indices it goes over, as far as its class says: () if that is not known."""
    if isinstance(sampler, DistributedSampler):
        return ("part", sampler.rank, (sampler.num_replicas, sampler.shuffle, sampler.seed, sampler.drop_last))
    if isinstance(sampler, SubsetRandomSampler):
        return ("some", hashlib.sha256(repr(sorted(map(int, sampler.indices))).encode()).hexdigest())
    return ("whole",) if type(sampler) in _WHOLE else ()


def _meet(one: tuple, other: tuple) -> bool:
    if not one or not other:
        return False
    if one[0] != other[0]:
        return "whole" in (one[0], other[0])
    return one[1:] == other[1:] or (one[0] == "part" and one[2] != other[2])


__all__ = ["refuse_undealt", "refusing_shared"]
