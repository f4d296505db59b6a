"""Losses that the engine takes from logits: nn.CrossEntropyLoss and Transformers' losses."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from ghostshard.ghost.cross_entropy import cross_entropy, is_plain


@pytest.mark.parametrize("extents", [(), (7,), (3, 4)], ids=["rows", "texts", "pictures"])
def test_losses_have_the_targets_shape_and_pytorchs_values(extents):
    torch.manual_seed(1)
    x = torch.randn(5, 11, *extents, requires_grad=True)
    y = torch.randint(11, (5, *extents))
    y.view(-1)[0] = -100
    twin = x.detach().double().requires_grad_()
    losses = cross_entropy(x, y)
    expected = functional.cross_entropy(twin, y, reduction="none")
    assert losses.shape == y.shape
    # One rounding of x - max, exp, log, and a sum of 11: far below 64 units in the last place of values below 8.
    torch.testing.assert_close(losses.double(), expected, rtol=0, atol=8 * 64 * 2.0**-24)
    losses.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(x.grad.double(), twin.grad, rtol=0, atol=64 * 2.0**-24)


def test_a_transposed_batch_of_logits_is_read_where_it_stands():
    x = torch.randn(2, 3, 5)
    losses = cross_entropy(x.transpose(1, 2), torch.zeros(2, 3, dtype=torch.long))
    torch.testing.assert_close(losses, -x.log_softmax(-1)[..., 0])


@pytest.mark.parametrize(
    "x, y",
    [
        (torch.randn(4, 3), torch.rand(4, 3)),  # probabilities
        (torch.randn(3), torch.tensor(1)),  # no batch
        (torch.randn(0, 3), torch.zeros(0, dtype=torch.long)),
    ],
    ids=["probabilities", "no_batch", "empty"],
)
def test_other_forms_are_pytorchs(x, y):
    torch.testing.assert_close(cross_entropy(x, y), functional.cross_entropy(x, y, reduction="none"))


def test_a_target_out_of_bounds_is_an_index_error_as_from_pytorch():
    for loss in (cross_entropy, functional.cross_entropy):
        with pytest.raises(IndexError, match="out of bounds"):
            loss(torch.zeros(2, 3), torch.tensor([0, 3]))


def test_only_the_plain_criterion_is_replaced():
    class Own(nn.CrossEntropyLoss):
        pass

    hooked = nn.CrossEntropyLoss()
    hooked.register_forward_hook(lambda *_: None)
    assert is_plain(nn.CrossEntropyLoss(reduction="sum", ignore_index=3))
    for other in (Own(), hooked, nn.CrossEntropyLoss(weight=torch.ones(3)), nn.CrossEntropyLoss(label_smoothing=0.1), nn.NLLLoss()):
        assert not is_plain(other)
