"""Functions, methods and flags that a program puts in the place of others while it trains: what the model's code names is looked at anew, and so is what a criterion's, a
collate_fn's and a data set's does."""

import pickle
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from ghostshard import PrivacyEngine
from ghostshard.ghost.checks.gradients import AttributionCheck
from ghostshard.loaders.set_so import Settings

HERE = sys.modules[__name__]
N = 64
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
mixes, weight, calls, tanh = False, 0.0, 0, None


def mix(h):
    return h + 0.5 * h.detach().mean(0)


def itself(h):
    return h


def picked(i):
    return i


class Model(nn.Module):
    flag = False

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def between(self, h):
        return itself(h)

    def forward(self, x):
        global calls
        calls += 1
        h = F.gelu(torch.tanh(self.a(x)))
        h = self.between(h) + weight * h.detach().mean(0)
        return self.b(mix(h) if self.flag or mixes else h)


class Items(Dataset):
    flag = False

    def __len__(self):
        return N

    def __getitem__(self, i):
        x = X[picked(i)]
        return (x + X[(i + 1) % N] if self.flag or mixes else x), int(Y[i])


class Collate:
    flag = False

    def __call__(self, examples):
        x, y = default_collate(examples)
        return (mix(x) if self.flag or mixes else itself(x)), y


class Criterion(nn.Module):
    flag, reduction = False, "mean"

    def forward(self, out, y):
        losses = itself(F.cross_entropy(out, y, reduction="none"))
        return losses * losses.detach().mean() if self.flag or mixes else losses


@dataclass
class Flags:
    mixes: bool = False


def step_of(model=None, data=None, collate=None, criterion=None):
    torch.manual_seed(0)
    model = model or nn.Linear(6, 3)
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data or TensorDataset(X, Y), batch_size=16, collate_fn=collate),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=criterion or nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    batches = (batch for _ in range(99) for batch in loader)

    def step():
        x, y = next(batches)
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()

    return step


GELU, TANH, ENTROPY, ITEM = F.gelu, torch.tanh, F.cross_entropy, Items.__getitem__
MIXED, OF_LOSSES, OF_BATCHES, OF_ITEMS = "an example's output must not", "an example's loss must not", "collate_fn mixes", "the data set mixes"
squared = lambda losses: losses * losses.detach().mean()
REPLACED = {
    "torch's function": (Model, F, "gelu", lambda h: mix(GELU(h))), "torch's own": (Model, torch, "tanh", lambda h: mix(TANH(h))),
    "a method": (Model, Model, "between", lambda self, h: mix(h)), "a forward": (Model, Model, "forward", lambda self, x: mix(self.b(self.a(x)))),
    "a function beside it": (Model, HERE, "itself", mix), "a flag of the class": (Model, Model, "flag", True), "a flag beside it": (Model, HERE, "mixes", True),
    "a number beside it": (Model, HERE, "weight", 0.5),
    "a flag of items": (Items, Items, "flag", True), "a flag beside items": (Items, HERE, "mixes", True), "__getitem__": (Items, Items, "__getitem__", lambda self, i: (X[i] + X[i - 1], 0)),
    "a function of items": (Items, HERE, "picked", lambda i: i // 4),
    "a flag of a collate_fn": (Collate, Collate, "flag", True), "a flag beside a collate_fn": (Collate, HERE, "mixes", True), "its function": (Collate, HERE, "itself", mix),
    "__call__": (Collate, Collate, "__call__", lambda self, examples: (mix(default_collate(examples)[0]), default_collate(examples)[1])),
    "a flag of a criterion": (Criterion, Criterion, "flag", True), "a flag beside a criterion": (Criterion, HERE, "mixes", True), "a criterion's function": (Criterion, HERE, "itself", squared),
    "a criterion's torch": (Criterion, F, "cross_entropy", lambda *args, **kwargs: squared(ENTROPY(*args, **kwargs))),
}  # fmt: skip


@pytest.mark.parametrize("of, where, name, other", REPLACED.values(), ids=REPLACED)
def test_what_mixes_from_then_on_is_refused(of, where, name, other):
    step = step_of(**{{Model: "model", Items: "data", Collate: "collate", Criterion: "criterion"}[of]: of()})
    for _ in range(12):
        step()
    wrong = {Model: MIXED, Items: OF_ITEMS, Collate: OF_BATCHES, Criterion: OF_LOSSES}[of]
    with mock.patch.object(where, name, other), pytest.raises((RuntimeError, ValueError), match=wrong):
        for _ in range(3):
            step()


def test_what_keeps_examples_apart_is_taken():
    step = step_of(Model(), Items(), Collate(), Criterion())
    for where, name, other in ((F, "gelu", lambda h: GELU(h) / 2), (Model, "between", lambda self, h: 2 * h), (HERE, "picked", lambda i: N - 1 - i)):
        step()
        with mock.patch.object(where, name, other):
            step()
            step()


def test_it_is_looked_at_once_for_each(monkeypatch):
    """A counter beside the model's code moves in every forward, and tells nothing; of two functions in turn both are known."""
    looked = []
    watched = AttributionCheck._watched
    monkeypatch.setattr(AttributionCheck, "_watched", lambda self, *given: looked.append(step_number) or watched(self, *given))
    step, other = step_of(Model()), lambda h: GELU(h) / 2
    for step_number in range(16):
        with mock.patch.object(F, "gelu", other if step_number >= 8 and step_number % 2 else GELU):
            step()
    assert 9 in looked and set(looked) <= {0, 1, 2, 3, 9}


def test_a_function_comes_late_beside_a_counter_and_others_in_turn():
    """What was looked at before the counter told nothing any more is not what stands there now."""
    step = step_of(Model())
    for _ in range(6):
        step()
    for _ in range(2):
        with mock.patch.object(F, "gelu", lambda h: GELU(h) / 2):
            step()
        step()
    with mock.patch.object(F, "gelu", lambda h: mix(GELU(h))), pytest.raises(RuntimeError, match=MIXED):
        step()


def test_a_function_comes_after_many_others():
    """More than are remembered: each is looked at."""
    step = step_of(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)))
    for number in range(18):
        with mock.patch.object(F, "gelu", lambda h, approximate="none", number=number: GELU(h) / (number + 1)):
            step()
        step()
    with mock.patch.object(F, "gelu", lambda h, approximate="none": mix(GELU(h))), pytest.raises(RuntimeError, match=MIXED):
        step()


def test_a_function_that_was_put_back_before_backward_is_refused():
    torch.manual_seed(0)
    model = Model()
    module, _, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    x, y = next(iter(loader))
    with mock.patch.object(F, "gelu", lambda h: mix(GELU(h))):
        loss = criterion(module(x), y)
    with pytest.raises(RuntimeError, match="gelu is another than it was in the forward of this batch"):
        loss.backward()


class Held(Items):
    """Items out of what is held in other ways than by an attribute."""

    def __init__(self, how):
        self.rows = {"x": X} if how == "a dict" else mock.Mock(spec=[], x=X) if how == "an object" else None
        table = X.numpy().copy()
        self.of = {
            "a dict": lambda i: self.rows["x"][i], "an object": lambda i: self.rows.x[i], "around it": lambda i: torch.from_numpy(table[i]), "beside it": lambda i: X[i],
        }[how]  # fmt: skip

    def __getitem__(self, i):
        x = self.of(i)
        return (x + self.of((i + 1) % N) if self.flag else x), int(Y[i])


@pytest.mark.parametrize("how", ["a dict", "an object", "around it", "beside it"])
def test_rows_that_items_share_are_seen_wherever_they_are_held(how):
    data = Held(how)
    step_of(data=data)()
    data.flag = True
    with pytest.raises(ValueError, match=OF_ITEMS):
        step_of(data=data)()


class Options:
    def __init__(self):
        self.mixes = False


class WithOptions(nn.Module):
    """Mixes as what it holds says."""

    def __init__(self, options):
        super().__init__()
        self.layer, self.options = nn.Linear(6, 3), options

    def forward(self, x):
        on = self.options["mixes"] if isinstance(self.options, dict) else self.options[0] if isinstance(self.options, list) else self.options.mixes
        return mix(self.layer(x)) if on else self.layer(x)


OPTIONS = {
    "a dict": (lambda: {"mixes": False}, lambda options: options.update(mixes=True)), "a list": (lambda: [False], lambda options: options.insert(0, True)),
    "a namespace": (lambda: SimpleNamespace(mixes=False), lambda options: setattr(options, "mixes", True)),
    "a dataclass": (lambda: Flags(), lambda options: setattr(options, "mixes", True)),
    "an object": (Options, lambda options: setattr(options, "mixes", True)),
}  # fmt: skip


@pytest.mark.parametrize("made, switched", OPTIONS.values(), ids=OPTIONS)
def test_what_a_module_holds_is_looked_at(made, switched):
    options = made()
    step = step_of(WithOptions(options))
    step()
    switched(options)
    with pytest.raises(RuntimeError, match=MIXED):
        step()


class Switched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.mixes, self.options = nn.Linear(6, 3), False, {"mixes": False}

    def forward(self, x):
        return mix(self.layer(x)) if self.mixes or self.options["mixes"] else self.layer(x)


@contextmanager
def a_flag(model, criterion):
    model.mixes = True
    yield
    model.mixes = False


@contextmanager
def an_option(model, criterion):
    model.options["mixes"] = True
    yield
    model.options["mixes"] = False


@contextmanager
def a_hook(model, criterion):
    handle = model.layer.register_forward_hook(lambda module, args, out: mix(out))
    yield
    handle.remove()


@contextmanager
def a_forward(model, criterion):
    with mock.patch.object(model, "forward", lambda x: mix(model.layer(x))):
        yield


@contextmanager
def a_criterions_flag(model, criterion):
    criterion.flag = True
    yield
    criterion.flag = False


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("during", [a_flag, an_option, a_hook, a_forward, a_criterions_flag], ids=lambda each: each.__name__)
def test_what_is_set_for_the_time_of_a_forward_is_looked_at_or_refused(during, after):
    torch.manual_seed(0)
    model, own = Switched(), Criterion()
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=own, grad_sample_mode="ghost",
    )  # fmt: skip
    batches = (batch for _ in range(99) for batch in loader)

    def loss(within):
        x, y = next(batches)
        optimizer.zero_grad()
        with within:
            return criterion(module(x), y)

    for _ in range(after):
        loss(nullcontext()).backward()
        optimizer.step()
    mixed = loss(during(model, own))
    with pytest.raises(RuntimeError, match=f"{MIXED}|is another than it was in the forward of this batch"):
        mixed.backward()


def test_two_tasks_in_turn_are_taken():
    """A flag that says which, in forwards under one loss: each is repeated as it was."""

    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.task = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)}), "a"

        def forward(self, x):
            return self.heads[self.task](x)

    model = Tasks()
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    for x, y in loader:
        optimizer.zero_grad()
        model.task = "a"
        first = module(x)
        model.task = "b"
        criterion(first + module(x), y).backward()
        optimizer.step()


class OfFunctions(TorchFunctionMode):
    mixes = True

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return mix(found) if func is torch.tanh and self.mixes else found


class OfOperators(TorchDispatchMode):
    mixes = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found + found.mean(0) if func is torch.ops.aten.tanh.default and self.mixes else found


class Kept(OfFunctions):
    mixes = False


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("mode", [OfFunctions, OfOperators, Kept], ids=lambda each: each.__name__)
def test_a_mode_that_is_on_in_a_forward_alone(mode, after):
    torch.manual_seed(0)
    model = Model()
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    batches = (batch for _ in range(99) for batch in loader)
    for number in range(after + 2):
        x, y = next(batches)
        optimizer.zero_grad()
        with mode() if number >= after else nullcontext():
            outputs = module(x)
        loss = criterion(outputs, y)
        if mode.mixes and number == after:
            with pytest.raises(RuntimeError, match=MIXED):
                loss.backward()
            return
        loss.backward()
        optimizer.step()


def test_what_comes_beside_the_code_is_none_of_its_functions(monkeypatch):
    """A number there that becomes an array, a nan that becomes another, a name that is gone."""
    step = step_of(Model())
    for _ in range(5):  # the counter does not tell any more
        step()
    for value in (torch.randn(3).numpy(), float("nan"), float("nan"), 1 << 40, 1 << 40):
        monkeypatch.setattr(HERE, "tanh", value, raising=False)  # as torch.tanh has it in the code's names
        step()
    monkeypatch.delattr(HERE, "tanh")
    step()


def test_workers_that_are_started_anew_look_for_themselves():
    """By "spawn", as on some systems: what names stand for is of one process."""
    settings = Settings()
    assert settings.are_new(Collate()) and not settings.are_new(Collate())
    assert pickle.loads(pickle.dumps(settings)).are_new(Collate())
    model = nn.Linear(6, 3)
    loader = DataLoader(Items(), batch_size=16, collate_fn=Collate(), num_workers=1, multiprocessing_context="spawn")
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    for x, y in loader:
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
