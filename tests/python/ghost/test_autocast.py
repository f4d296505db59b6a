"""torch.autocast in bfloat16: outputs are the model's own, and autocast's own values are clipped."""

import copy

import pytest
import torch
from models import CASES, Language
from opacus.layers import DPGRU, DPLSTM, DPRNN
from private import Private
from torch import nn
from torch.nn import functional

BY_NAME = {case.name: case for case in CASES}
NAMES = ["mlp", "language_tied", "language_untied", "conv1d", "conv2d", "conv2d_few_places", "conv3d_in_groups", "layer_called_twice",
         "layer_norm_of_2_extents", "parameters_beside_children", "layer_without_a_rule", "gemma_norm"]  # fmt: skip


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def setting(name):
    torch.manual_seed(7)
    case = BY_NAME[name]
    model = case.build()
    return case, model, case.batches()[0]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_the_models_own(name):
    _, model, batch = setting(name)
    private = Private(copy.deepcopy(model), 1.0)
    with autocast():
        expected, found = model(batch[0]), private.module(batch[0])
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_sum_is_that_of_autocasts_own_gradients(name):
    """One example at a time, under autocast. It rounds each weight gradient to bfloat16 once more, which we do not: 2^-9 of
    a value; and roundings of intermediate gradients, 2^-9 each, may fall otherwise in another batch."""
    case, model, batch = setting(name)
    private = Private(copy.deepcopy(model), 1e6)
    with autocast():
        losses = case.loss(private.module, batch)
    private.engine.backward(losses.float())
    found = private.released()
    for i in range(len(batch[0])):
        with autocast():
            loss = case.loss(model, tuple(value[i : i + 1] for value in batch))
        loss.float().sum().backward()  # .grad adds up
    scale = max(float(p.grad.abs().max()) for p in model.parameters())
    for tensor_name, p in model.named_parameters():
        assert float((found[tensor_name] - p.grad).abs().max()) < 8 * 2**-9 * scale, tensor_name


@pytest.mark.parametrize("name", NAMES)
def test_no_example_exceeds_the_clip_norm(name):
    case, model, batch = setting(name)
    private = Private(model, 1e-3)
    for i in range(len(batch[0])):
        with autocast():
            losses = case.loss(private.module, tuple(value[i : i + 1] for value in batch))
        private.engine.backward(losses.float())
        moved = torch.sqrt(sum(value.double().square().sum() for value in private.released().values()))
        assert 0.99e-3 < float(moved) <= 1e-3 * (1 + 1e-6)


class Recurrent(nn.Module):
    """Its recurrent layer gets what a linear layer gave, which autocast has rounded; or the batch itself."""

    def __init__(self, kind, below):
        super().__init__()
        self.below, self.layer, self.head = nn.Linear(6, 6) if below else nn.Identity(), kind(6, 5, num_layers=2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(self.below(x))[0].mean(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("kind", [DPLSTM, DPGRU, DPRNN, nn.LSTM])
def test_recurrent_layers_take_what_autocast_has_rounded(kind, below, dtype):
    if kind is nn.LSTM and dtype == torch.float16:
        pytest.skip("torch's own LSTM has no float16 on a CPU")
    torch.manual_seed(7)
    model, (x, y) = Recurrent(kind, below), (torch.randn(4, 5, 6), torch.randint(0, 3, (4,)))
    private, clip_norm = Private(copy.deepcopy(model), 1e6), 1e-3
    with torch.autocast("cpu", dtype):
        expected, found = model(x), private.module(x)
        losses = functional.cross_entropy(found.float(), y, reduction="none")
    assert found.dtype == expected.dtype and torch.allclose(found.float(), expected.float(), atol=2e-2)
    private.engine.backward(losses)
    functional.cross_entropy(expected.float(), y, reduction="sum").backward()
    sums = private.released()
    scale = max(float(p.grad.abs().max()) for p in model.parameters())
    assert all(float((sums[name] - p.grad).abs().max()) < 6e-2 * scale for name, p in model.named_parameters())
    clipped = Private(model, clip_norm)
    with torch.autocast("cpu", dtype):
        losses = functional.cross_entropy(clipped.module(x[:1]).float(), y[:1], reduction="none")
    clipped.engine.backward(losses)
    moved = torch.sqrt(sum(value.double().square().sum() for value in clipped.released().values()))
    assert 0.99 * clip_norm < float(moved) <= clip_norm * (1 + 1e-6)


def test_tokens_that_cancel_stay_within_the_clip_norm():
    """Fault P6: gradients of tokens that cancel, so that rounding is larger than the rest."""
    torch.manual_seed(7)
    private = Private(Language(tied=False), 1e-3)
    ids = torch.full((1, 8), 3)
    with autocast():
        logits = private.module(ids)
        losses = functional.cross_entropy(logits[:, :-1].transpose(1, 2).float(), ids[:, 1:], reduction="none")
        signs = torch.tensor([1.0, -1, 1, -1, 1, -1, 1])
    private.engine.backward((losses * signs).sum(1))
    moved = torch.sqrt(sum(value.double().square().sum() for value in private.released().values()))
    assert float(moved) <= 1e-3 * (1 + 1e-6)
