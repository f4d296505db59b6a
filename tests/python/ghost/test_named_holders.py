"""Settings and functions that stand in dicts, lists, objects and classes beside the code, and names that it makes up: those that are set otherwise while a program trains are looked at anew."""

import argparse
import collections
import dataclasses
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

from ghostshard import PrivacyEngine

HERE = sys.modules[__name__]
N, STEPS, FIRST = 64, 6, 3  # FIRST: the step before which something is set
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
NEVER = "an example's output must not"
PUT_BACK = "is another than it was in the forward of this batch"


def itself(h):
    return h


def mix(h):
    return h + 0.5 * h.detach().mean(0)


class Options:
    mixes = False
    inner = types.SimpleNamespace(mixes=False)


@dataclasses.dataclass(slots=True)
class Slots:
    mixes: bool = False


class Table(dict):
    pass


class Slot:
    act = {"act": itself}

    def __getitem__(self, name):
        return self.act[name]


args = argparse.Namespace(mixes=False, step=0, phase="a")
conf = {"mixes": False, "inner": {"mixes": False}}
slots, table, listed, slot = Slots(), Table(act=itself), [itself], Slot()


def around_here(h):
    return mix(h) if around_here.mixes else h


around_here.mixes = False
GELU, WORD = F.gelu, "ge" + "lu"


class Model(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(6, 8), nn.Linear(8, 3), act

    def around_it(self, h):
        return h

    def forward(self, x):
        return self.b(self.act(self, self.a(x)))


def around(self, h):
    return h


FORMS = {
    "an argument": (lambda _, h: mix(h) if args.mixes else h, vars(args), "mixes", True),
    "an entry": (lambda _, h: mix(h) if conf["mixes"] else h, conf, "mixes", True),
    "an entry of an entry": (lambda _, h: mix(h) if conf["inner"]["mixes"] else h, conf["inner"], "mixes", True),
    "a new entry": (lambda _, h: mix(h) if conf.get("also") else h, conf, "also", True),
    "a table": (lambda _, h: table["act"](h), table, "act", mix),
    "a list": (lambda _, h: listed[0](h), listed, 0, mix),
    "an object with code of its own": (lambda _, h: slot["act"](h), Slot.act, "act", mix),
    "a class": (lambda _, h: mix(h) if Options.mixes else h, Options, "mixes", True),
    "an object with slots": (lambda _, h: mix(h) if slots.mixes else h, slots, "mixes", True),
    "an attribute of a function": (lambda _, h: around_here(h), around_here, "mixes", True),
    "an object of a class": (lambda _, h: mix(h) if Options.inner.mixes else h, vars(Options.inner), "mixes", True),
    "another dict": (lambda _, h: mix(h) if conf["mixes"] else h, HERE, "conf", {"mixes": True}),
    "a name of torch's": (lambda _, h: getattr(F, WORD)(h), F, "gelu", lambda h: mix(GELU(h))),
    "a name of a method": (lambda self, h: getattr(self, "around_" + "it")(h), Model, "around_it", lambda _, h: mix(h)),
    "a name beside it": (lambda _, h: globals()["it" + "self"](h), HERE, "itself", mix),
}


@pytest.fixture
def put(monkeypatch):
    def put(where, name, value):
        if isinstance(where, dict):
            monkeypatch.setitem(where, name, value)
        elif isinstance(where, list):
            where[name] = value
        else:
            monkeypatch.setattr(where, name, value)

    yield put
    listed[0] = itself


def train(model, before, after_forward=lambda: None, collate=None, steps=STEPS):
    torch.manual_seed(0)
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(X, Y), batch_size=16, collate_fn=collate),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    batches = (batch for _ in range(99) for batch in loader)
    for step in range(steps):
        before(step)
        x, y = next(batches)
        optimizer.zero_grad()
        out = module(x)
        after_forward()
        criterion(out, y).backward()
        optimizer.step()


@pytest.mark.parametrize("form", FORMS)
def test_what_mixes_from_then_on_is_refused(form, put):
    act, where, name, value = FORMS[form]
    begun = []

    def before(step):
        begun.append(step)
        if step == FIRST:
            put(where, name, value)

    with pytest.raises(RuntimeError, match=NEVER):
        train(Model(act), before)
    assert begun[-1] == FIRST


@pytest.mark.parametrize("form", FORMS)
def test_so_is_what_is_set_for_a_forward_alone(form, put, monkeypatch):
    act, where, name, value = FORMS[form]
    with pytest.raises(RuntimeError, match=PUT_BACK):
        train(Model(act), lambda step: step < FIRST or put(where, name, value), lambda: (monkeypatch.undo(), listed.__setitem__(0, itself)))


def test_what_stands_around_a_class_is_looked_at():
    options = types.SimpleNamespace(mixes=False)

    class Local(nn.Linear):
        def forward(self, x):
            return mix(super().forward(x)) if options.mixes else super().forward(x)

    with pytest.raises(RuntimeError, match=NEVER):
        train(Local(6, 3), lambda step: setattr(options, "mixes", step >= FIRST))


def test_a_collate_fn_names_them_too(put):
    def collate(examples):
        x, y = default_collate(examples)
        return (mix(x) if args.mixes else x), y

    with pytest.raises(ValueError, match="collate_fn mixes"):
        train(nn.Linear(6, 3), lambda step: step < FIRST or put(vars(args), "mixes", True), collate=collate)


counts, seen, words, times, kept = {"calls": 0}, [], [], collections.defaultdict(float), {}


def counting(_, h):
    counts["calls"] += 1
    return h


def logging(_, h):
    seen.append(len(seen) / 2)
    words.append(f"call {len(words)}")
    return h


def timing(_, h):
    times["act"] += 0.125
    return h


def keeping(_, h):
    return h * kept.setdefault(("ones", len(kept) % 7), torch.ones(h.shape[1]))


def scheduled(_, h):
    return h * (0.5 if args.step > 4 else 1.0) if args.phase == "a" else h


def replaced(_, h):
    return h * conf.get("scale", 1.0)


@pytest.mark.parametrize("act", (counting, logging, timing, keeping, scheduled, replaced))
def test_what_a_program_counts_keeps_or_schedules_goes_on(act, put):
    checks = []

    def before(step):
        put(vars(args), "step", step)
        put(vars(args), "phase", "ab"[step % 2])
        put(HERE, "conf", {"mixes": False, "inner": {"mixes": False}, "scale": 1.0 + step})
        checks.append(step)

    train(Model(act), before, steps=12)
    assert checks == list(range(12))


def test_a_count_on_a_class_costs_a_few_looks_alone():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return super().forward(x)

    after = []
    train(Counting(6, 3), lambda step: after.append(Counting.calls), steps=16)
    per_step = [two - one for one, two in zip(after, after[1:])]
    assert max(per_step[4:]) < per_step[0] / 4  # a check repeats forwards

