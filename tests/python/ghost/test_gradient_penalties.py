"""A penalty on gradients has no example's own gradient here: it is refused, and a difference of two forwards takes its place."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import BATCH, Run
from torch import nn
from torch.nn import functional as F

CLIP, H = 0.1, 1e-2
IN_ITS_PLACE = "take a difference of two forwards in its place"


def model_of():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def run_of(**options):
    return Run(model=model_of(), draws=(4, 3, 0, 5, 1), noise=0.0, criterion=nn.CrossEntropyLoss(), **options)


def of_inputs(run, x, y):
    x = x.clone().requires_grad_()
    outputs = run.module(x)
    (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    return run.criterion(outputs, y) + gradient.square().sum(1)


def of_the_batch_itself(run, x, y):
    outputs = run.module(x.requires_grad_())
    (gradient,) = torch.autograd.grad(outputs.sum(), [x], None, True, True)
    return run.criterion(outputs, y) + gradient.norm(dim=1)


def of_weights(run, x, y):
    loss = run.criterion(run.module(x), y)
    gradients = torch.autograd.grad(loss.loss_per_sample.sum(), list(run.model.parameters()), create_graph=True)
    return loss + sum(each.square().sum() for each in gradients)


def of_weights_to_look_at(run, x, y):
    loss = run.criterion(run.module(x), y)
    torch.autograd.grad(loss.loss_per_sample.sum(), list(run.model.parameters()), retain_graph=True)
    return loss


class Of:
    """A backward that would keep its graph."""

    def __init__(self, loss):
        self.backward = lambda: loss.backward(create_graph=True)


def by_a_backward(run, x, y):
    return Of(run.criterion(run.module(x), y))


@pytest.mark.parametrize("form", [of_inputs, of_the_batch_itself, of_weights, of_weights_to_look_at, by_a_backward], ids=lambda form: form.__name__)
def test_the_sentence_says_what_to_do(form):
    run = run_of()
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match=IN_ITS_PLACE):
        form(run, x, y).backward()


def test_it_does_of_batches_that_nobody_follows():
    run = run_of(own_batches=True, allow_vouched=True)
    with pytest.raises(RuntimeError, match=IN_ITS_PLACE):
        of_inputs(run, torch.randn(4, 6), torch.randint(3, (4,))).backward()


def test_a_difference_of_two_forwards_is_each_examples_own():
    run, v = run_of(), torch.randn(1, 6, generator=torch.Generator().manual_seed(4))

    def alone(m, batch):
        outputs = m(batch[0])
        return F.cross_entropy(outputs, batch[1]) + 0.1 * ((m(batch[0] + H * v.double()) - outputs) / H).square().sum()

    for drawn, (x, y) in zip((4, 3, 0, 5, 1), run.loader, strict=True):
        before = copy.deepcopy(run.model)
        run.optimizer.zero_grad()
        outputs = run.module(x)
        (run.criterion(outputs, y) + 0.1 * ((run.module(x + H * v) - outputs) / H).square().sum(1)).backward()
        run.optimizer.step()
        if drawn:
            expected = oracle.clipped_sum(before, alone, [tuple(each[:drawn] for each in run.data.tensors)], CLIP)
            found = {name: p.grad * BATCH for name, p in run.model.named_parameters()}
            assert oracle.worst_difference(found, expected) < 100 * SUM_TOLERANCE  # the difference of two forwards in float32, divided by H


def test_it_is_on_average_the_squared_norm():
    torch.manual_seed(5)
    model, x = model_of().double(), torch.randn(6).double()
    jacobian = torch.autograd.functional.jacobian(model, x)
    v = torch.randn(20000, 6).double()
    found = ((model(x + H * v) - model(x)) / H).square().sum(1).mean()
    assert abs(found - jacobian.square().sum()) < 0.05 * jacobian.square().sum()


def test_a_public_models_gradient_may_be_an_input():
    """It is no private forward that autograd goes through."""
    run = run_of()
    teacher = model_of().requires_grad_(False)
    for x, y in run.loader:
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            for each in torch.autograd.grad(teacher(leaf).sum() if len(x) else leaf.sum(), leaf, create_graph=True):
                assert each.shape == x.shape
        run.step(x, y)
