"""The part of Muon, Shampoo and SOAP around their rules: which parameters are matrices of theirs, AdamW for the others, the way of a
matrix to the rank that computes its step and of the step back, and weight decay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .adamw import AdamW
from .exchange import least_of_ranks, over_whole_matrices
from .options import check_flag
from .rows import flat_rows, rows_of

Pieces = tuple[int, int] | None


class MatrixOptimizer(AdamW):
    """w = (1 − lr·weight_decay)·w − lr·step for matrices, with a step of _step_of(). step() is a collective."""

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        check_flag(group, "matrices")

    def _update(self) -> None:
        self._refuse_gradients()
        matrices: dict[torch.Tensor, dict[str, Any]] = {}
        numbers: dict[torch.Tensor, int] = {}
        for number, (parameter, group) in enumerate(self._with_groups()):
            if is_matrix(parameter, group):
                matrices[parameter], numbers[parameter] = group, number
            elif parameter.grad is not None:
                self._move(parameter, group, number)
        over_whole_matrices(
            list(matrices),
            [parameter for parameter in matrices if parameter.grad is not None],
            lambda parameter: self._give(parameter, matrices[parameter]),
            lambda parameter, matrix: self._step_of(parameter, matrix, matrices[parameter]),
            lambda parameter, rows: self._take(parameter, rows, matrices[parameter], numbers[parameter]),
        )

    def _refuse_gradients(self) -> None:
        """ValueError if a matrix' gradient is beyond what its rule computes with, before anything has moved, and on every rank: if its
        owner alone raised, the others would wait for the step."""
        bounded = []
        for number, (parameter, group) in enumerate(self._with_groups()):
            if is_matrix(parameter, group) and parameter.grad is not None:
                most = self._largest_gradient(parameter, group)
                if most < math.inf:
                    bounded.append((number, parameter, most))
        if not bounded:
            return
        parameters = [parameter for _, parameter, _ in bounded]
        # One wait for the device. NaN is the largest where there is one, and not at most anything.
        device = rows_of(parameters[0]).device
        found = torch.stack([_largest_in(parameter).to(device) for parameter in parameters]).tolist()
        none = bounded[-1][0] + 1
        first = least_of_ranks(min((number for (number, _, most), largest in zip(bounded, found) if not largest <= most), default=none), parameters)
        for number, parameter, most in bounded:
            if number == first:
                raise ValueError(
                    f"gradients of {type(self).__name__}'s matrices must be finite and at most {most:.1e}, those of {self._title(parameter)} are "
                    "not. No parameter has moved"
                )

    def _largest_gradient(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        """The magnitude of an element up to which the rule computes; infinity: it takes any value, NaN too. Alike on all ranks."""
        raise NotImplementedError

    def _give(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """This rank's rows of what the owner is sent, [rows, d] float32. On every rank that shares the matrix."""
        assert parameter.grad is not None
        return flat_rows(parameter, parameter.grad).view(rows_of(parameter).shape)

    def _step_of(self, parameter: torch.Tensor, matrix: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """On the owner, from the whole matrix that was sent [p, d]: the step for a learning rate of 1."""
        raise NotImplementedError

    def _take(self, parameter: torch.Tensor, rows: torch.Tensor, group: dict[str, Any], number: int) -> None:
        lr = float(group["lr"])
        own = rows_of(parameter)
        stored = own.dtype == torch.float32
        moved = (own if stored else own.float()).mul_(1 - lr * group["weight_decay"]).sub_(rows * lr)
        if not stored:
            self._store(parameter, moved.reshape(-1), group, number)


def _largest_in(parameter: torch.Tensor) -> torch.Tensor:
    """The magnitude of the largest element of this rank's gradient."""
    assert parameter.grad is not None
    rows = rows_of(parameter.grad)
    if not rows.numel():
        return torch.zeros((), device=rows.device)
    least, most = rows.aminmax()  # on CPUs in a small part of the time that a norm takes
    return torch.maximum(most, least.neg()).float()


def is_matrix(parameter: torch.Tensor, group: dict[str, Any]) -> bool:
    return bool(group["matrices"]) and parameter.dim() == 2


def matrix_groups(
    model: nn.Module,
    *,
    adamw: Callable[[str, nn.Parameter], bool] | None = None,
    pieces: Callable[[str, nn.Parameter], Pieces] | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for Muon, Shampoo and SOAP, of a model that is sharded already. Tables of nn.Embedding and the head that a Hugging
    Face model names go by AdamW, because their rows are tokens'; so does what `adamw` says of a parameter's name and the parameter,
    such as the head of a model of your own. pieces: Muon's, by name and parameter. Frozen parameters are left out."""
    apart = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    apart |= {id(parameter) for parameter in head.parameters()} if isinstance(head, nn.Module) else set()
    groups: dict[tuple[bool, Pieces], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        matrix = parameter.dim() == 2 and id(parameter) not in apart and not (adamw is not None and adamw(name, parameter))
        groups.setdefault((matrix, pieces(name, parameter) if pieces is not None and matrix else None), []).append(parameter)
    made: list[dict[str, Any]] = [{"params": members, "matrices": matrix} for (matrix, _), members in groups.items()]
    if pieces is not None:
        for group, (_, cut) in zip(made, groups):
            group["pieces"] = cut
    return made
