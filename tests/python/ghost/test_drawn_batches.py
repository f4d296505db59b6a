"""Loops whose batches are the drawn ones, or are refused; functions one by one are in test_provenance.py."""

import collections
import threading

import numpy as np
import pytest
import torch
from private_run import Run
from torch import nn
from torch.utils.data import DataLoader

from ghostshard import vouch_for
from ghostshard.ghost.provenance import plain

# Loops -----------------------------------------------------------------------------------------------------------------


def a_swapped_batch(run, x, y):
    other = run.data[20 : 20 + len(x)]
    run.step(*other)


def labels_of_others(run, x, y):
    run.step(x, run.data[20 : 20 + len(x)][1])


def the_label_of_one(run, x, y):
    run.step(x, y[:1].expand(len(y)))


def labels_in_another_order(run, x, y):
    run.step(x, y.flip(0))


def mixed_with_a_second_loader(run, x, y):
    run.step(0.5 * x + 0.5 * run.data[20 : 20 + len(x)][0], y)


def mixed_within_the_batch(run, x, y):
    run.step(0.5 * x + 0.5 * x[torch.randperm(len(x))], y)


def half_of_it_replaced(run, x, y):
    run.step(torch.cat([x[:3], run.data[20 : 20 + len(x) - 3][0]]), y)


def overwritten(run, x, y):
    x.copy_(run.data[20 : 20 + len(x)][0])
    run.step(x, y)


def overwritten_by_data(run, x, y):
    x.data = run.data[20 : 20 + len(x)][0]
    run.step(x, y)


def one_example_twice(run, x, y):
    i = torch.arange(len(x)).clamp(max=len(x) - 2)
    run.step(x[i], y[i])


def statistics_of_the_batch(run, x, y):
    run.step((x - x.mean(0)) / x.std(0), y)


def a_second_forward_on_others(run, x, y):
    run.optimizer.zero_grad()
    other = run.data[20 : 20 + len(x)][0]
    (run.criterion(run.module(x), y) + run.criterion(run.module(other), y)).backward()
    run.optimizer.step()


def weighted_by_others(run, x, y):
    (run.criterion(run.module(x), y) * run.data[20 : 20 + len(x)][0][:, 0].abs()).backward()


def overwritten_after_its_forward(run, x, y):
    loss = run.criterion(run.module(x), y)
    x.data.copy_(run.data[20 : 20 + len(x)][0])
    loss.backward()


def of_another_private_loader(run, x, y):
    x, y = next(iter(Run().loader))
    run.step(x, y)


def two_forwards_in_two_orders(run, x, y):
    run.optimizer.zero_grad()
    (run.criterion(run.module(x), y) + run.criterion(run.module(x.flip(0)), y.flip(0))).backward()
    run.optimizer.step()


def joined_by_units_that_are_others(run, x, y):
    i = torch.arange(len(x)).repeat_interleave(2)
    run.criterion(run.module(x.repeat(2, 1), units=i), y.repeat(2)).backward()


def by_numpy_with_other_values(run, x, y):
    run.step(torch.from_numpy(x.numpy() * 2), y)


def divided_by_a_count_of_the_batch(run, x, y):
    (run.criterion(run.module(x), y) / (y >= 0).sum()).backward()


def weighted_by_a_number_of_one(run, x, y):
    (run.criterion(run.module(x), y) * x[0, 0]).backward()


REFUSED = {
    divided_by_a_count_of_the_batch: "sum joined its examples",
    weighted_by_a_number_of_one: "a number of the batch|other examples",
    a_swapped_batch: "neither from the loader",
    labels_of_others: "a target is not known",
    the_label_of_one: "of other examples",
    labels_in_another_order: "in another order|other examples",
    mixed_with_a_second_loader: r"joined it with a tensor \(8, 6\)",
    mixed_within_the_batch: "joined rows of different examples",
    half_of_it_replaced: "does not hold each example once|put rows",
    overwritten: "did not hand out",
    overwritten_by_data: "its data were replaced",
    one_example_twice: "each example once",
    statistics_of_the_batch: "mean joined its examples",
    a_second_forward_on_others: "neither from the loader",
    weighted_by_others: "a target is not known",
    overwritten_after_its_forward: "copy joined it",
    of_another_private_loader: "another batch of the loader",
    two_forwards_in_two_orders: "in different orders",
    joined_by_units_that_are_others: "joins other rows",
    by_numpy_with_other_values: "neither from the loader",
}


@pytest.mark.parametrize("loop", REFUSED, ids=lambda loop: loop.__name__)
def test_a_batch_that_is_not_the_drawn_one_is_refused(loop):
    run = Run()
    with pytest.raises(ValueError, match=REFUSED[loop]):
        for x, y in run.loader:
            loop(run, x, y)
    assert run.charged == 0


def a_batch_of_an_earlier_draw(run):
    run = Run(draws=(8, 8, 8))
    kept = None
    for x, y in run.loader:
        run.step(*(kept or (x, y)))
        kept = x + 0, y


def test_a_batch_of_an_earlier_draw_is_refused():
    with pytest.raises(ValueError, match="another batch of the loader"):
        a_batch_of_an_earlier_draw(None)


TAKEN = {
    "plain": lambda x, y: (x, y),
    "cast": lambda x, y: (x.double().float(), y.int().long()),
    "through numpy": lambda x, y: (torch.from_numpy(x.numpy().copy()), torch.tensor(y.tolist(), dtype=torch.int64)),
    "noise": lambda x, y: (x + 0.1 * torch.randn_like(x), y),
    "permuted": lambda x, y: (lambda i: (x[i], y[i]))(torch.randperm(len(x))),
    "constant labels": lambda x, y: (x, torch.ones(len(x), dtype=torch.int64)),
    "vouched": lambda x, y: (vouch_for(torch.from_numpy(2 * x.numpy())), y),
    "through a buffer": lambda x, y: (torch.empty(x.shape).copy_(x), y),
    "part vouched": lambda x, y: (x + vouch_for(torch.randn(len(x), 6)), y),
}


@pytest.mark.parametrize("change", TAKEN.values(), ids=TAKEN)
def test_changes_that_keep_examples_apart_are_taken(change):
    run = Run(draws=(8, 1, 0, 7), allow_vouched=True)
    for x, y in run.loader:
        run.step(*change(x, y))
    assert run.charged == 4


def test_a_word_that_nobody_asked_for_is_refused(tmp_path):
    run = Run()
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="allow_vouched=True"):
        run.step(vouch_for(plain(x)), y)
    with pytest.raises(ValueError, match="dim must be one"):
        vouch_for(torch.ones(3), dim=1)


@pytest.mark.parametrize("allowed", [False, True])
def test_the_report_says_if_words_are_taken(allowed, tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl", allow_vouched=allowed)
    run.step(*next(iter(run.loader)))
    run.engine.report(tmp_path / "report", delta=1e-5)
    assert ("caller's word" in (tmp_path / "report" / "privacy_report.json").read_text()) is allowed


# Batches of other shapes -----------------------------------------------------------------------------------------------


class Bag:
    def __init__(self, x, y):
        self.x, self.y = x, y


Pair = collections.namedtuple("Pair", "x y")
COLLATES = {
    "examples": (lambda examples: examples, lambda b: (torch.stack([x for x, _ in b]), torch.stack([y for _, y in b]))),
    "dict": (lambda examples: dict(zip("xy", map(torch.stack, zip(*examples)))), lambda b: (b["x"], b["y"])),
    "mapping": (lambda examples: collections.UserDict(zip("xy", map(torch.stack, zip(*examples)))), lambda b: (b["x"], b["y"])),
    "named": (lambda examples: Pair(*map(torch.stack, zip(*examples))), lambda b: (b.x, b.y)),
    "object": (lambda examples: Bag(*map(torch.stack, zip(*examples))), lambda b: (b.x, b.y)),
    "arrays": (lambda examples: [np.stack(column) for column in zip(*examples)], lambda b: map(torch.from_numpy, b)),
    "lists": (lambda examples: [torch.stack(column).tolist() for column in zip(*examples)], lambda b: map(torch.tensor, b)),
}


@pytest.mark.parametrize("collate, opened", COLLATES.values(), ids=COLLATES)
def test_batches_of_any_shape_are_followed(collate, opened):
    run = Run(collate=collate, draws=(8, 2, 7, 1))
    for batch in run.loader:
        run.step(*opened(batch))
    assert run.charged == 4


def test_columns_of_one_tensor_are_written_to_in_place():
    """And a list of objects that cannot be copied may be in the batch."""
    collate = lambda examples: [*torch.cat([torch.stack([x for x, _ in examples]), torch.zeros(len(examples), 1)], 1).split(6, 1), [threading.Lock()]]
    run = Run(collate=collate)
    for x, zeros, _ in run.loader:
        x.mul_(2)
        zeros.add_(1)
        run.step(x, zeros[:, 0].long())
    assert run.charged > 0


@pytest.mark.parametrize("kind", ["arrays", "lists"])
def test_arrays_and_lists_that_were_written_to_are_refused(kind):
    collate, opened = COLLATES[kind]
    run = Run(collate=collate)
    with pytest.raises(ValueError, match="neither from the loader"):
        for batch in run.loader:
            batch[0][:] = [[2 * each for each in row] for row in batch[0]] if kind == "lists" else batch[0][::-1].copy()
            run.step(*opened(batch))
    assert run.charged == 0


@pytest.mark.parametrize("draws", [(8, 2, 6, 1, 0), (2, 6), (6, 8)])
def test_examples_in_the_second_dimension_are_followed(draws):
    """[steps, examples, ...], also if a batch has as many examples as columns, or as steps."""

    collate = lambda examples: (torch.stack([x.view(6, 1) for x, _ in examples], 1), torch.stack([y for _, y in examples]))
    run = Run(model=nn.Sequential(nn.Linear(1, 3), OverSteps()), collate=collate, draws=draws, batch_first=False)
    for x, y in run.loader:
        run.step(2 * x, y)
    assert run.charged == len(draws)


class OverSteps(nn.Module):
    def forward(self, x):
        return x.mean(0)


class Conditioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.beside = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x, c=None, t=None):
        return self.layer(x) + (0 if c is None else self.beside(c)) + (0 if t is None else t[:, None])


BESIDE = {
    "of itself": (lambda run, x: {"c": x.flip(1)}, ""),
    "of others": (lambda run, x: {"c": run.data[20 : 20 + len(x)][0]}, "c is not known"),
    "in another order": (lambda run, x: {"c": x.flip(0)}, "in another order"),
    "times": (lambda run, x: {"t": torch.rand(len(x))}, "t is not known"),
    "vouched times": (lambda run, x: {"t": vouch_for(torch.rand(len(x)))}, ""),
    "one time for all": (lambda run, x: {"t": torch.full((len(x),), 0.3)}, ""),
}


@pytest.mark.parametrize("beside, sentence", BESIDE.values(), ids=BESIDE)
def test_what_stands_beside_the_examples(beside, sentence):
    run = Run(model=Conditioned(), allow_vouched=True)
    x, y = next(iter(run.loader))
    loss = run.criterion(run.module(x, **beside(run, x)), y)
    if sentence:
        with pytest.raises(ValueError, match=sentence):
            loss.backward()
        return
    loss.backward()
    run.optimizer.step()


def test_a_discriminator_takes_what_a_generator_made():
    """The real pictures are the draw's; those that were made are vouched for."""
    run = Run(allow_vouched=True)
    generator = nn.Linear(4, 6)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        made = vouch_for(generator(torch.randn(len(x), 4)).detach())
        real, fake = run.module(x), run.module(made)
        (run.criterion(real, torch.ones_like(y)) + run.criterion(fake, torch.zeros_like(y))).backward()
        run.optimizer.step()
    assert run.charged == 5


def test_layers_called_by_a_method_see_what_was_drawn():
    class Method(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.two(self.one(x))

        def method(self, x):
            return self.two(self.one(2 * x).relu())

    for own in (True, False):
        run = Run(model=Method())
        x, y = next(iter(run.loader))
        loss = run.criterion(run.model.method(x if own else run.data[20:28][0]), y)
        if own:
            loss.backward()
            run.optimizer.step()
        else:
            with pytest.raises(ValueError, match="neither from the loader"):
                loss.backward()


def test_a_forward_that_no_loss_follows_from_is_not_asked():
    run = Run()
    for x, y in run.loader:
        run.module(DataLoader(run.data, batch_size=len(x)).dataset[: len(x)][0])
        run.step(x, y)
    assert run.charged == 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("own", [True, False])
def test_a_compiled_model_is_asked_too(own):
    run = Run()
    compiled = torch.compile(run.module, backend="eager")
    x, y = next(iter(run.loader))
    loss = run.criterion(compiled(x if own else run.data[20:28][0]), y)
    if not own:
        with pytest.raises(ValueError, match="neither from the loader"):
            loss.backward()
        return
    loss.backward()
    run.optimizer.step()
