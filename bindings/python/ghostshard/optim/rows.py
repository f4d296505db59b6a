"""The rows of a parameter that this rank owns: all of a plain tensor, the local part of a DTensor."""

from __future__ import annotations

import math

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """In place of the tensor: what is written to them is written to it."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_element_of(parameter: torch.Tensor) -> int:
    """Of this rank's rows, in the whole parameter. ValueError for a parameter that is cut otherwise than by rows."""
    if not isinstance(parameter, DTensor):
        return 0
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if shape[1:] != parameter.shape[1:]:
        raise ValueError(f"a parameter of shape {tuple(parameter.shape)} must be cut by rows, its placements are {parameter.placements}")
    return offset[0] * math.prod(parameter.shape[1:]) if shape and shape[0] else 0


def placed_like(parameter: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """This rank's values, flat, as a tensor that is sharded like the parameter."""
    rows = rows.view(rows_of(parameter).shape)
    if not isinstance(parameter, DTensor):
        return rows
    return DTensor.from_local(
        rows, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def flat_rows(parameter: torch.Tensor, values: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """This rank's part of values of the parameter's shape, flat [elements], contiguous, where its rows are. Whole values may stand for
    sharded ones. ValueError for another shape."""
    if values.shape != parameter.shape:
        raise ValueError(f"a state of shape {tuple(values.shape)} is not one of a parameter of shape {tuple(parameter.shape)}")
    if isinstance(parameter, DTensor) and not isinstance(values, DTensor):
        values = distribute_tensor(values.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)
    if isinstance(values, DTensor) and isinstance(parameter, DTensor) and values.placements != parameter.placements:
        values = values.redistribute(parameter.device_mesh, parameter.placements)
    return rows_of(values).to(rows_of(parameter).device, dtype).reshape(-1).contiguous()
