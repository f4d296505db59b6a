"""A layer's outputs and gradients unit by unit: by torch.func.vmap, or in a loop for layers that it cannot follow (values that
decide what is computed, as in a mixture of experts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ..tensor_trees import tensors_in
from .call import Call, Output
from .layer import time_first


class Coins:
    """The states of torch's generators now: what is drawn from here on can be drawn again."""

    def __init__(self, device: torch.device):
        self.device = device
        self._host = torch.get_rng_state()
        self._own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)

    def tossed(self) -> bool:
        """Something was drawn since."""
        now = Coins(self.device)
        return not torch.equal(now._host, self._host) or (self._own is not None and not torch.equal(now._own, self._own))

    def again(self) -> None:
        torch.set_rng_state(self._host)
        if self._own is not None:
            torch.get_device_module(self.device).set_rng_state(self._own, self.device)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Draws are those from here on, and the generators are afterwards where they were before."""
        now = Coins(self.device)
        self.again()
        try:
            yield
        finally:
            now.again()


class Buffers:
    """What a layer's buffers hold now. The layer's own forward moves them, once; what is computed unit by unit leaves them as they are."""

    def __init__(self, module: nn.Module):
        self._before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]

    def moved(self) -> Buffers:
        """Of those that hold something else now."""
        self._before = [(buffer, before) for buffer, before in self._before if not torch.equal(buffer, before)]
        return self

    def again(self) -> None:
        _hold(self._before)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """They begin with what they held, and hold afterwards what they hold now."""
        now = [(buffer, buffer.detach().clone()) for buffer, _ in self._before]
        self.again()
        try:
            yield
        finally:
            _hold(now)


def _hold(values: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """(buffer, what it is to hold). Of one that holds it, the graph may have kept what it is."""
    with torch.no_grad():
        for buffer, held in values:
            if not torch.equal(buffer, held):
                buffer.copy_(held)


def outputs_of_each_unit(call: Call, inputs: list[torch.Tensor], outputs: list[Output], buffers: Buffers) -> list[torch.Tensor]:
    """The layer's outputs, with coins of each unit's own. outputs: of all units at once; buffers: before that."""

    def one(values: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = call.of_one(values)
        return [output.of_one(value) for value, output in zip(tensors_in(call.kept.skeleton().forward(*args, **kwargs)), outputs)]

    def mapped() -> list[torch.Tensor]:
        return torch.func.vmap(one, randomness="different")(inputs)

    def looped() -> list[torch.Tensor]:
        return [torch.stack(each) for each in zip(*(one([value[u] for value in inputs]) for u in _anew(call.units, buffers)))]

    with torch.no_grad(), buffers.repeated():
        found = _first_that_works(call, mapped, looped, Coins(inputs[0].device).again)
    return [output.as_given(value) for value, output in zip(found, outputs)]


def of_each_unit(
    call: Call,
    parameters: dict[str, torch.Tensor],
    inputs: list[torch.Tensor],
    differentiable: list[int],
    wanted: list[tuple[int, Output]],
    gradients: list[torch.Tensor],
    coins: Coins | None,
    buffers: Buffers,
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """([units, ...] gradients of the parameters by name, of the differentiable inputs, and the wanted outputs themselves).

    wanted: outputs with their numbers; gradients: theirs. coins, buffers: before its forward.
    """

    def forward(parameters: dict, floats: list, whole: list) -> list[torch.Tensor]:
        now = dict(enumerate(whole)) | dict(zip(differentiable, floats))
        args, kwargs = call.of_one(list(now.values()))
        found = tensors_in(torch.func.functional_call(call.kept.skeleton(), parameters, args, kwargs))
        return [output.of_one(found[i]) for i, output in wanted]

    def one(parameters, floats, whole, of_outputs, _counts):
        primal, pullback = torch.func.vjp(lambda p, f: forward(p, f, whole), parameters, floats)
        return *pullback(of_outputs), primal

    floats = [inputs[i] for i in differentiable]
    counts = torch.zeros(call.units)  # units even without inputs

    def mapped() -> tuple:
        randomness = "error" if coins is None else "different"
        return torch.func.vmap(one, in_dims=(None, 0, 0, 0, 0), randomness=randomness)(parameters, floats, inputs, gradients, counts)

    def looped() -> tuple:
        each = [
            _by_autograd(forward, parameters, *([value[u] for value in values] for values in (floats, inputs, gradients)))
            for u in _anew(call.units, buffers)
        ]
        stacked = lambda values: [torch.stack(one) for one in zip(*values)]
        of_parameters = {name: torch.stack([found[0][name] for found in each]) for name in parameters}
        return of_parameters, stacked([found[1] for found in each]), stacked([found[2] for found in each])

    with nullcontext() if coins is None else coins.repeated(), buffers.repeated():
        return _first_that_works(call, mapped, looped, Coins(counts.device if not inputs else inputs[0].device).again)


def _anew(units: int, buffers: Buffers) -> Iterator[int]:
    """Each unit meets the buffers as all of them do in the batch's forward."""
    for u in range(units):
        buffers.again()
        yield u


def _by_autograd(forward: Callable, parameters: dict, floats: list, whole: list, of_outputs: list) -> tuple:
    with torch.enable_grad():
        parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        floats = [value.detach().requires_grad_() for value in floats]
        outputs = forward(parameters, floats, whole)
    leaves = [*parameters.values(), *floats]
    chosen = [(value, g) for value, g in zip(outputs, of_outputs) if value.requires_grad]
    found: Any = [None] * len(leaves)
    if chosen:
        found = torch.autograd.grad([value for value, _ in chosen], leaves, [g for _, g in chosen], allow_unused=True)
    found = [torch.zeros_like(leaf) if each is None else each.to_dense() for leaf, each in zip(leaves, found)]  # sparse ones of EmbeddingBag
    return dict(zip(parameters, found)), found[len(parameters) :], [value.detach() for value in outputs]


def _first_that_works(call: Call, mapped: Callable, looped: Callable, coins_again: Callable[[], None]) -> Any:
    layer = call.layer
    if not layer.looped:
        try:
            return mapped()
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            coins_again()
    try:
        found = looped()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        raise ValueError(
            f"{call.kind} has no rule and cannot be computed one example at a time ({' '.join(str(error).split())[:200]}): register a "
            "rule for it (ghostshard.register_rule), or freeze it" + (" (of a speech model, by model.freeze_feature_encoder())" if "leaf variables" in str(error) else "") + time_first(layer)
        ) from error
    layer.looped = True  # from here on
    return found


__all__ = ["Buffers", "Coins", "of_each_unit", "outputs_of_each_unit"]
