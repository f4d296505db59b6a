"""What all ranks of a run must have alike, compared before it begins (the C++ program's: dp/run/agreement.h).

Each rank is a process of its own with arguments and data of its own. If they differ, each still runs, and the ledger, which rank 0
writes, tells of rank 0 alone: noise too small on the others' slices, an example that counts on two ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ...code_id import code_id
from ...loaders.items_digest import content_digest
from ...lost_ranks import answered
from ..layout import Layout, original_class

Result = TypeVar("Result")
Parts = Mapping[str, str]  # name as a sentence gives it: value, or a digest


_RULE = "all ranks must call make_private() with the same arguments, model and whole data set (the private loader deals it out)"


def together(control: Any, make: Callable[[], tuple[Result, Callable[[], Parts]]], rule: str = _RULE) -> Result:
    """What make() gives beside a function for this rank's parts. ValueError with one sentence, which begins with the rule, on all ranks if the parts differ; if
    make() raises on a rank, all raise. A collective over `control`, the group of all ranks; None for one alone, which has nothing to compare."""
    if control is None:
        return make()[0]
    made: Any = None
    parts: Parts = {}
    wrong: Exception | None = None
    try:
        made, described = make()
        parts = described()
    except Exception as error:  # of whatever kind: the other ranks wait for this one's parts
        wrong = error
    every: list[Any] = [None] * dist.get_world_size(control)
    with answered():
        dist.all_gather_object(every, (None if wrong is None else str(wrong), dict(parts)), group=control)
    if wrong is not None:
        raise wrong
    for rank, (said, _) in enumerate(every):
        if said is not None:
            raise ValueError(f"rank {rank} refused this: {said}")
    _refuse_differences([others for _, others in every], rule)
    return made


def parts_of(
    model: nn.Module, layout: Layout, criterion: Any, optimizer: Any, arguments: Mapping[str, object]
) -> dict[str, str]:
    """arguments: of make_private(), numbers and words. What binds the model is its structure: under FSDP2 each rank has rows of its own."""
    structure = [(name, original_class(module).__qualname__) for name, module in model.named_modules()]
    parameters = [
        (entry.name, tuple(entry.parameter.shape), str(entry.parameter.dtype), entry.parameter.requires_grad)
        for entry in layout.parameters
    ]
    return {
        "the library": code_id(),
        **{name: repr(value) for name, value in arguments.items()},
        "the model's layers": _hash(repr(structure).encode()),
        "the model's parameters": _hash(repr(parameters).encode()),
        "the criterion": f"{type(criterion).__qualname__} {content_digest(dict(getattr(criterion, '__dict__', {})))}",
        "the optimizer": type(optimizer).__qualname__,
        "the optimizer's settings": repr(_settings_of(optimizer)),
        "the optimizer's parameters": repr(_members_of(optimizer, layout)),
    }


def digest_of_settings(optimizer: Any, engine: Any) -> int:
    """For ranks to compare before each step: 60 bits of what the optimizer's groups hold, and of which parameters. 0 for one rank alone."""
    if engine.ranks.control is None:
        return 0
    return int(_hash(repr((_settings_of(optimizer), _members_of(optimizer, engine.layout))).encode())[:15], 16)


def digest_of_modes(model: nn.Module) -> int:
    """Likewise of which modules are in training mode: after an evaluation by one rank alone it would train without dropout."""
    return int(_hash(bytes(module.training for module in model.modules()))[:15], 16)


def _settings_of(optimizer: Any) -> list[dict[str, Any]]:
    """Of each group, plain values alone: the replicas of a model would come apart if they differed, and the parts of a sharded one be trained by different rules."""
    plain = (bool, int, float, str, tuple, type(None))
    found = []
    for group in optimizer.param_groups:
        numbers = {name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value for name, value in group.items()}
        found.append({name: numbers[name] for name in sorted(numbers) if isinstance(numbers[name], plain)})
    return found


def _members_of(optimizer: Any, layout: Layout) -> list[list[int]]:
    """The numbers of each group's parameters in the layout, -1 for a stranger. Their order counts: states go by it, and what optimizers send each other."""
    numbers = {id(entry.parameter): number for number, entry in enumerate(layout.parameters)}
    return [[numbers.get(id(parameter), -1) for parameter in group["params"]] for group in optimizer.param_groups]


def _refuse_differences(every: Sequence[Mapping[str, str]], rule: str) -> None:
    first = every[0]
    names = list(dict.fromkeys(name for parts in every for name in parts))
    found = []
    for name in names:
        others = [str(rank) for rank, parts in enumerate(every) if parts.get(name) != first.get(name)]
        if others:
            found.append(f"{name} on rank{'s' if len(others) > 1 else ''} {', '.join(others)}")
    if found:
        raise ValueError(f"{rule}, but other than on rank 0: {'; '.join(found)}")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


__all__ = ["digest_of_modes", "digest_of_settings", "parts_of", "together"]
