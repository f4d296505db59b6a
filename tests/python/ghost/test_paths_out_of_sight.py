"""A model or a criterion that goes another way later, sent there by something that no look at modules, settings and names finds: the operations that it runs tell."""

import collections
import contextvars
import functools
import itertools
import multiprocessing
import os
import random
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine, _native

N, STEPS, FIRST = 64, 6, 3  # FIRST: the step before which something is set
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
NEVER = "an example's output must not"
PUT_BACK = "is another than it was in the forward of this batch"


forwards = itertools.count()  # of all models; a number in sight would be one that changes


def forwards_of(work):
    before = next(forwards)
    work()
    return next(forwards) - before - 1


def mix(h):
    return h + 0.5 * h.detach().mean(0)


class Helper(nn.Module):
    """None of the model's."""

    mixes = False

    def forward(self, h):
        return mix(h) if self.mixes else h


def by_default(h, mixes=False):
    return mix(h) if mixes else h


helper, event, of_thread, flag = Helper(), threading.Event(), threading.local(), torch.zeros(1)
variable, shared_value = contextvars.ContextVar("mixes", default=False), multiprocessing.Value("b", 0)
queue, words, large = collections.deque([False]), set(), dict.fromkeys(range(100), False)
stack = []  # as context managers keep one


def of_words(on):
    (words.add if on else words.discard)("mixes")


def of_the_environment(on):
    os.environ["MIXES"] = str(int(on))


def of_a_stack(on):
    stack.append(on) if on else stack.clear()


SWITCHES = {
    "a module beside the model": (lambda: helper.mixes, lambda on: setattr(helper, "mixes", on)),
    "an event": (event.is_set, lambda on: event.set() if on else event.clear()),
    "a thread's": (lambda: getattr(of_thread, "mixes", False), lambda on: setattr(of_thread, "mixes", on)),
    "a tensor": (lambda: bool(flag.item()), lambda on: flag.fill_(float(on))),
    "a context's": (variable.get, variable.set),
    "a value of all processes": (lambda: shared_value.value, lambda on: setattr(shared_value, "value", int(on))),
    "a deque": (lambda: queue[0], lambda on: queue.__setitem__(0, on)),
    "a set": (lambda: "mixes" in words, of_words),
    "a large dict": (lambda: large[7], lambda on: large.__setitem__(7, on)),
    "a variable of the environment": (lambda: os.environ.get("MIXES") == "1", of_the_environment),
    "a stack": (lambda: bool(stack) and stack[-1], of_a_stack),
    "a seed": (lambda: random.random() < 0.5, lambda on: random.seed(1 if on else 0)),  # 0.13, 0.84
}


@pytest.fixture(params=SWITCHES)
def switch(request):
    is_on, put = SWITCHES[request.param]
    put(False)
    yield is_on, put
    put(False)


class Model(nn.Module):
    def __init__(self, act, dropout=0.0):
        super().__init__()
        self.a, self.b, self.dropout, self.act = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(dropout), act

    def forward(self, x):
        next(forwards)
        return self.b(self.dropout(self.act(self.a(x))))


def train(model, before=lambda step: None, after_forward=lambda: None, steps=STEPS, criterion=None, mode="ghost"):
    torch.manual_seed(0)
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=criterion or nn.CrossEntropyLoss(), grad_sample_mode=mode,
    )  # fmt: skip
    batches = (batch for _ in range(99) for batch in loader)
    for step in range(steps):
        x, y = next(batches)
        optimizer.zero_grad()
        before(step)
        out = module(x)
        after_forward()
        criterion(out, y).backward()
        optimizer.step()


def switched(switch):
    is_on, _ = switch
    return lambda h: mix(h) if is_on() else h


@pytest.mark.parametrize("first", [FIRST, 0])
@pytest.mark.parametrize("put_back", [False, True], ids=["for good", "for a forward"])
def test_a_model_that_mixes_from_then_on_is_refused(switch, put_back, first):
    _, put = switch
    with pytest.raises(RuntimeError, match=f"{NEVER}|{PUT_BACK}"):
        train(Model(switched(switch)), lambda step: put(step >= first), (lambda: put(False)) if put_back else lambda: None)


@pytest.mark.parametrize("put_back", [False, True], ids=["for good", "for a call"])
def test_so_is_a_criterion(switch, put_back):
    is_on, put = switch

    def own(out, y):
        losses = nn.functional.cross_entropy(out, y, reduction="none")
        losses = losses * (losses.detach().mean() if is_on() else 1)
        if put_back:
            put(False)
        return losses

    with pytest.raises(RuntimeError, match="an example's loss must not|is another than it was"):
        train(Model(nn.ReLU()), lambda step: put(step >= FIRST), criterion=own)


def test_coins_that_fall_in_a_forward_hide_nothing():
    """Outputs of a forward that is made again are the same with dropout, since it begins from the same coins."""
    train(Model(nn.ReLU(), dropout=0.3))
    with pytest.raises(RuntimeError, match=PUT_BACK):
        train(Model(lambda h: mix(h) if event.is_set() else h, dropout=0.3), lambda _: event.set(), event.clear)
    event.clear()


def test_a_function_with_another_default():
    with pytest.raises(RuntimeError, match=NEVER):
        train(Model(lambda h: by_default(h)), lambda step: setattr(by_default, "__defaults__", (step >= FIRST,)))
    by_default.__defaults__ = (False,)


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return mix(h) if event.is_set() else h.clone()

    @staticmethod
    def backward(ctx, g):
        return g


@torch.library.custom_op("ghostshard_tests::own_operator", mutates_args=())
def own_operator(h: torch.Tensor) -> torch.Tensor:
    return OwnFunction.forward(None, h)


own_operator.register_autograd(OwnFunction.backward)


@pytest.mark.parametrize("act", [OwnFunction.apply, own_operator], ids=["a function", "an operator"])
@pytest.mark.parametrize("put_back", [False, True], ids=["for good", "for a forward"])
def test_within_what_has_a_gradient_of_its_own(act, put_back):
    with pytest.raises(RuntimeError, match=PUT_BACK if put_back else NEVER):
        train(Model(act), lambda step: event.set() if step >= FIRST else None, event.clear if put_back else lambda: None)
    event.clear()


# What a model computes otherwise without harm ---------------------------------------------------------------------------


def tables():
    """One that grows with what is asked of it."""
    table, asked = [torch.ones(())], itertools.count()

    def act(h):
        if next(asked) % 7 == 0 and len(table) < 4:
            table.append((torch.arange(4.0) / 10).cos().outer(torch.ones(3)).sum())
        return h * table[0]

    return act


def skipped():
    return lambda h: h.relu() if random.random() < 0.5 else h.tanh().mul(2)


def experts():
    """Each takes the examples that it is asked to."""

    def act(h):
        chosen, out = h.detach().argmax(1), torch.zeros_like(h)
        for expert in chosen.unique().tolist():
            rows = (chosen == expert).nonzero().flatten()
            out = out.index_add(0, rows, h[rows].tanh() * (1 + expert))
        return out

    return act


def loop():
    """Of so many turns as the largest value says."""

    def act(h):
        for _ in range(int(X.abs().max() * random.random() * 20)):
            h = h.tanh().mul(1.5)
        return h

    return act


@pytest.mark.parametrize(("made", "checks"), [(nn.ReLU, 1), (tables, 6), (skipped, 3), (experts, 12), (loop, 12)])
def test_what_keeps_examples_apart_is_taken_and_looked_at_a_few_times(made, checks):
    """Some ten forwards are one check: of the model once, and of each way that it goes, but of eight and their parts at most."""
    model, steps = Model(made()), 60
    assert steps < forwards_of(lambda: train(model, steps=steps)) < steps + 25 * checks


def test_a_way_that_opens_among_many_is_seen():
    act = loop()
    with pytest.raises(RuntimeError, match=NEVER):
        train(Model(lambda h: mix(act(h)) if event.is_set() else act(h)), lambda step: event.set() if step >= 20 else None, steps=30)
    event.clear()


def test_other_forwards_say_nothing_of_it():
    """In evaluation, of another model, without gradients: their operations are their own."""
    other, model = Model(mix), Model(nn.ReLU())
    module = functools.partial(other, X[:4])
    assert forwards_of(lambda: train(model, lambda _: module())) == STEPS + forwards_of(lambda: train(Model(nn.ReLU())))


def test_a_forward_that_is_interrupted_leaves_nothing_open(monkeypatch):
    interrupted, begun = [], []
    native = _native.load("engine")
    monkeypatch.setattr(native, "begin_trace", lambda begin=native.begin_trace: begun.append(begin()) or begun[-1])

    def act(h):
        if len(interrupted) == 1:
            interrupted.append(True)
            raise KeyboardInterrupt
        return h.relu()

    model = Model(act)

    def twice(step):
        if step == 1:
            interrupted.append(True)
            with pytest.raises(KeyboardInterrupt):
                model(X[:4])

    train(model, twice)
    assert begun and not any(native.end_trace(number) for number in begun)


def test_a_model_within_the_forward_of_another():
    inner = Model(nn.Tanh())
    model = Model(lambda h: h + inner(X[:1]).detach().sum())
    train(model)


# Another dimension ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [lambda h, d: h.softmax(d), lambda h, d: nn.functional.normalize(h, dim=d), lambda h, d: h - h.mean(d, keepdim=True)], ids=["softmax", "normalize", "mean"])
def test_the_same_operations_along_the_batch_are_others(function):
    event.clear()
    try:
        with pytest.raises(RuntimeError, match="must not depend on other examples"):
            train(Model(lambda h: function(h, 0 if event.is_set() else 1)), lambda step: event.set() if step == FIRST else None)
    finally:
        event.clear()


# Errors that are caught -----------------------------------------------------------------------------------------------


def test_what_was_refused_is_refused_again():
    """The signs show once."""

    class Later(nn.Module):
        reduction, share = "mean", 0.0

        def forward(self, out, y):
            losses = nn.functional.cross_entropy(out, y, reduction="none")
            return losses * (1 + self.share * losses.detach().mean())

    criterion, found = Later(), []
    torch.manual_seed(0)
    model = Model(nn.ReLU())
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=criterion, grad_sample_mode="ghost",
    )  # fmt: skip
    batches = (batch for _ in range(99) for batch in loader)
    for step in range(6):
        x, y = next(batches)
        if step == 2:
            criterion.share = 1.0
        optimizer.zero_grad()
        try:
            criterion(module(x), y).backward()
            optimizer.step()
            found.append("taken")
        except RuntimeError as error:
            assert "must not depend on other examples" in str(error)
            found.append("refused")
    assert found == ["taken"] * 2 + ["refused"] * 4


# What the loop makes of outputs -----------------------------------------------------------------------------------------

KINDS = [torch.tanh, torch.sin, torch.sigmoid, torch.exp, torch.relu, torch.erf, torch.cos, torch.atan, torch.asinh]


def looped(of_outputs, steps):
    torch.manual_seed(0)
    model = Model(nn.ReLU())
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip
    batches = (batch for _ in range(99) for batch in loader)
    for step in range(steps):
        x, y = next(batches)
        optimizer.zero_grad()
        criterion(of_outputs(module(x), step), y).backward()
        optimizer.step()


@pytest.mark.parametrize("function", [lambda out, d: out.log_softmax(d), lambda out, d: nn.functional.normalize(out, dim=d), lambda out, d: out - out.mean(d, keepdim=True)])
def test_a_loop_that_goes_along_the_batch_later_is_refused(function):
    with pytest.raises((RuntimeError, ValueError), match="must not depend on other examples"):
        looped(lambda out, step: function(out, 0 if step >= FIRST else 1), FIRST + 2)


def test_many_kinds_of_losses_do_not_hide_another():
    kind = lambda out, step: KINDS[step](out) if step < len(KINDS) else out / out.norm()
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        looped(kind, len(KINDS) + 1)
    looped(lambda out, step: KINDS[step % 2](KINDS[step // 2 % 2](out)), 8)
