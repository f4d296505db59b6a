"""Pictures that a model cuts into windows, [units · windows, places, d], which attend within themselves."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from torch import nn
from torch.nn import functional as F

SIDE, WINDOW, WIDTH = 4, 2, 6  # four windows


class Attention(nn.Module):
    """Queries, keys and values of one product, taken apart."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None):
        rows, places, _ = x.shape
        q, k, v = self.qkv(x).reshape(rows, places, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, places, WIDTH))


class Masked(Attention):
    """With a parameter of its own, and a mask for each window."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(2, WINDOW**2, WINDOW**2))

    def forward(self, x, mask):
        rows, places, _ = x.shape
        q, k, v = self.qkv(x).reshape(rows, places, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1) + self.bias).view(-1, len(mask), 2, places, places) + mask[:, None]
        return self.proj((scores.flatten(0, 1).softmax(-1) @ v).transpose(1, 2).reshape(rows, places, WIDTH))


class Windows(nn.Module):
    def __init__(self, attention, mask=None, shift=0):
        super().__init__()
        self.below, self.attention, self.out, self.mask, self.shift = nn.Linear(WIDTH, WIDTH), attention, nn.Linear(WIDTH, 3), mask, shift

    def cut(self, x):
        n = SIDE // WINDOW
        return x.view(-1, n, WINDOW, n, WINDOW, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW**2, WIDTH)

    def forward(self, x):
        x = self.cut(torch.roll(self.below(x), (self.shift, self.shift), (1, 2)))
        x = x + self.attention(x, self.mask(x) if callable(self.mask) else self.mask)
        return self.out(x.view(-1, SIDE**2, WIDTH).mean(1))


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def batch(units):
    return torch.randn(units, SIDE, SIDE, WIDTH), torch.randint(0, 3, (units,))


@pytest.mark.parametrize("units", [[5], [4], [3, 4, 2]], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_windows_are_exact(units, masked):
    """Also where there are as many windows as units."""
    torch.manual_seed(3)
    mask = torch.where(torch.rand(4, WINDOW**2, WINDOW**2) < 0.3, -100.0, 0.0)
    model = Windows(Masked(), mask, shift=1) if masked else Windows(Attention(), shift=-1)
    batches = [batch(each) for each in units]
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, batches, 0.5)
    assert all(float(value.abs().max()) > 0 for name, value in expected.items() if "bias" not in name)
    assert oracle.worst_difference(Private(model, 0.5).step(loss, batches), expected) < SUM_TOLERANCE


def test_a_mask_of_each_unit_is_not_taken_for_one_of_windows():
    torch.manual_seed(3)
    of_units = lambda x: x.detach().view(-1, SIDE**2, WIDTH).mean((1, 2))[:, None, None].expand(-1, WINDOW**2, WINDOW**2).tril()
    with pytest.raises((RuntimeError, ValueError)):
        Private(Windows(Masked(), of_units), 0.5).step(loss, [batch(4)])


class Mixes(Attention):
    """Rows in another order are taken apart alike."""

    def forward(self, x, mask=None):
        rows, places, _ = x.shape
        x = self.qkv(x).view(4, rows // 4, places, 3, WIDTH).permute(3, 1, 0, 2, 4).reshape(3, rows, places, WIDTH)
        return self.proj(x.unbind(0)[2])


def test_rows_that_were_mixed_before_they_are_taken_apart_are_refused():
    torch.manual_seed(3)
    with pytest.raises((RuntimeError, ValueError)):
        Private(Windows(Mixes()), 0.5).step(loss, [batch(3)])


def test_windows_of_a_frozen_layer_s_output_need_a_graph_and_the_sentence_says_how():
    torch.manual_seed(3)
    model = Windows(Attention())
    model.below.requires_grad_(False)
    batch = (torch.randn(5, SIDE, SIDE, WIDTH), torch.randint(0, 3, (5,)))
    with pytest.raises(ValueError, match="no graph shows whose its rows are.*register_forward_hook"):
        Private(copy.deepcopy(model), 0.5).step(loss, [batch])
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [batch], 0.5)
    model.below.register_forward_hook(lambda layer, args, output: output.requires_grad_())
    assert oracle.worst_difference(Private(model, 0.5).step(loss, [batch]), expected) < SUM_TOLERANCE
