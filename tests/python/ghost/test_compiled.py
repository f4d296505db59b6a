"""What torch.compile made, before or after make_private(): it runs as it was written while a private batch is under way."""

import copy
import gc

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import BATCH, Run
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

pytestmark = pytest.mark.filterwarnings("ignore")
CLIP = 0.1


class Words(nn.Module):
    """Its places are rows that all examples share."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(10, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1))


def compiled(value):
    return torch.compile(value, backend="eager")


def steps_of(run, model, loss_of):
    """How many steps released what a loop over examples gives."""
    steps = 0
    for x, y in run.loader:
        before = copy.deepcopy(model)
        run.optimizer.zero_grad()
        loss_of(run, x, y)
        found = {name: p.grad * BATCH for name, p in model.named_parameters()}
        batch = tuple(value.detach().as_subclass(torch.Tensor) for value in (x, y))
        expected = oracle.clipped_sum(before, lambda m, b: functional.cross_entropy(m(b[0]), b[1]), [batch], CLIP)
        assert oracle.worst_difference(found, expected) < SUM_TOLERANCE
        steps += 1
    return steps


def usual(run, x, y):
    run.backward(x, y)
    run.optimizer.step()


def data():
    torch.manual_seed(2)
    return TensorDataset(torch.randint(0, 20, (40, 5)), torch.randint(0, 3, (40,)))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("wrap_model", [True, False])
def test_a_compiled_model_releases_the_sums_of_the_model(before, wrap_model):
    model = Words()
    run = Run(model=compiled(model) if before else model, data=data(), noise=0.0, wrap_model=wrap_model)
    if not wrap_model:
        run.module = run.model
    if not before:
        run.module = compiled(run.module)
    assert steps_of(run, model, usual) == 5


def test_compiled_parts_of_a_model():
    model = Words()
    model.block.compile(backend="eager")
    assert steps_of(Run(model=model, data=data(), noise=0.0), model, usual) == 5


def test_a_whole_step_that_is_compiled():
    model = Words()
    assert steps_of(Run(model=model, data=data(), noise=0.0), model, compiled(usual)) == 5


@pytest.mark.parametrize("own_batches", [False, True])
def test_batches_of_ones_own(own_batches):
    model = Words()
    run = Run(model=compiled(model), data=data(), noise=0.0, own_batches=own_batches)
    if own_batches:
        run.loader = run.plain
    assert steps_of(run, model, usual) == 5


def test_a_compiled_teacher_is_followed():
    teacher = compiled(nn.Linear(6, 3).requires_grad_(False))
    run = Run(criterion=lambda out, of_teacher: (out - of_teacher).square().sum(1))
    for x, _ in run.loader:
        with torch.no_grad():
            of_teacher = teacher(x)
        run.step(x, of_teacher)
    assert run.charged == 5


def test_a_compiled_function_that_mixes_is_refused():
    centred = compiled(lambda x: x - x.mean(0))
    run = Run()
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="mean joined its examples"):
        run.step(centred(x), y)


def test_functions_are_compiled_again_between_batches():
    """From a step to the next batch, and once a run was given up."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    doubled = torch.compile(lambda x: 2 * x, backend=backend, dynamic=False)
    gc.collect()  # other tests' runs
    run = Run(model=compiled(nn.Linear(6, 3)))
    for i, (x, y) in enumerate(run.loader):
        doubled(torch.ones(2, 2 + i))
        assert len(graphs) == i
        run.step(x, y)
        doubled(torch.ones(3, 2 + i))
        assert len(graphs) == i + 1
    x, y = next(iter(run.loader))
    doubled(torch.ones(4, 50))
    assert len(graphs) == 5
    del run, x, y
    gc.collect()
    doubled(torch.ones(4, 51))
    assert len(graphs) == 6
