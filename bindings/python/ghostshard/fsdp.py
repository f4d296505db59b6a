"""FSDP2 for models that are to train privately, transformer block by transformer block, as for training without privacy."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from opacus.layers.param_rename import RenameParamsMixin
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

__all__ = ["FSDP2Wrapper", "may_stay_gathered"]

_LEFT_TO_THE_ENGINE: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def FSDP2Wrapper(model: nn.Module, **kwargs: Any) -> nn.Module:
    """Shards `model` in place with `fully_shard` and returns it.

    Each element of the outermost ModuleLists and Sequentials (transformer blocks) becomes a block, which is gathered together.
    The rest, such as embeddings and head, is the root's block, so that weights tied between them stay one parameter. Elements
    that share weights stay with the root.

    Keyword arguments go to `fully_shard` (mesh, reshard_after_forward, mp_policy, offload_policy, ignored_params, …),
    for every block. Without `reshard_after_forward`, a private model's blocks stay gathered until a logical batch ends, if that takes
    little memory. `opacus_high_precision_layers`: classes (one, or several) whose modules become blocks of their own
    that compute in the default dtype. The optimizer must be built afterwards.

    `granule`: rows that must stay on one rank, for optimizers that look at rows together: a number, for every parameter with
    two extents or more, or a function of a parameter's name and the parameter that returns one (None: any). `fully_shard`
    gives ceil(rows / ranks) rows to a rank and cannot cut elsewhere: ValueError, before anything is sharded, if that would
    cut a granule.
    """
    _check_granules(model, kwargs.pop("granule", None), kwargs)
    high_precision = _classes(kwargs.pop("opacus_high_precision_layers", ()))
    if kwargs.get("mp_policy", ...) is None:
        del kwargs["mp_policy"]
    if isinstance(model, FSDPModule):
        raise ValueError("the model is under fully_shard already: pass it to make_private as it is")
    if high_precision:
        precise = kwargs | {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.get_default_dtype())}
        for module in reversed(list(model.modules())):
            if isinstance(module, high_precision) and module is not model and not _shares(model, module):
                fully_shard(module, **precise)
    for module in model.modules():
        _set_parameters_plainly(module)
    for block in _blocks(model):
        if not _shares(model, block):
            fully_shard(block, **kwargs)
            if "reshard_after_forward" not in kwargs:
                _LEFT_TO_THE_ENGINE.add(block)
    return fully_shard(model, **kwargs)


def may_stay_gathered(block: nn.Module) -> bool:
    """Whether nobody has said that it shall be freed after its forward, or shall not."""
    return block in _LEFT_TO_THE_ENGINE


def _set_parameters_plainly(module: nn.Module) -> None:
    """Opacus' DPLSTM, DPGRU and DPRNN hold each parameter twice, by nn.LSTM's name and in a cell, and whenever an attribute is set they
    take all of the former from the latter. fully_shard sets one after the other, so that the last one of them would stay what it
    was before. They have their names from construction on; from then on attributes may be set as anywhere else."""
    kind = type(module)
    if isinstance(module, RenameParamsMixin) and kind.__setattr__ is RenameParamsMixin.__setattr__:
        module.__class__ = _plainly_set(kind)


@functools.cache
def _plainly_set(kind: type) -> type:
    return type(kind.__name__, (kind,), {"__setattr__": nn.Module.__setattr__, "__module__": kind.__module__, "__doc__": kind.__doc__})


Granule = int | Callable[[str, nn.Parameter], "int | None"] | None


def _check_granules(model: nn.Module, granule: Granule, kwargs: dict[str, Any]) -> None:
    if granule is None:
        return
    if kwargs.get("shard_placement_fn") is not None:
        raise ValueError("granule= speaks of rows: shard_placement_fn, which may cut other extents, cannot be given with it")
    mesh = kwargs.get("mesh")
    ranks = mesh.size(mesh.ndim - 1) if mesh is not None else dist.get_world_size() if dist.is_initialized() else 1
    for name, parameter in model.named_parameters():
        together = granule(name, parameter) if callable(granule) else granule if parameter.dim() >= 2 else None
        if together is None:
            continue
        if isinstance(together, bool) or not isinstance(together, int) or together < 1:
            raise ValueError(f"granule= must be a whole number of rows, at least 1, got {together!r} for {name}")
        rows = parameter.shape[0] if parameter.dim() else 1
        share = -(-rows // ranks)
        if share < rows and share % together:
            raise ValueError(
                f"{name}: fully_shard gives {share} of its {rows} rows to a rank, which cuts granules of {together} rows. Pad it to a "
                f"multiple of {together * ranks} rows, or have granule= return None for it (GhostShard's C++ engine cuts between granules)"
            )


def _classes(classes: Any) -> tuple[type, ...]:
    found = (classes,) if isinstance(classes, type) else tuple(classes or ())
    for each in found:
        if not isinstance(each, type):
            raise TypeError(f"opacus_high_precision_layers must be module classes, got {each!r}")
    return found


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost lists, those that have parameters; the elements of lists in lists."""
    for child in module.children():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            if any(True for _ in child.parameters()) and not isinstance(child, FSDPModule):
                yield child
        else:
            yield from _blocks(child)


def _shares(model: nn.Module, block: nn.Module) -> bool:
    """Some parameter of the block is used outside of the block too: FSDP2 would make two parameters of it."""
    inside = {id(module) for module in block.modules()}
    own = {id(parameter) for parameter in block.parameters()}
    return any(
        id(parameter) in own
        for module in model.modules()
        if id(module) not in inside
        for parameter in module._parameters.values()
        if parameter is not None
    )
