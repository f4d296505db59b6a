"""nn.RNN, nn.LSTM and nn.GRU, and Opacus' layers in their place: linear layers of each step, whose rows are recorded at once.

A step's gates are W_ih x_t + b_ih + W_hh h_{t-1} + b_hh. The first product is one linear layer over all steps. For the second
the states h are computed first, without gradients; then one linear layer over all of them is recorded, whose output is
taken off again (only its gradient counts), beside the recurrence itself, which has its weight as a constant. So the rows
(h_{t-1}, gradient of step t's gates) are those of W_hh, and the gradient runs through the states as it should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..autocast import dtype_of, without_autocast
from ..tensor_trees import mapped
from .layer import ROWS_OF_UNITS, Layer, refuse_parts, register_rule, time_first

_States = tuple[torch.Tensor, ...]  # (h,), or (h, c) of an LSTM, each [units, H]


@register_rule(nn.RNN, nn.LSTM, nn.GRU, "opacus:DPRNN", "opacus:DPLSTM", "opacus:DPGRU")
def recurrent(layer: Layer, input: Any, hx: Any = None, state_init: Any = None) -> Any:
    """state_init: Opacus' name of hx."""
    module: Any = layer.module
    hx = state_init if hx is None else hx
    layer.refuse_packed()
    refuse_parts(layer)
    if getattr(module, "proj_size", 0):
        raise ValueError(f"{layer.name} (LSTM): proj_size > 0 has no rule here: use a linear layer after it")
    x, lengths = (input, None)
    if isinstance(input, PackedSequence):
        x, lengths = pad_packed_sequence(input, batch_first=True)
    elif not module.batch_first and x.dim() == 3:
        x = x.transpose(0, 1)
    units, parts = layer.rows(x), layer.parts(x)
    if x.dim() != 3 or x.shape[0] != units * parts:
        raise ValueError(
            f"{layer.name}: a recurrent layer's input must be the {units} units of this batch by steps by values (batch_first="
            f"{module.batch_first}), got {tuple(x.shape)}{time_first(layer) or f'. {ROWS_OF_UNITS}'}"
        )
    rounded = _rounded_to(module, x)
    with without_autocast(x):
        if rounded is not None:
            wide = layer.value("weight_ih_l0").dtype
            x, hx = x.to(wide), mapped(lambda each: each.to(wide), hx)
        x, states = _layers(layer, x, _first_states(module, x, hx), lengths, parts)
        if rounded is not None:
            x, states = x.to(rounded), tuple(each.to(rounded) for each in states)
    layer.compared = layer.compared or (module.dropout > 0 and module.training)  # whose own coins fall in another order
    if lengths is not None:
        # In the order of the input's rows: sorting anew may exchange units of one length.
        order = torch.arange(len(x)) if input.sorted_indices is None else input.sorted_indices.cpu()
        rows = pack_padded_sequence(x.index_select(0, order.to(x.device)), lengths[order], batch_first=True).data
        output = PackedSequence(rows, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
    else:
        x = layer.in_order(x, parts)
        output = x if module.batch_first else x.transpose(0, 1)
    return output, states if _has_cells(module) else states[0]


def _rounded_to(module: Any, x: torch.Tensor) -> torch.dtype | None:
    """Autocast rounds all that PyTorch's own layers compute with, and Opacus' give what they are given. Here what they give is rounded, and recorded rows are
    those that it comes from. None: nothing is."""
    lower = dtype_of(x)
    return None if lower is None or x.dtype == torch.float64 else lower if isinstance(module, nn.RNNBase) else x.dtype


def _first_states(module: Any, x: torch.Tensor, hx: Any) -> _States:
    """[layers · directions, units, H] each."""
    count = 2 if _has_cells(module) else 1
    if hx is None:
        directions = 2 if module.bidirectional else 1
        return (x.new_zeros(module.num_layers * directions, x.shape[0], module.hidden_size),) * count
    return hx if isinstance(hx, tuple) else (hx,)


def _layers(
    layer: Layer, x: torch.Tensor, first: _States, lengths: torch.Tensor | None, parts: int
) -> tuple[torch.Tensor, _States]:
    module: Any = layer.module
    directions = 2 if module.bidirectional else 1
    there = None
    if lengths is not None:
        there = (torch.arange(x.shape[1])[None] < lengths[:, None]).to(x.device)
    last = []
    for number in range(module.num_layers):
        found = []
        for direction in range(directions):
            states = tuple(each[number * directions + direction] for each in first)
            suffix = f"l{number}{'_reverse' if direction else ''}"
            outputs, states = _direction(layer, suffix, x, states, there, parts, backwards=direction == 1)
            found.append(outputs)
            last.append(states)
        x = torch.cat(found, -1)
        if number + 1 < module.num_layers and module.dropout > 0 and module.training:
            x = functional.dropout(x, module.dropout)
    return x, tuple(torch.stack(each) for each in zip(*last))


def _direction(
    layer: Layer, suffix: str, x: torch.Tensor, states: _States, there: torch.Tensor | None, parts: int, *, backwards: bool
) -> tuple[torch.Tensor, _States]:
    """(outputs [units, T, H], the last states). there: bool [units, T], the steps that a unit has."""
    of_input, of_state = f"weight_ih_{suffix}", f"weight_hh_{suffix}"
    inputs = _recorded(layer, of_input, x, parts)
    weight, bias = layer.value(of_state).detach(), layer.value(of_state.replace("weight", "bias"))
    bias = None if bias is None else bias.detach()
    step, steps = _step_of(layer.module), range(x.shape[1])
    order = list(reversed(steps) if backwards else steps)

    def run(now: _States, inputs: torch.Tensor, recorded: torch.Tensor | None) -> tuple[list, _States]:
        found: list = [None] * len(order)
        for t in order:
            before = now
            of_states = functional.linear(now[0], weight, bias)
            now = step(inputs[:, t], of_states if recorded is None else of_states + recorded[:, t], now)
            if there is not None:
                now = tuple(torch.where(there[:, t, None], new, old) for new, old in zip(now, before))
            found[t] = (before[0], now[0])
        return found, now

    with torch.no_grad():
        rows = torch.stack([before for before, _ in run(states, inputs, None)[0]], 1)
    recorded = _recorded(layer, of_state, rows, parts)
    found, last = run(states, inputs, recorded - recorded.detach())
    outputs = torch.stack([after for _, after in found], 1)
    return outputs if there is None else outputs * there[:, :, None], last


def _recorded(layer: Layer, name: str, x: torch.Tensor, parts: int) -> torch.Tensor:
    bias, rows = name.replace("weight", "bias"), layer.folded(x, parts)
    y = layer.session.linear(layer.number(name), layer.number(bias), False, rows, layer.value(name), layer.value(bias))
    return y if parts == 1 else y.flatten(0, 1)


def _step_of(module: Any) -> Callable[[torch.Tensor, torch.Tensor, _States], _States]:
    """(gates of the input, gates of the state, states) -> states."""
    if _has_cells(module):
        return _lstm
    if isinstance(module, nn.GRU) or _name_of_cells(module) == "DPGRUCell":
        return _gru
    tanh = module.mode == "RNN_TANH" if isinstance(module, nn.RNN) else module.cell_params["nonlinearity"] == "tanh"  # as their own forwards ask
    activation = torch.tanh if tanh else torch.relu
    return lambda inputs, state, _: (activation(inputs + state),)


def _has_cells(module: Any) -> bool:
    return isinstance(module, nn.LSTM) or _name_of_cells(module) == "DPLSTMCell"


def _name_of_cells(module: Any) -> str:
    """Of Opacus' layers; "" of PyTorch's."""
    return getattr(getattr(module, "cell_type", None), "__name__", "")


def _lstm(inputs: torch.Tensor, state: torch.Tensor, now: _States) -> _States:
    i, f, g, o = (inputs + state).chunk(4, -1)
    c = torch.sigmoid(f) * now[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(inputs: torch.Tensor, state: torch.Tensor, now: _States) -> _States:
    (r, z, n), (of_r, of_z, of_n) = inputs.chunk(3, -1), state.chunk(3, -1)
    z = torch.sigmoid(z + of_z)
    return ((1 - z) * torch.tanh(n + torch.sigmoid(r + of_r) * of_n) + z * now[0],)


__all__ = ["recurrent"]
