"""Several losses whose weights are learnt beside them: formed in the model's forward, and refused outside of it with that sentence."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from private_run import Run
from torch import nn
from torch.nn import functional as F


class Weighted(nn.Module):
    def __init__(self, *, inside):
        super().__init__()
        self.classes, self.value, self.log_variances, self.inside = nn.Linear(6, 3), nn.Linear(6, 1), nn.Parameter(torch.zeros(2)), inside

    def forward(self, x, y=None):
        classes, value = self.classes(x), self.value(x)[:, 0]
        return losses(classes, value, self.log_variances, x, y) if self.inside else (classes, value, self.log_variances)


def losses(classes, value, log_variances, x, y):
    one, two = F.cross_entropy(classes, y, reduction="none"), F.mse_loss(value, x[:, 0], reduction="none")
    return one * torch.exp(-log_variances[0]) + log_variances[0] + two * torch.exp(-log_variances[1]) + log_variances[1]


def test_losses_that_the_forward_forms_train_their_weights():
    torch.manual_seed(3)
    model, batch = Weighted(inside=True), (torch.randn(4, 6), torch.randint(0, 3, (4,)))
    loss = lambda model, batch: model(*batch)
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [batch], 0.5)
    assert float(expected["log_variances"].abs().max()) > 0
    assert oracle.worst_difference(Private(model, 0.5).step(loss, [batch]), expected) < SUM_TOLERANCE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("in_criterion", [False, True])
def test_weights_that_the_model_returns_are_refused_with_the_way_out(in_criterion):
    criterion = (lambda found, x, y: losses(*found, x, y)) if in_criterion else (lambda classes, y: F.cross_entropy(classes, y, reduction="none"))
    run = Run(model=Weighted(inside=False), criterion=criterion)
    with pytest.raises(RuntimeError, match="form each example's loss in its forward"):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            found = run.module(x)
            (run.criterion(found, x, y) if in_criterion else run.criterion(found[0], y) * torch.exp(-found[2][0]) + found[2][0]).backward()
            run.optimizer.step()
