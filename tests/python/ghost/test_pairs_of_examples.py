"""torch's criterions that compare by element, with shapes that broadcast to a loss of each pair of examples."""

import pytest
import torch
from private_run import N, Run
from torch import nn
from torch.utils.data import TensorDataset

ONE = [
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss, nn.KLDivLoss, nn.MultiLabelSoftMarginLoss, nn.SoftMarginLoss,
    nn.HingeEmbeddingLoss, nn.BCEWithLogitsLoss,
]  # fmt: skip


def run_of(criterion, outputs=1, options=None):
    torch.manual_seed(3)
    return Run(data=TensorDataset(torch.randn(N, 6), torch.rand(N).round()), model=nn.Linear(6, outputs), criterion=criterion, **(options or {}))


def refused(run, outputs, targets):
    x, y = next(iter(run.loader)) if run.plain is not run.loader else run.data[:8]
    with pytest.raises(ValueError, match="losses are of pairs of examples.*Give both one shape"):
        run.criterion(outputs(run.module(x)), targets(y))


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("kind", ONE)
@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["followed", "own batches"])
def test_outputs_of_one_column_do_not_meet_all_targets(kind, options):
    refused(run_of(kind(), options=options), lambda out: out, lambda y: y)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("targets", [lambda y: y[None], lambda y: torch.from_numpy(y.numpy())], ids=["along the columns", "by NumPy"])
def test_wherever_the_targets_rows_are(targets):
    refused(run_of(nn.MSELoss()), lambda out: out, targets)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_as_many_columns_as_examples_are_no_rows():
    refused(run_of(nn.MSELoss(), outputs=8), lambda out: out, lambda y: y)


def test_embeddings_of_all_pairs():
    run = run_of(nn.TripletMarginLoss(), outputs=4)
    x, _ = next(iter(run.loader))
    one, two = run.module(x), run.module(-x)
    with pytest.raises(ValueError, match="losses are of pairs of examples"):
        run.criterion(one[:, None], two[None], one[:, None])


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [(lambda out: out[:, 0], lambda y: y), (lambda out: out, lambda y: y[:, None]), (lambda out: out, lambda y: torch.zeros(3)), (lambda out: out, lambda y: y[:, None].expand(-1, 3))],
    ids=["one column", "one target for all columns", "constants", "alike"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_rows_that_meet_their_own_alone_are_taken(outputs, targets):
    run = run_of(nn.MSELoss(), outputs=3)
    for x, y in run.loader:
        run.criterion(outputs(run.module(x)), targets(y)).backward()
        run.optimizer.step()
    assert run.charged == 5


def test_rows_that_lie_across_are_told_where():
    run = Run(data=TensorDataset(torch.randn(N, 6), torch.rand(N, 8)), model=nn.Linear(6, 8), criterion=nn.BCEWithLogitsLoss())
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match=r"of shapes \(8, 8\) and \(8, 8\) the examples' rows lie along dimensions 0 and 1. Turn one of them"):
        run.criterion(run.module(x), y.T)


def test_weights_of_one_column_do_not_meet_all_losses():
    run = Run()
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match=r"of each pair of them: losses \[8\] met a tensor \[8, 1\], which broadcasts. Give it one extent"):
        (run.criterion(run.module(x), y) * torch.rand_like(x[:, :1])).backward()
