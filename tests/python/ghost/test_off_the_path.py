"""Models, hooks and losses a little off the usual path: each is right, or is refused. (Loops and loaders: test_loops_off_the_path.py.)"""

import pytest
import torch
from opacus.validators.errors import UnsupportedModuleError
from private_run import Run
from torch import nn
from torch.nn import functional as F

from ghostshard.ghost.checks.gradients import AttributionCheck


def passes(run):
    for x, y in run.loader:
        run.step(x, y)


# Models ----------------------------------------------------------------------------------------------------------------


class Kept(nn.Module):
    """A layer, and a buffer that follows from the batch."""

    def __init__(self, used=False):
        super().__init__()
        self.layer, self.used = nn.Linear(6, 3), used
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x):
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * x.mean(0))
        return self.layer(x - (self.average if self.used else 0))


class Queue(nn.Module):
    """Keys of earlier batches (contrastive learning with a memory)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("queue", torch.zeros(16, 3))

    def forward(self, x):
        out = self.layer(x)
        before = self.queue.clone()
        with torch.no_grad():
            self.queue = torch.cat([out.detach(), self.queue])[:16]
        return out @ before.T @ before + out


class Counted(nn.Module):
    """Divides by how many examples there are."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) / len(x)


class Cached(nn.Module):
    """Adds what it gave for the batch before, row by row."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("last", torch.zeros(40, 3))

    def forward(self, x):
        out = self.layer(x) + self.last[: len(x)]
        self.last = F.pad(out.detach(), (0, 0, 0, 40 - len(x)))
        return out


@pytest.mark.parametrize("model", [Kept, lambda: Kept(used=True), Queue, Counted, Cached], ids=["kept", "used", "queue", "counted", "cached"])
def test_models_that_keep_or_count_examples_are_refused(model):
    run = Run(model=model())
    with pytest.raises(RuntimeError, match="buffers follow from examples|must not depend on other examples"):
        passes(run)
    assert run.charged <= 1


class Spun(nn.Module):
    """Buffers that follow from calls, weights and coins alone; two outputs; dropout."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(6, 3), nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("norm", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.norm.copy_(self.layer.weight.detach().norm())
        h = F.dropout(x, 0.3, self.training) + 0.1 * torch.randn_like(x)
        return self.layer(h), {"more": self.other(h)}


def test_two_outputs_and_buffers_of_calls_are_taken(monkeypatch):
    monkeypatch.setattr(AttributionCheck, "again", 1)
    run = Run(model=Spun())
    for x, y in run.loader:
        run.optimizer.zero_grad()
        one, two = run.module(x)
        (run.criterion(one, y) + 0.5 * run.criterion(two["more"], y % 2)).backward()
        run.optimizer.step()
    assert run.charged == run.model.calls == 5


def test_eval_and_train_in_turn_are_taken():
    run = Run(model=nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3)))
    for i, (x, y) in enumerate(run.loader):
        run.module.train(i % 2 == 0)
        run.step(x, y)
        with torch.no_grad():
            run.module(run.data[:7][0])
    assert run.charged == 5


def test_a_path_that_opens_with_a_mode_is_looked_at():
    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x - x.mean(0) if self.training else x)

    run = Run(model=Later())
    run.module.eval()
    run.step(*next(iter(run.loader)))
    run.module.train()
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        passes(run)


# Hooks and functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["forward", "forward_pre", "full_backward"])
def test_hooks_that_come_later_are_looked_at(where):
    run = Run(model=nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)))
    passes(run)
    hooks = {
        "forward": lambda m, a, o: o - o.detach().mean(0), "forward_pre": lambda m, a: (a[0] / a[0].detach().norm(),),
        "full_backward": lambda m, gi, go: (gi[0] / gi[0].norm(),),
    }  # fmt: skip
    getattr(run.model[1], f"register_{where}_hook")(hooks[where])
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        passes(run)
    assert run.charged <= 6


class Normalised(torch.autograd.Function):
    """Its backward looks at all rows."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


class Centred(Normalised):
    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0)


@pytest.mark.parametrize("function", [Normalised, Centred])
@pytest.mark.parametrize("place", ["output", "model"])
def test_backwards_of_ones_own_that_look_at_all_rows_are_refused(function, place):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            out = self.layer(x)
            return function.apply(out) if place == "model" else out

    run = Run(model=Inside())
    x, y = next(iter(run.loader))
    out = run.module(x)
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        run.criterion(function.apply(out) if place == "output" else out, y).backward()
    assert run.charged == 0


def test_a_hook_on_the_outputs_gradient():
    for mixing in (False, True):
        run = Run()
        x, y = next(iter(run.loader))
        out = run.module(x)
        out.register_hook(lambda g: g / g.norm() if mixing else g / (g.norm(dim=1, keepdim=True) + 1e-3))
        loss = run.criterion(out, y)
        if not mixing:
            loss.backward()
            run.optimizer.step()
            continue
        with pytest.raises(RuntimeError, match="must not depend on other examples"):
            loss.backward()


def test_a_penalty_on_gradients_is_refused():
    run = Run()
    x, y = next(iter(run.loader))
    x.requires_grad_(True)
    out = run.module(x)
    with pytest.raises((RuntimeError, ValueError), match="layers a second time"):
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (run.criterion(out, y) + slope.pow(2).sum(1)).backward()
    assert run.charged == 0


def test_calls_by_torch_func_are_refused():
    run = Run()
    x, y = next(iter(run.loader))
    weights = dict(run.model.named_parameters())
    with pytest.raises((RuntimeError, ValueError)):
        run.criterion(torch.func.functional_call(run.model, {key: 2 * value for key, value in weights.items()}, (x,)), y).backward()
    assert run.charged == 0


# Losses ----------------------------------------------------------------------------------------------------------------


def contrastive(out, y):
    return F.cross_entropy(out @ out.detach().T, torch.arange(len(out)), reduction="none")


def counted(out, y):
    return F.cross_entropy(out, y, reduction="none") / len(out)


class Running(nn.Module):
    """Divides by an average of its earlier losses, then counts this one in."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.ones(()))

    def forward(self, out, y):
        losses = F.cross_entropy(out, y, reduction="none")
        divided = losses / self.average
        self.average = 0.9 * self.average + 0.1 * losses.detach().mean()
        return divided


class RunningNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.average = 1.0

    def forward(self, out, y):
        losses = F.cross_entropy(out, y, reduction="none")
        divided = losses / self.average
        self.average = 0.9 * self.average + 0.1 * float(losses.detach().mean())
        return divided


class Centre(Running):
    """DINO's."""

    def forward(self, out, y):
        losses = F.cross_entropy(out - self.average, y, reduction="none")
        self.average.lerp_(out.detach().mean(), 0.1)
        return losses


@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["followed", "own batches"])
@pytest.mark.parametrize("criterion", [lambda: contrastive, lambda: counted, Running, RunningNumber, Centre], ids=["contrastive", "counted", "running", "number", "centre"])
def test_losses_that_count_or_keep_examples_are_refused(criterion, options):
    run = Run(criterion=criterion(), **options)
    x, y = run.data[:8] if options else next(iter(run.loader))
    with pytest.raises(RuntimeError, match="an example's loss must not|keeps numbers or tensors|must not depend on other|takes no other"):
        run.backward(x, y)
    assert run.charged == 0


def test_a_contrastive_loss_in_the_loop_is_refused():
    run = Run(attribution_check=False)
    x, y = next(iter(run.loader))
    out = run.module(x)
    with pytest.raises(ValueError, match="is not known to be of the batch"):
        run.criterion(out @ out.detach().T, torch.arange(len(out))).backward()


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_loss_is_taken():
    run = Run(criterion=torch.compile(lambda out, y: F.cross_entropy(out, y, reduction="none"), backend="eager"))
    passes(run)
    assert run.charged == 5


def divides_by_the_largest(gradient):
    """Of all rows: by some per cent."""
    return gradient / (1 + gradient.abs().max())


def test_a_hook_that_scales_gradients_a_little_by_those_of_others_is_refused():
    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = torch.tanh(self.first(x))
            if h.requires_grad:
                h.register_hook(divides_by_the_largest)
            return self.last(h)

    torch.manual_seed(1)
    run = Run(model=Hooked(), draws=(8,))
    x, y = next(iter(run.loader))
    with pytest.raises(RuntimeError, match="divides by the norm of all or takes their mean"):
        run.backward(x, y)


def test_a_parameter_without_a_shape_is_refused_with_a_sentence():
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(UnsupportedModuleError, match="parameter '0.weight' has no shape yet .*call the model once before make_private"):
        Run(model=model)
    model(torch.zeros(1, 6))
    passes(Run(model=model, draws=(8, 7)))
