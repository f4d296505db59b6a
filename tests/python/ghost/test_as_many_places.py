"""Batches of as many examples as places: what all examples share must not pass for a row of each."""

import copy

import oracle
import pytest
import torch
import transformers
from launch import SUM_TOLERANCE
from private import Private
from private_run import prescribe
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

T = 9


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), -torch.inf), 1)
        return self.head(self.attention(h, h, h, attn_mask=mask, need_weights=False)[0].mean(1))


def bart():
    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 8))}
    config = transformers.BartConfig(
        vocab_size=11, d_model=8, max_position_embeddings=32, decoder_start_token_id=0, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes
    )
    return transformers.BartForConditionalGeneration(config)


def deberta():
    """Drops out of a table of distances that all examples share: once for all."""
    config = transformers.DebertaV2Config(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=32, num_labels=3,
        relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=16, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
    )  # fmt: skip
    return transformers.DebertaV2ForSequenceClassification(config)


LOSSES = {
    Attention: lambda module, criterion, x, y: criterion(module(x), y), bart: lambda module, criterion, x, y: module(input_ids=x, labels=x).loss,
    deberta: lambda module, criterion, x, y: module(input_ids=x, labels=y).loss,
}  # fmt: skip


@pytest.mark.parametrize("sizes", [(9, 8, 9, 7), (7, 9, 9, 4), (9, 9, 9, 9)], ids=str)
@pytest.mark.parametrize("model", LOSSES, ids=lambda model: model.__name__)
def test_places_are_no_examples(model, sizes):
    torch.manual_seed(0)
    made, data = model(), TensorDataset(torch.randint(1, 11, (40, T)), torch.randint(0, 3, (40,)))
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=made, optimizer=torch.optim.SGD(made.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0,
        max_grad_norm=1.0, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    prescribe(loader, sizes)
    for x, y in loader:
        optimizer.zero_grad()
        LOSSES[model](module, criterion, x, y).backward()
        optimizer.step()


class OfState(nn.Module):
    """Gives its recurrent state [layers, examples, features], too."""

    def __init__(self):
        super().__init__()
        self.r, self.o = nn.LSTM(6, 6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        places, state = self.r(x)
        return self.o(places[:, -1]), state


def test_as_many_layers_as_half_of_the_examples():
    for size in (4, 5, 2):
        model = OfState()
        module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost",
            data_loader=DataLoader(TensorDataset(torch.randn(16, 5, 6), torch.randint(3, (16,))), batch_size=8), criterion=nn.CrossEntropyLoss(),
        )  # fmt: skip
        prescribe(loader, (size, size))
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x)[0], y).backward()
            optimizer.step()


class FirstRows(nn.Module):
    """Gives as many of its rows as its argument has places, for all examples alike."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(0.3 * torch.randn(16, 8))

    def forward(self, h):
        return self.rows[: h.shape[1]]


class WithRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(11, 8), FirstRows(), nn.Linear(8, 3)

    def forward(self, x):
        h = self.tokens(x)
        return self.head(torch.tanh(h + self.places(h)).mean(1))


@pytest.mark.parametrize("sizes", [(5, 5), (4, 5, 6), (5, 4, 5)], ids=str)
def test_rows_that_all_examples_share(sizes):
    torch.manual_seed(0)
    model = WithRows()
    private, loss = Private(model, 0.5), lambda module, batch: nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")
    batches = [(torch.randint(1, 11, (size, 5)), torch.randint(0, 3, (size,))) for size in sizes]
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, batches, 0.5)
    assert oracle.worst_difference(private.step(loss, batches), expected) < SUM_TOLERANCE


def test_an_average_of_the_examples_is_no_shared_row():
    class Average(FirstRows):
        def forward(self, h):
            return h.mean(0) * self.rows[: h.shape[1]]

    model = WithRows()
    model.places = Average()
    private = Private(model, 0.5, attribution_check=False)
    with pytest.raises((ValueError, RuntimeError), match="one example at a time|an example alone"):
        private.backward(lambda module, batch: nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none"), (torch.randint(1, 11, (5, 5)), torch.arange(5) % 3))


@pytest.mark.parametrize("size", [1, 4])
def test_a_flag_for_each_example(size):
    class Flagged(nn.Module):
        def __init__(self):
            super().__init__()
            self.o = nn.Linear(6, 3)

        def forward(self, x, flag):
            return self.o(x) * (1 + flag[:, None].float())

    model = Flagged()
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost",
        data_loader=DataLoader(TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)), torch.arange(16) % 3 == 0), batch_size=8), criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    prescribe(loader, (size, size))
    for x, y, flag in loader:
        optimizer.zero_grad()
        criterion(module(x, flag), y).backward()
        optimizer.step()
