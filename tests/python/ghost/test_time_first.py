"""Models that take time first (batch_first=False), as PyTorch's word language model: what a layer gives lies in memory as it does without privacy."""

import copy
import math

import pytest
import torch
from models import Scaled
from opacus.layers import DPLSTM
from oracle import clipped_sum, worst_difference
from private_run import Run
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

pytestmark = pytest.mark.filterwarnings("ignore:no ledger")

LAYERS = {
    "linear": lambda: nn.Linear(6, 6), "layer norm": lambda: nn.LayerNorm(6), "LSTM": lambda: nn.LSTM(6, 6), "Opacus' LSTM": lambda: DPLSTM(6, 6), "a layer without a rule": Scaled,
}  # fmt: skip


class Words(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.tokens, self.layer, self.head = nn.Embedding(11, 6), layer, nn.Linear(6, 11)

    def forward(self, ids):
        x = self.tokens(ids)  # [time, examples, 6]
        x = x.view(ids.shape[0] * ids.shape[1], 6).view(*ids.shape, 6)
        x = self.layer(x)
        x = x[0] if isinstance(x, tuple) else x
        return self.head(x.view(*ids.shape, 6))


def loss_of(model, batch):
    ids, targets = (value.t().contiguous() for value in batch)
    return functional.cross_entropy(model(ids).view(-1, 11), targets.view(-1))


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_are_viewed_as_without_privacy(kind):
    torch.manual_seed(3)
    model = Words(LAYERS[kind]())
    data = TensorDataset(torch.randint(0, 11, (40, 5)), torch.randint(0, 11, (40, 5)))
    collate = lambda pairs: tuple(torch.stack(values, 1) for values in zip(*pairs))
    run = Run(model=model, data=data, collate=collate, draws=(5, 8), noise=0.0, batch_first=False)
    for ids, targets in run.loader:
        before = copy.deepcopy(model)
        run.optimizer.zero_grad()
        run.criterion(run.module(ids).view(-1, 11), targets.view(-1)).backward()
        run.optimizer.step()
        batch = (ids.t().contiguous(), targets.t().contiguous())
        expected = clipped_sum(before, loss_of, [tuple(value.detach().as_subclass(torch.Tensor) for value in batch)], 0.1)
        found = {name: (p.detach() - dict(model.named_parameters())[name].detach()) / 0.1 * 8 for name, p in before.named_parameters()}
        assert worst_difference(found, expected) < 1e-3  # of float32 weights


class Turned(nn.Module):
    """As PyTorch's tutorial of Transformers: examples first in its input and output, time first within."""

    def __init__(self, layer=None):
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.layer = layer or nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 1, enable_nested_tensor=False)
        self.register_buffer("places", torch.randn(10, 1, 8))

    def forward(self, ids):
        x = self.tokens(ids.t()) * math.sqrt(8)
        x = self.layer(x + self.places[: x.size(0)], *self.mask(x))
        return self.head(x[0] if isinstance(x, tuple) else x).transpose(0, 1)

    def mask(self, x):
        places = x.shape[0]
        return (torch.triu(torch.full((places, places), float("-inf"), dtype=x.dtype), 1),) if isinstance(self.layer, nn.TransformerEncoder) else ()


def next_tokens(model, batch):
    return functional.cross_entropy(model(batch[0][:, :-1]).transpose(1, 2), batch[0][:, 1:])


@pytest.mark.parametrize("layer", [lambda: None, lambda: nn.LSTM(8, 8), lambda: nn.GRU(8, 8)], ids=["encoder", "LSTM", "GRU"])
def test_a_model_that_turns_its_ids_has_each_examples_sum(layer):
    torch.manual_seed(3)
    model = Turned(layer())
    run = Run(model=model, data=TensorDataset(torch.randint(0, 11, (40, 7))), draws=(8, 6, 5, 1), noise=0.0)
    for (ids,) in run.loader:
        before = copy.deepcopy(model)
        run.optimizer.zero_grad()
        run.criterion(run.module(ids[:, :-1]).transpose(1, 2), ids[:, 1:]).backward()
        run.optimizer.step()
        expected = clipped_sum(before, next_tokens, [(ids.detach().as_subclass(torch.Tensor),)], 0.1)
        assert worst_difference({name: p.grad * 8 for name, p in model.named_parameters()}, expected) < 1e-4


def test_a_recurrent_layer_over_turned_ids_is_told_what_it_needs():
    run = Run(model=Turned(DPLSTM(8, 8)), data=TensorDataset(torch.randint(0, 11, (40, 7))))
    (ids,) = next(iter(run.loader))
    with pytest.raises(ValueError, match="that all units share.*It takes time first: build it with batch_first=True"):
        run.module(ids)
