"""Criterions of the caller's own that mix examples by values which pass no gradient, and those that only look like it."""

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

from ghostshard.ghost.checks.gradients import AttributionCheck

# Each is called with outputs [units, 3] and classes [units].


def with_centred_outputs(out, y):
    return F.cross_entropy(out - out.detach().mean(0), y, reduction="none")


def with_the_largest_output(out, y):
    return F.cross_entropy(out / out.detach().abs().max(), y, reduction="none")


def weighted_by_frequency(out, y):
    return F.cross_entropy(out, y, reduction="none") / torch.bincount(y, minlength=3)[y]


def with_centred_targets(out, y):
    return ((out[:, 0] - (y - y.float().mean())) ** 2).tanh()


def with_targets_of_neighbours(out, y):
    return F.cross_entropy(out, y.roll(1), reduction="none")


class Normalised(nn.CrossEntropyLoss):
    def forward(self, out, y):
        return super().forward(out, y) / (y >= 1).sum().clamp(min=1)


def hooked():
    criterion = nn.CrossEntropyLoss()
    criterion.register_forward_pre_hook(lambda _, args: (args[0] - args[0].detach().mean(0), args[1]))
    return criterion


MIXING = {each.__name__: (lambda each=each: each) for each in (
    with_centred_outputs, with_the_largest_output, weighted_by_frequency, with_centred_targets, with_targets_of_neighbours)}  # fmt: skip
MIXING |= {"a_class": Normalised, "a_hook": hooked}


@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["followed", "own batches"])
@pytest.mark.parametrize("criterion", MIXING.values(), ids=MIXING)
def test_a_criterion_that_mixes_examples_is_refused(criterion, options):
    refused = 0
    for seed in range(6):  # the halves are drawn by lot, and may leave a count where it is
        run = Run(criterion=criterion(), **options)
        torch.manual_seed(seed)
        x, y = run.data[:8] if options else next(iter(run.loader))
        try:
            run.backward(x, y)
        except RuntimeError as error:
            assert "an example's loss must not depend on other examples" in str(error)
            refused += 1
        assert not [p for p in run.model.parameters() if p.grad is not None]
    assert refused == 6 if criterion not in (MIXING["weighted_by_frequency"], MIXING["a_class"]) else refused > 2


def test_flattened_rows_belong_to_their_units():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 3)

        def forward(self, x):
            return self.layer(x.unsqueeze(-1))

    for mixing in (False, True):
        flat = lambda out, y: F.cross_entropy(out - (out.detach().mean(0) if mixing else 0), y, reduction="none")
        run = Run(model=Tokens(), criterion=flat)
        x, y = next(iter(run.loader))
        out, y = run.module(x), y.repeat_interleave(6)
        loss = run.criterion(out.view(-1, 3), y, shape=out.shape)
        if not mixing:
            loss.backward()
            continue
        with pytest.raises(RuntimeError, match="an example's loss"):
            loss.backward()


class Counting(nn.Module):
    """Warms up, draws coins, and keeps an average."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen = 0, []
        self.register_buffer("average", torch.zeros(()))

    def forward(self, out, y):
        self.calls += 1
        self.average = 0.5 * self.average + self.calls
        return F.cross_entropy(F.dropout(out, 0.3), y, reduction="none") * self.calls * self.average


def one_by_one(out, y):
    return torch.stack([F.cross_entropy(one, two) for one, two in zip(out, y)])


def in_blocks(out, y):
    lengths = torch.ones(len(y), dtype=torch.int64)
    return F.ctc_loss(out.log_softmax(-1).unsqueeze(0), y[:, None] % 2 + 1, lengths, lengths, reduction="none")


def with_weights_of_classes(out, y):
    return F.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 3.0]), reduction="none")


APART = {"counting": Counting, "one by one": lambda: one_by_one, "blocks": lambda: in_blocks, "weights": lambda: with_weights_of_classes}


@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["followed", "own batches"])
@pytest.mark.parametrize("criterion", APART.values(), ids=APART)
def test_a_criterion_that_keeps_examples_apart_is_taken(criterion, options, monkeypatch):
    monkeypatch.setattr(AttributionCheck, "again", 1)
    run = Run(criterion=criterion(), **options)
    batches = [run.data[8 * i : 8 * i + 8] for i in range(5)] if options else run.loader
    for x, y in batches:
        run.step(x, y)
    assert run.charged == 5
    if isinstance(run.criterion.criterion, Counting):
        assert run.criterion.criterion.calls == 5  # the check leaves no trace


def test_class_weights_beside_as_many_units_are_constants():
    weighted = lambda out, y, weight: F.cross_entropy(out, y, weight=weight, reduction="none")
    run = Run(criterion=weighted, draws=(3, 3))
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.criterion(run.module(x), y, torch.ones(3)).backward()
        run.optimizer.step()


def test_torchs_own_criterions_are_not_called_again(monkeypatch):
    monkeypatch.setattr(AttributionCheck, "again", 1)
    calls = []
    monkeypatch.setattr(nn.BCEWithLogitsLoss, "forward", lambda self, *a: calls.append(1) or F.binary_cross_entropy_with_logits(*a, reduction="none"))
    run = Run(model=nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), criterion=nn.BCEWithLogitsLoss())
    for x, y in run.loader:
        run.step(x, y.float())
    assert len(calls) == run.charged == 5


def without_the_largest_losses(out, y):
    losses = F.cross_entropy(out, y, reduction="none")
    return losses * (losses <= losses.detach().quantile(0.9))


@pytest.mark.parametrize("draws", [(8,) * 9, (7, 8, 1, 9, 8, 6, 8, 7, 9)], ids=["of one size", "of several"])
def test_a_criterion_is_repeated_at_later_batches_too(draws, monkeypatch):
    """With one half alone it is passed over in a fifth of the runs; halves are drawn, so one run in twelve may still pass over it."""
    monkeypatch.setattr(AttributionCheck, "more_calls", 8)
    seen = 0
    for seed in range(12):
        run = Run(criterion=without_the_largest_losses, draws=draws)
        torch.manual_seed(seed)
        run.data.tensors = tuple(each[torch.randperm(40)] for each in run.data.tensors)
        try:
            for x, y in run.loader:
                run.step(x, y)
        except RuntimeError as error:
            assert "an example's loss must not depend on other examples" in str(error)
            seen += 1
    assert seen >= 11


def test_later_repetitions_leave_no_trace(monkeypatch):
    monkeypatch.setattr(AttributionCheck, "more_calls", 8)
    run = Run(criterion=Counting(), draws=(8, 7, 1, 0, 9))
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == run.criterion.criterion.calls == 5
