"""Models that take time first (batch_first=False), as PyTorch's word language model: what a layer gives lies in memory as it does without privacy."""

import copy

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
