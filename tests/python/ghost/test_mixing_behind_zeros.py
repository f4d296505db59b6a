"""Examples that meet where outputs do not show it at first: behind a head, a gate or an adapter of zeros, in the backward alone, in outputs that are no fractions, within a range that
everybody fills."""

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

GRADIENTS = "gradient must not depend on other examples"
MIXED = "must not depend on other examples"


def trains(model, *, criterion=None, x=None, steps=2):
    """A few steps; RuntimeError if they are refused."""
    run = Run(model=model, **({} if criterion is None else {"criterion": criterion}))
    for _, (batch, y) in zip(range(steps), run.loader):
        run.optimizer.zero_grad()
        run.criterion(run.module(batch if x is None else x(batch)), y).backward()
        run.optimizer.step()


class Behind(nn.Module):
    """middle(h) before a head, or times a gate beside h."""

    def __init__(self, middle, *, head=True, gate=None):
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(6, 6), middle, nn.Linear(6, 3)
        self.gate = None if gate is None else Gate(gate)
        if head:
            nn.init.zeros_(self.head.weight)

    def forward(self, x):
        h = self.first(x)
        m = self.middle(h)
        return self.head(m if self.gate is None else h + self.gate(m))


class Gate(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), size))

    def forward(self, h):
        return self.weight * h


def by_norm(h):
    return h / h.detach().norm()


def own_norm(h):
    return h / h.detach().norm(dim=1, keepdim=True)


BATCH_NORM = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
BEHIND = {
    "a head": lambda middle: Behind(middle), "a gate": lambda middle: Behind(middle, head=False, gate=0.0), "a small gate": lambda middle: Behind(middle, head=False, gate=1e-6),
    "both": lambda middle: Behind(middle, gate=0.0),
}  # fmt: skip


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("middle", [by_norm, BATCH_NORM], ids=["norm of all", "batch norm"])
def test_what_zeros_hide_is_refused(behind, middle):
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=MIXED):
        trains(behind(middle), steps=1)


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_zeros_over_a_model_that_keeps_examples_apart_stay(behind):
    torch.manual_seed(0)
    model = behind(own_norm)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    run = Run(model=model)
    run.backward(*next(iter(run.loader)))
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


# In the backward alone ----------------------------------------------------------------------------------------------


class Straight(torch.autograd.Function):
    """Passes what lies below a threshold of the batch."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.sign()

    @staticmethod
    def backward(ctx, g):
        (h,) = ctx.saved_tensors
        return g * (h.abs() < h.abs().mean())


class ByLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        return g / len(g)


class Own(Straight):
    @staticmethod
    def backward(ctx, g):
        (h,) = ctx.saved_tensors
        return g * (h.abs() < h.abs().mean(1, keepdim=True))


def scaled(h):
    share = h.detach().std() / 2
    return h * share + h.detach() * (1 - share)


def compressed(h):
    """Saved for the backward as eight bits of the batch's range."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t / t.abs().max() * 8).round() * t.abs().max() / 8, lambda t: t):
        return torch.tanh(h)


def hooked(h):
    if h.requires_grad:
        size = h.detach().norm()
        h.register_hook(lambda g: g / size)
    return h


def divided(h):
    """By the norm of all gradients, which are small beside those of the head."""
    if h.requires_grad:
        h.register_hook(lambda g: g / (g.norm() + 1e-6))
    return 1e-3 * h


BACKWARD = {"threshold": Straight.apply, "number": ByLength.apply, "scaled": scaled, "compressed": compressed, "hook": hooked, "norm of gradients": divided}


@pytest.mark.parametrize("middle", BACKWARD.values(), ids=BACKWARD)
def test_a_backward_that_follows_from_the_batch_is_refused(middle):
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=GRADIENTS):
        trains(Behind(middle, head=False), steps=1)


def test_small_gradients_are_looked_at_beside_large_ones(monkeypatch):
    """Where gradients are not compared with other inputs, as of sharded models."""
    monkeypatch.setattr("ghostshard.ghost.checks.values.mixes_gradients", lambda *_: None)

    def divided(h):
        if h.requires_grad:
            h.register_hook(lambda g: 1e-3 * g / g.norm())
        return h

    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=GRADIENTS):
        trains(Behind(divided, head=False), steps=1)


@pytest.mark.parametrize("middle", [Own.apply, own_norm], ids=["threshold of its own", "norm of its own"])
def test_a_backward_of_ones_own_is_taken(middle):
    torch.manual_seed(0)
    trains(Behind(middle, head=False))


class Weighed(nn.Module):
    """The value is each example's own; what goes backward is not."""

    reduction = "mean"

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, outputs, y):
        losses = F.cross_entropy(outputs, y, reduction="none")
        return self.of(losses) * losses + ((1 - self.of(losses)) * losses).detach()


class Divided(nn.Module):
    reduction = "mean"

    def forward(self, outputs, y):
        return ByLength.apply(F.cross_entropy(outputs, y, reduction="none"))


@pytest.mark.parametrize("criterion", [Weighed(lambda losses: losses.detach() / losses.detach().mean()), Divided()], ids=["weights", "number"])
def test_a_criterions_backward_too(criterion):
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=GRADIENTS):
        trains(nn.Linear(6, 3), criterion=criterion, steps=1)


def test_a_criterion_may_weigh_each_loss_by_itself():
    torch.manual_seed(0)
    trains(nn.Linear(6, 3), criterion=Weighed(lambda losses: losses.detach().sigmoid()))


# Outputs, and ranges --------------------------------------------------------------------------------------------------


class Labels(nn.Module):
    """Logits, and something of the batch or of each example that is no fraction."""

    def __init__(self, labels):
        super().__init__()
        self.first, self.labels = nn.Linear(6, 3), labels

    def forward(self, x):
        out = self.first(x)
        return out, self.labels(out.detach())


def hardest(out):
    return out.amax(1) > out.amax(1).median()


def ranks(out):
    return out[:, 0].argsort().argsort()


LABELS = {"mask": hardest, "ranks": ranks, "complex": lambda out: torch.fft.fft(out) / out.norm()}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_outputs_of_any_kind_are_compared(labels):
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=MIXED):
        run_of_labels(labels, 1)


@pytest.mark.parametrize("labels", [lambda out: out.argmax(1), lambda out: out.amax(1) > 0, lambda out: torch.fft.fft(out)], ids=["class", "mask", "complex"])
def test_those_of_each_example_are_taken(labels):
    torch.manual_seed(0)
    run_of_labels(labels, 2)


def run_of_labels(labels, steps):
    run = Run(model=Labels(labels))
    for _, (x, y) in zip(range(steps), run.loader):
        run.optimizer.zero_grad()
        run.criterion(run.module(x)[0], y).backward()
        run.optimizer.step()


class Ranged(nn.Module):
    def __init__(self, range_of):
        super().__init__()
        self.first, self.range_of = nn.Linear(6, 3), range_of

    def forward(self, x):
        return self.first(x / self.range_of(x))


RANGES = {"largest": lambda x: x.abs().max(), "difference": lambda x: x.max() - x.min(), "square": lambda x: x.square().mean().sqrt()}


@pytest.mark.parametrize("clamped", [False, True], ids=["", "clamped"])
@pytest.mark.parametrize("range_of", RANGES.values(), ids=RANGES)
def test_a_range_of_all_is_refused_whoever_fills_it(range_of, clamped):
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=MIXED):
        trains(Ranged(range_of), x=(lambda x: x.clamp(-1, 1)) if clamped else None, steps=1)


class WithDropout(nn.Module):
    """Divides by how many there are, in training."""

    def __init__(self):
        super().__init__()
        self.first, self.dropout = nn.Linear(6, 3), nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(self.first(x)) * (len(x) / 8 if self.training else 1)


def test_a_number_of_examples_beside_dropout_is_seen():
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=MIXED):
        trains(WithDropout(), steps=1)


# What one forward sets, and another uses ------------------------------------------------------------------------------


class Centred(nn.Module):
    """Forwards that are told to set the mean of their batch; those that are not take it off."""

    def __init__(self, of=lambda h: h.mean(0)):
        super().__init__()
        self.first, self.head, self.of, self.sets, self.centre, self.seen = nn.Linear(6, 6), nn.Linear(6, 3), of, False, torch.zeros(6), 0

    def forward(self, x):
        h = self.first(x)
        self.seen += 1
        if self.sets:
            self.centre = self.of(h.detach())
        return self.head(h - (0 if self.sets else self.centre))


def twice(run, *, gradients, raises):
    def step(x, y):
        run.optimizer.zero_grad()
        run.model.sets = True
        with torch.set_grad_enabled(gradients):
            first = run.module(x)
        run.model.sets = False
        losses = run.criterion(run.module(x), y)
        (losses + run.criterion(first, y) if gradients else losses).backward()
        run.optimizer.step()

    for _, batch in zip(range(3), run.loader):
        if raises:
            with pytest.raises(RuntimeError, match="the model keeps what follows from examples"):
                step(*batch)
            return
        step(*batch)


@pytest.mark.parametrize("gradients", [False, True])
def test_what_a_forward_sets_of_its_batch_may_not_be_used_by_the_next(gradients):
    torch.manual_seed(0)
    twice(Run(model=Centred()), gradients=gradients, raises=True)


@pytest.mark.parametrize("gradients", [False, True])
def test_what_it_sets_of_none_may(gradients):
    torch.manual_seed(0)
    twice(Run(model=Centred(lambda h: torch.full((6,), 0.5))), gradients=gradients, raises=False)


class Heads(nn.Module):
    """A list that modules share: one puts its output there, the model takes it from there, in the same forward."""

    def __init__(self):
        super().__init__()
        self.heads = [torch.zeros(1, 6)]
        self.first, self.last = Puts(self.heads), nn.Linear(6, 3)

    def forward(self, x):
        self.first(x)
        return self.last(self.heads[0])


class Puts(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads, self.layer = heads, nn.Linear(6, 6)

    def forward(self, x):
        self.heads[0] = torch.tanh(self.layer(x))


def test_a_list_that_modules_share_within_a_forward_is_none():
    torch.manual_seed(0)
    trains(Heads(), steps=3)


# Coins ------------------------------------------------------------------------------------------------------------------


class LeavesOut(nn.Module):
    """A label in four is left out by coins, behind a gate so small that outputs hardly show it."""

    def __init__(self):
        super().__init__()
        self.first, self.table, self.gate = nn.Linear(6, 3), nn.Embedding(2, 3), 1e-6

    def forward(self, x):
        labels = (torch.rand(len(x)) > 0.25).long()
        return self.first(x) + self.gate * self.table(labels)


def test_coins_for_each_example_are_its_own():
    for seed in range(8):
        torch.manual_seed(seed)
        trains(LeavesOut())


# Batches of one ----------------------------------------------------------------------------------------------------------


class Remembers(nn.Module):
    """Takes the mean of what it saw off, once it saw so many."""

    def __init__(self, full):
        super().__init__()
        self.first, self.head, self.full, self.seen = nn.Linear(6, 6), nn.Linear(6, 3), full, []

    def forward(self, x):
        h = self.first(x)
        out = h - torch.stack(self.seen[-20:]).mean(0) if len(self.seen) >= self.full else h
        if self.training:
            self.seen.extend(h.detach().unbind(0))
        return self.head(out)


def test_a_memory_that_is_used_later_is_seen_in_batches_of_one():
    torch.manual_seed(0)
    run = Run(model=Remembers(12), draws=(1,) * 30)
    with pytest.raises(RuntimeError, match="the model keeps what follows from examples"):
        for x, y in run.loader:
            run.step(x, y)
