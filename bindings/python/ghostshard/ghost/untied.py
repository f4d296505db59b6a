"""Weights that were tied until their modules were sharded one by one, which makes two parameters of them without a word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .own_part import comparable, own_part

_SENTENCE = (
    "{0} and {1} have the same values and are two parameters, so they were tied, as far as can be seen, until fully_shard (or parallelize_module) took their modules one by one, as Opacus' FSDP2Wrapper does: "
    "they would train apart, and a model that ties them again when it is loaded would lose one. Shard with ghostshard's FSDP2Wrapper, which keeps ties, or give fully_shard both modules at once (fully_shard([embedding, head])). "
    "If they are meant to be two, let one of them begin with other values"
)


def refuse_untied(model: nn.Module, entries: Iterable[Any]) -> None:
    """ValueError for two sharded parameters of one shape and of equal values, of which one trains: of modules of two classes (an embedding, a head), or tied by
    name in a Transformers model. Copies of a layer, which begin alike, are of one class. entries: layout's. A collective of the ranks of such a pair, which all
    find the same."""
    of_shape: dict[torch.Size, list[Any]] = {}
    for entry in entries:
        if isinstance(entry.parameter, DTensor) and sum(extent > 1 for extent in entry.parameter.shape) > 1:  # vectors begin alike by rule
            of_shape.setdefault(entry.parameter.shape, []).append(entry)
    named = {frozenset(map(id, pair)) for pair in _tied_by_name(model)} if of_shape else set()
    for one, other in (pair for alike in of_shape.values() for pair in combinations(alike, 2)):
        parameters = one.parameter, other.parameter
        by_name = frozenset(map(id, parameters)) in named
        if any(each.requires_grad for each in parameters) and (by_name or _classes(one).isdisjoint(_classes(other))) and _equal(*parameters):
            raise ValueError(_SENTENCE.format(one.name, other.name))


def _classes(entry: Any) -> set[str]:
    return {type(slot.module).__qualname__.removeprefix("FSDP") for slot in entry.slots}


def _equal(one: DTensor, other: DTensor) -> bool:
    """On all ranks, and on one of them not all alike, as zeros of two parameters are."""
    if one.shape != other.shape or one.dtype != other.dtype or one.placements != other.placements or one.device_mesh != other.device_mesh:
        return False
    first, second = comparable(own_part(one)), comparable(own_part(other))
    known = not first.is_meta and first.numel() > 0
    tells = known and bool((first != first.flatten()[0]).any())
    found = torch.tensor([float(known and not torch.equal(first, second)), float(tells)], device=one.device_mesh.device_type)
    for dimension in range(one.device_mesh.ndim):
        dist.all_reduce(found, dist.ReduceOp.MAX, group=one.device_mesh.get_group(dimension))
    differs, tell = found.tolist()
    return tell > 0 and differs == 0


def _tied_by_name(model: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    for module in model.modules():
        names = getattr(module, "all_tied_weights_keys", None)
        parameters = dict(module.named_parameters(remove_duplicate=False)) if isinstance(names, dict) and names else {}
        yield from ((parameters[one], parameters[other]) for one, other in (names or {}).items() if one in parameters and other in parameters)


__all__ = ["refuse_untied"]
