"""torch.autocast in bfloat16: outputs are the model's own, and autocast's own values are clipped."""

import copy

import pytest
import torch
from models import CASES, Language
from private import Private
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
