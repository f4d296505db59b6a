"""Between which ranks a model's parameters are sharded, cut and replicated, and the groups that the engine talks over.

Three axes, as in fsdp/mesh.h: *replicate* × *shard* hold different data, *model* (tensor parallel) the same data and
different parts of cut parameters. Where a model lies follows from its parameters alone, by public interfaces:
`FSDPModule`, DTensor's mesh and placements.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from .device import backend_for, device_of, device_of_all
from .layout import Layout, ParameterEntry

TIMEOUT = timedelta(minutes=10)


def _let_workers_finish() -> None:
    """Gloo's worker threads hold the tensors of their last collective until they have the interpreter's lock. If it is gone by
    then, "terminate called without an active exception" ends a process whose work is done. Asleep, this thread lends the lock."""
    time.sleep(0.2)


@dataclass
class Ranks:
    """The engine's mesh, and the groups it reduces over: (reduce, replicate, model, control), "" for one that is not needed."""

    device: torch.device  # of this rank
    shape: tuple[int, int, int] = (1, 1, 1)  # replicate, shard, model
    rank: int = 0
    groups: tuple[str, str, str, str] = ("", "", "", "")
    control: Any = None  # the group of all ranks; None for one alone
    data: Any = None  # the group of ranks that hold other data and the same parts of cut parameters
    twins: Any = None  # the group of ranks that hold the same data, for drawing it alike
    kept: tuple = ()  # other groups, kept alive

    def follow(self, layout: Layout) -> None:
        """Takes the device that the model was moved to since it was made private. ValueError if it has several ranks."""
        before, now = self.device, device_of(layout)
        if self.control is not None:
            raise ValueError(
                f"on several ranks a model is moved to its device before make_private(), this one was on {before} then and is "
                f"on {now}"
            )
        self.device = now

    @property
    def model_ranks(self) -> int:
        return self.shape[2]

    @property
    def data_ranks(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def data_rank(self) -> int:
        return self.rank // self.shape[2]

    @property
    def model_rank(self) -> int:
        return self.rank % self.shape[2]


def ranks_of(model: nn.Module, layout: Layout, *, fsdp: bool) -> Ranks:
    """The ranks of a model. Notes in the layout which parameters are cut, and along which dimension. A collective if there are
    several ranks. ValueError on all of them for a model that is not on one device that this build knows (device.py)."""
    _refuse_cut_without_dtensors(model)
    replicated = not fsdp and is_replicated(model)
    if fsdp or any(isinstance(entry.parameter, DTensor) for entry in layout.parameters):
        if replicated:
            raise ValueError("DistributedDataParallel around a model with DTensors: use fully_shard on a mesh of data axes")
        return _connect(_mesh_of(layout, fsdp=fsdp), layout)
    if replicated:
        return _connect(torch.arange(dist.get_world_size()).view(-1, 1, 1), layout)
    if world_size() > 1:
        raise ValueError(
            f"{type(model).__name__} is a plain model on {dist.get_world_size()} ranks: each would train one of its own, with "
            "noise of its own, and epsilon would count one. Shard it with FSDP2Wrapper or fully_shard "
            "(grad_sample_mode='ghost_fsdp'), or wrap it in DifferentiallyPrivateDistributedDataParallel"
        )
    if not dist.is_initialized() and os.environ.get("WORLD_SIZE", "1") not in ("", "1") and "RANK" in os.environ:
        warnings.warn(
            f"a launcher started {os.environ['WORLD_SIZE']} processes (WORLD_SIZE), and torch.distributed is not begun: each trains a model of its own on all the data, with noise of its own, "
            "and its epsilon is of that model alone. To train one model call make_private() after init_process_group() (TrainingArguments and Accelerator call it, too)",
            stacklevel=6,
        )
    return Ranks(device_of(layout))


def world_size() -> int:
    """Of torch.distributed, as it is now: 1 before it is begun."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_replicated(model: nn.Module) -> bool:
    """Ranks hold the whole model, in DistributedDataParallel or Opacus' own."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return False
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    replicas = (DifferentiallyPrivateDistributedDataParallel, nn.parallel.DistributedDataParallel)
    return any(isinstance(module, replicas) for module in model.modules())


def _refuse_cut_without_dtensors(model: nn.Module) -> None:
    """Transformers' own tensor parallelism cuts weights into plain tensors: each rank's would pass for the whole."""
    for module in model.modules():
        size = getattr(module, "_tp_size", None)
        if isinstance(size, int) and size > 1:
            raise ValueError(
                f"{type(module).__name__} was cut over {size} ranks by Transformers' tp_plan, whose plain tensors do not say "
                "where a rank's part lies in the whole: use torch.distributed.tensor.parallel.parallelize_module"
            )


def _mesh_of(layout: Layout, *, fsdp: bool) -> torch.Tensor:
    """Global ranks, [replicate, shard, model]."""
    meshes: dict[Any, tuple[str, torch.Tensor]] = {}
    for entry in layout.parameters:
        if not isinstance(entry.parameter, DTensor):
            if fsdp:
                raise ValueError(
                    f"every parameter of a model under FSDP2 must be sharded, but {entry.name!r} is not: "
                    "call fully_shard on the whole model too, not only on its blocks"
                )
            continue
        data_axes = _read_placements(entry, fsdp=fsdp)
        mesh = entry.parameter.device_mesh
        if mesh not in meshes:
            ranks = mesh.mesh
            shape = [1] * (2 - data_axes) + list(ranks.shape) + [1] * (data_axes + 1 - ranks.dim())
            meshes[mesh] = (entry.name, ranks.reshape(shape))
    name, widest = max(meshes.values(), key=lambda named: named[1].numel())
    here = (widest == dist.get_rank()).nonzero()
    if len(here) != 1:
        raise ValueError(f"rank {dist.get_rank()} must be on the model's mesh, which is {widest.tolist()}")
    for other, ranks in meshes.values():
        mine = widest if ranks.shape == widest.shape else widest[:, :, here[0, 2] :][:, :, :1]
        if not torch.equal(ranks, mine):
            raise ValueError(
                f"all parameters must be sharded over one mesh, but {name!r} lies on ranks {widest.tolist()} (replicate, "
                f"shard, tensor parallel) and {other!r} on {ranks.tolist()}"
            )
    if widest.shape[2] > 1:
        for entry in layout.parameters:
            _check_cut(entry, widest.shape[2])
    return widest


def _read_placements(entry: ParameterEntry, *, fsdp: bool) -> int:
    """Sets entry.cut; returns how many axes of its mesh are data axes. fully_shard's axes come first, one (sharded) or two
    (replicated × sharded); then comes at most one tensor-parallel axis."""
    placements = entry.parameter.placements
    rows = [placement.is_shard(0) or _is_strided(placement) for placement in placements]
    data_axes = 0
    if fsdp:
        data_axes = 1 if rows[0] else 2
    sharded = data_axes == 0 or (len(rows) >= data_axes and rows[data_axes - 1])
    replicated = data_axes < 2 or isinstance(placements[0], Replicate)
    rest = placements[data_axes:]
    fits = len(rest) <= 1 and all(isinstance(each, Shard | Replicate) for each in rest)
    if not (sharded and replicated and fits):
        raise ValueError(
            "parameters must be sharded along their first dimension by fully_shard, on a mesh of one axis or of two "
            "(replicate × shard), and cut over at most one more by parallelize_module before that, but "
            f"{entry.name!r} has placements {placements}"
        )
    entry.cut = rest[0].dim if rest and isinstance(rest[0], Shard) else -1
    return data_axes


def _is_strided(placement: Any) -> bool:
    """fully_shard's rows of a tensor that is cut into rows already."""
    return type(placement).__name__ == "_StridedShard" and placement.dim == 0


def _check_cut(entry: ParameterEntry, ranks: int) -> None:
    shape = entry.parameter.shape
    if entry.cut >= 0 and (len(shape) > 2 or shape[entry.cut] % ranks != 0):
        raise ValueError(
            f"parameter {entry.name!r} {tuple(shape)} is cut along dimension {entry.cut} over {ranks} ranks: it must be a "
            "matrix or a vector, and the ranks must divide that dimension"
        )


def _connect(mesh: torch.Tensor, layout: Layout) -> Ranks:
    """mesh [replicate, shard, model] of global ranks."""
    atexit.unregister(_let_workers_finish)  # once, however many models there are
    atexit.register(_let_workers_finish)
    replica, shard, part = (mesh == dist.get_rank()).nonzero()[0].tolist()
    # Gloo, whatever backend the default group has: values that ranks agree on are in host memory.
    control = _group(mesh, "control")
    device = device_of(layout) if control is None else device_of_all(layout, control)
    backend = "gloo" if control is None else backend_for(device, mesh.numel())
    reduce = _group(mesh[replica, :, part], "reduce", backend)
    replicate = _group(mesh[:, shard, part], "replicate", backend)
    model = _group(mesh[replica, shard], "model", backend)
    data = control if model is None else _group(mesh[:, :, part], "data")
    return Ranks(
        device=device,
        shape=(mesh.shape[0], mesh.shape[1], mesh.shape[2]),
        rank=(replica * mesh.shape[1] + shard) * mesh.shape[2] + part,
        groups=tuple("" if group is None else group.group_name for group in (reduce, replicate, model, control)),
        control=control,
        data=data,
        twins=_group(mesh[replica, shard], "coins"),
        kept=(reduce, replicate, model),
    )


def _group(ranks: torch.Tensor, purpose: str, backend: str = "gloo") -> Any:
    """A group of these ranks for one purpose, made by these ranks alone. None for a single rank."""
    if ranks.numel() == 1:
        return None
    members = ranks.flatten().tolist()
    try:
        return dist.new_group(
            members, backend=backend, timeout=TIMEOUT, use_local_synchronization=True, group_desc=f"ghostshard.{purpose}",
        )  # fmt: skip
    except RuntimeError as error:
        raise RuntimeError(
            f"ranks {members} need a group of their own over {backend} for {purpose!r}"
            f"{', whatever the default group has' if backend == 'gloo' else ''}, but it could not be made: {error}"
        ) from error


__all__ = ["Ranks", "is_replicated", "ranks_of", "world_size"]
