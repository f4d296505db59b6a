"""Which parameters a model has, and how they are sharded.

A *block* is what FSDP2 gathers together (a module given to `fully_shard`); without FSDP2 every module with parameters of
its own is one. A parameter that several modules share is one parameter. Public interfaces are used: `FSDPModule`,
DTensor's mesh, placements and local tensors; and DTensor's constructor, which FSDP2 uses too.
"""

from __future__ import annotations

import hashlib
import math
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from .own_part import own_part
from .untied import refuse_untied


@dataclass
class Slot:
    """One place where a module holds a parameter."""

    module: nn.Module
    attribute: str


@dataclass
class ParameterEntry:
    name: str  # the first of its names
    parameter: nn.Parameter  # as the optimizer knows it: under FSDP2 a DTensor
    block: int
    slots: list[Slot] = field(default_factory=list)
    cut: int = -1  # the dimension that is cut over the tensor-parallel axis; -1: none

    @property
    def shape(self) -> list[int]:
        """The whole parameter's shape in the engine: a scalar is a vector of one element, a kernel [p, c, ...] a matrix of p
        rows."""
        shape = list(self.parameter.shape) or [1]
        return shape if len(shape) <= 2 else [shape[0], math.prod(shape[1:])]

    def set_gradient(self, own: torch.Tensor) -> None:
        """Puts the gradient into `.grad`. own: the rows that this rank owns, in the engine's shape. The row of an embedding's padding_idx is zero: no
        example reaches it, so that its noise hides nothing, and would make padding say something."""
        parameter = self.parameter
        if not isinstance(parameter, DTensor):
            parameter.grad = own.view(parameter.shape).to(parameter.dtype)
            if (row := self._padding_row()) is not None:
                parameter.grad[row] = 0
            return
        local = own_part(parameter)
        rows = own.view(-1, *local.shape[1:])
        if (row := self._padding_row()) is not None and 0 <= (row := row - _first_row(parameter)) < len(rows):
            rows[row] = 0
        if local.device != own.device:  # fully_shard offloads: from_local() would put rows on the mesh's device again
            gradient = torch.empty_like(parameter, requires_grad=False)
            gradient.to_local().copy_(rows)
            parameter.grad = gradient
            return
        # As FSDP2 itself does: from_local() is a function of autograd, for every parameter of every step.
        parameter.grad = DTensor(rows.to(parameter.dtype), parameter._spec, requires_grad=False)

    def _padding_row(self) -> int | None:
        """padding_idx of the embeddings that this is the table of, and of nothing else."""
        rows = {slot.module.padding_idx if type(slot.module) is nn.Embedding else None for slot in self.slots}
        return rows.pop() if len(rows) == 1 else None


def _first_row(parameter: DTensor) -> int:
    """Of those that this rank has."""
    _, first = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return first[0]


@dataclass
class Layout:
    parameters: list[ParameterEntry]
    blocks: list[str]
    by_slot: dict[tuple[int, str], int]  # (id of module, attribute) -> parameter

    def index(self, module: nn.Module, attribute: str) -> int:
        """The parameter's number; -1 if the module has none of that name."""
        return self.by_slot.get((id(module), attribute), -1)

    def trainable(self) -> tuple[bool, ...]:
        return tuple(entry.parameter.requires_grad for entry in self.parameters)

    def digest_of_trainable(self) -> int:
        """For ranks to compare: 60 bits. Of their type too, as the first has it (`model.double()` on one rank)."""
        kind = str(self.parameters[0].parameter.dtype) if self.parameters else ""
        return int(hashlib.sha256(bytes(self.trainable()) + kind.encode()).hexdigest()[:15], 16)

    def specs(self) -> list[tuple[str, list[tuple[str, list[int], bool, int]]]]:
        """The engine's `blocks`: each block's name, and (name, shape, trainable, cut) of its parameters."""
        blocks: list[tuple[str, list]] = [(name, []) for name in self.blocks]
        for entry in self.parameters:
            blocks[entry.block][1].append((entry.name, entry.shape, entry.parameter.requires_grad, entry.cut))
        return blocks


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Those with elements: others (places between none, in a YOLOS of one layer) have nothing to train."""
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.numel() > 0:
            yield name, parameter


def original_class(module: nn.Module) -> type:
    """The module's class as it was before FSDP2 swapped in one of its own."""
    kind = type(module)
    if isinstance(module, FSDPModule):
        kind = next(base for base in kind.__mro__[1:] if base is not FSDPModule and issubclass(base, nn.Module))
    return kind


def plain_forward(module: nn.Module) -> Callable[..., Any]:
    """Its class's, bound to it: of a copy of a module whose forward ours stood in the place of."""
    return types.MethodType(original_class(module).forward, module)


def read_layout(model: nn.Module, *, fsdp: bool) -> Layout:
    """Numbers the parameters block by block, so that a block's parameters stand together. Call it while nothing is gathered.
    ValueError for a model without parameters, or with ties that sharding has cut."""
    blocks: list[str] = []
    members: list[list[ParameterEntry]] = []
    known: dict[int, ParameterEntry] = {}

    def visit(module: nn.Module, prefix: str, block: int) -> None:
        opens = isinstance(module, FSDPModule) if fsdp else any(True for _ in own_parameters(module))
        if opens or block < 0:
            block = len(blocks)
            blocks.append(prefix or "model")
            members.append([])
        for name, parameter in own_parameters(module):
            entry = known.get(id(parameter))
            if entry is None:
                entry = ParameterEntry(f"{prefix}.{name}" if prefix else name, parameter, block)
                known[id(parameter)] = entry
                members[block].append(entry)
            entry.slots.append(Slot(module, name))
        for name, child in module.named_children():
            if id(child) not in seen:
                seen.add(id(child))
                visit(child, f"{prefix}.{name}" if prefix else name, block)

    seen: set[int] = {id(model)}
    visit(model, "", -1)
    # The engine numbers parameters in this order.
    parameters: list[ParameterEntry] = []
    kept: list[str] = []
    for name, of_block in zip(blocks, members):
        for entry in of_block:
            entry.block = len(kept)
            parameters.append(entry)
        if of_block:
            kept.append(name)
    if not parameters:
        raise ValueError("the model has no parameters")
    refuse_untied(model, parameters)
    by_slot = {
        (id(slot.module), slot.attribute): number for number, entry in enumerate(parameters) for slot in entry.slots
    }
    return Layout(parameters, kept, by_slot)
