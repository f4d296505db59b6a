"""nn.RNN, nn.LSTM, nn.GRU, multi-head attention: layers that Opacus has replaced."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from opacus.validators.errors import UnsupportedModuleError
from private import Private
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine


class Reader(nn.Module):
    """Words, a recurrent layer, the last state."""

    def __init__(self, kind, lengths=False, begins=False, **options):
        super().__init__()
        self.tokens, self.rnn = nn.Embedding(11, 5), kind(5, 4, **options)
        directions = 2 if self.rnn.bidirectional else 1
        self.out, self.lengths = nn.Linear(4 * directions, 3), lengths
        self.begin = nn.Linear(5, 4) if begins else None

    def forward(self, ids):
        x = self.tokens(ids)
        if self.lengths:
            alike = self.lengths == "alike"
            counts = torch.full((len(ids),), 4) if alike else 1 + (ids[:, 0] % ids.shape[1])
            packed, _ = self.rnn(pack_padded_sequence(x, counts.cpu(), batch_first=True, enforce_sorted=alike))
            return self.out(pad_packed_sequence(packed, batch_first=True)[0].sum(1))
        if not self.rnn.batch_first:
            x = x.transpose(0, 1)
        time = 1 if self.rnn.batch_first else 0
        given = () if self.begin is None else (torch.tanh(self.begin(x.mean(time)))[None],)
        found, last = self.rnn(x, *given)
        last = last[0] if isinstance(last, tuple) else last
        return self.out(found.mean(time)) + last.sum()[None, None] * 0 if self.begin is None else self.out(found.mean(time) + last[-1])


CASES = {
    "lstm": lambda: Reader(nn.LSTM, batch_first=True),
    "lstm_of_two_layers_both_ways": lambda: Reader(nn.LSTM, batch_first=True, num_layers=2, bidirectional=True),
    "lstm_time_first_without_bias": lambda: Reader(nn.LSTM, bias=False),
    "lstm_of_packed_sequences": lambda: Reader(nn.LSTM, lengths=True, batch_first=True, bidirectional=True),
    "gru": lambda: Reader(nn.GRU, batch_first=True),
    "gru_both_ways_two_layers": lambda: Reader(nn.GRU, num_layers=2, bidirectional=True),
    "gru_from_a_state": lambda: Reader(nn.GRU, begins=True, batch_first=True),
    "rnn_relu": lambda: Reader(nn.RNN, nonlinearity="relu", batch_first=True),
}


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_released_sum_is_the_oracles(build):
    torch.manual_seed(3)
    model = build()
    batches = [(torch.randint(0, 11, (units, 6)), torch.randint(0, 3, (units,))) for units in (5, 2)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.3)
    assert oracle.worst_difference(Private(model, 0.3).step(class_loss, batches), expected) < SUM_TOLERANCE


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_under_autocast_they_give_what_they_give_alone(build):
    """PyTorch's own round at every step, ours what they give: 2^-8 of a value, a few times."""
    torch.manual_seed(3)
    model = build()
    batches = [(torch.randint(0, 11, (units, 6)), torch.randint(0, 3, (units,))) for units in (5, 2)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 1e6)

    def rounded(module, batch):
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.allclose(module(batch[0]).float(), model(batch[0]).float(), atol=2e-2)
            outputs = module(batch[0])
        return functional.cross_entropy(outputs.float(), batch[1], reduction="none")

    assert oracle.worst_difference(Private(model, 1e6).step(rounded, batches), expected) < 3e-2


def test_units_of_one_length_keep_their_places():
    """PyTorch's sort exchanges equal lengths from 17 units on; the first batch, whose outputs are compared, is smaller."""
    torch.manual_seed(3)
    model = Reader(nn.LSTM, lengths="alike", batch_first=True)
    batches = [(torch.randint(0, 11, (units, 6)), torch.randint(0, 3, (units,))) for units in (5, 40)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.3)
    assert oracle.worst_difference(Private(model, 0.3).step(class_loss, batches), expected) < SUM_TOLERANCE


class Sorted(Reader):
    """Its caller has sorted the texts: PyTorch refuses lengths that grow."""

    def forward(self, ids, lengths=None):
        counts = (ids > 0).sum(1) if lengths is None else lengths
        packed, _ = self.rnn(pack_padded_sequence(self.tokens(ids), counts.cpu(), batch_first=True, enforce_sorted=True))
        return self.out(pad_packed_sequence(packed, batch_first=True)[0].sum(1))


@pytest.mark.parametrize("given", [False, True], ids=["lengths_of_the_tokens", "lengths_given"])
def test_sorted_packed_sequences_pass_the_exchange_of_values(given):
    torch.manual_seed(3)
    model, private_loss = Sorted(nn.LSTM, batch_first=True), class_loss
    lengths = torch.tensor([6, 5, 5, 2, 1])
    ids = torch.randint(1, 11, (5, 6)) * (torch.arange(6) < lengths[:, None])
    if given:
        private_loss = lambda m, batch: nn.functional.cross_entropy(m(batch[0], *batch[2:]), batch[1], reduction="none")
    batch = (ids, torch.randint(0, 3, (5,)), *([lengths] if given else []))
    expected = oracle.clipped_sum(copy.deepcopy(model), private_loss, [batch], 0.3)
    assert oracle.worst_difference(Private(model, 0.3).step(private_loss, [batch]), expected) < SUM_TOLERANCE


def test_a_frozen_one_computes_as_before():
    torch.manual_seed(3)
    model = Reader(nn.LSTM, batch_first=True)
    model.rnn.requires_grad_(False)
    batch = (torch.randint(0, 11, (5, 6)), torch.randint(0, 3, (5,)))
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [batch], 0.3)
    assert oracle.worst_difference(Private(model, 0.3).step(class_loss, [batch]), expected) < SUM_TOLERANCE


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.attention, self.out = nn.Embedding(11, 6), nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, ids):
        x = self.tokens(ids)
        return self.out(self.attention(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.parametrize("build", [CASES["lstm"], CASES["gru"], Attends], ids=["lstm", "gru", "attention"])
def test_make_private_takes_them(build):
    torch.manual_seed(3)
    model = build()
    data = TensorDataset(torch.randint(0, 11, (40, 6)), torch.randint(0, 3, (40,)))
    _, optimizer, criterion, loader = (engine := PrivacyEngine(accountant="rdp")).make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0, max_grad_norm=0.3, grad_sample_mode="ghost", wrap_model=False,
    )  # fmt: skip
    for ids, y in loader:
        optimizer.zero_grad()
        criterion(model(ids), y).backward()
        optimizer.step()
    assert sum(steps for _, _, steps in engine.accountant.history) == 5


class NormAndActivation(nn.BatchNorm1d):
    """As timm's BatchNormAct2d."""

    def forward(self, x):
        return super().forward(x).relu()


@pytest.mark.parametrize("norm, sentence", [(nn.BatchNorm1d, "BatchNorm"), (NormAndActivation, r"1 \(NormAndActivation\) is a BatchNorm by inheritance")])
def test_batch_norm_is_refused_still(norm, sentence):
    model = nn.Sequential(nn.Linear(6, 6), norm(6))
    with pytest.raises(UnsupportedModuleError, match=sentence):
        PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=0.3,
            data_loader=DataLoader(TensorDataset(torch.randn(8, 6)), batch_size=4), grad_sample_mode="ghost",
        )  # fmt: skip


class BesideParameters(nn.Module):
    """A query that reads the states, a first state and a scale, which are parameters of the module that has the recurrent layer."""

    def __init__(self, kind, **options):
        super().__init__()
        self.reader = kind(6, 5, batch_first=True, **options)
        width = 5 * (1 + self.reader.bidirectional)
        self.query, self.scale, self.head = nn.Parameter(torch.randn(width)), nn.Parameter(torch.ones(1)), nn.Linear(width, 3)
        self.first = nn.Parameter(torch.randn(self.reader.num_layers * (1 + self.reader.bidirectional), 1, 5))

    def forward(self, x):
        first = self.first.expand(-1, len(x), -1).contiguous()
        states, _ = self.reader(x * self.scale, (first, first) if isinstance(self.reader, nn.LSTM) else first)
        return self.head((states * (states @ self.query).softmax(1)[..., None]).sum(1))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=["one", "both ways, two layers"])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_parameters_beside_a_recurrent_layer(kind, options):
    torch.manual_seed(3)
    model = BesideParameters(kind, **options)
    batches = [(torch.randn(4, 7, 6), torch.randint(0, 3, (4,))) for _ in range(2)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert all(float(value.abs().max()) > 0 for value in expected.values())
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches), expected) < SUM_TOLERANCE
