"""Copies of a run, or of parts of it: a process that was forked, an optimizer that was copied, a loader with another collate_fn."""

import copy
import os
import pickle

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private_run import Run
from torch import nn

from ghostshard import PrivacyEngine


def said_in_a_fork(deed) -> str:
    here, there = os.pipe()
    if (child := os.fork()) == 0:
        try:
            deed()
            said = "nothing"
        except BaseException as error:
            said = str(error)
        os.write(there, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(here, 1 << 16).decode()


def trains(run):
    x, y = next(iter(run.loader))
    run.step(x, y)


def goes_back(run):
    run.loss.backward()


def releases(run):
    run.optimizer.step()


@pytest.mark.parametrize("deed", [trains, goes_back, releases], ids=lambda deed: deed.__name__)
def test_a_forked_process_does_not_train(deed):
    """Both would add the same noise to sums of the same examples."""
    run = Run()
    x, y = next(iter(run.loader))
    run.loss = run.criterion(run.module(x), y)
    if deed is releases:
        run.loss.backward()
    assert "is a copy of the one that called make_private()" in said_in_a_fork(lambda: deed(run))


def test_a_forked_process_may_evaluate():
    run = Run()
    trains(run)

    def looks():
        with torch.no_grad():
            run.module(torch.ones(3, 6))

    assert said_in_a_fork(looks) == "nothing"
    trains(run)


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, pickle.dumps], ids=["deepcopy", "copy", "pickle"])
def test_an_engine_with_a_run_is_not_copied(how):
    """Its epsilon would stay behind. One without a run may be."""
    with pytest.raises(TypeError, match="epsilon would stay behind what the run charges"):
        how(Run().engine)
    assert len(copy.deepcopy(PrivacyEngine()).accountant) == 0


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, pickle.dumps], ids=["deepcopy", "copy", "pickle"])
def test_an_optimizer_is_not_copied(how):
    run = Run()
    trains(run)
    with pytest.raises(TypeError, match="neither copied nor pickled.*configure_optimizers"):
        how(run.optimizer)
    trains(run)  # nothing of the class was changed


def test_a_copied_module_is_not_private():
    run = Run()
    x, y = next(iter(run.loader))
    run.step(x, y)
    copied = copy.deepcopy(run.module)
    x, y = next(iter(run.loader))
    run.optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="needs a forward of the private model"):
        run.criterion(copied(x), y).backward()


def mixes(examples):
    x, y = (torch.stack(each) for each in zip(*examples))
    return 0.5 * x + 0.5 * x.roll(1, 0), y


def test_a_collate_fn_that_comes_later_is_watched():
    run = Run()
    run.loader.collate_fn = mixes
    with pytest.raises(ValueError, match="collate_fn mixes its examples"):
        trains(run)


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.before = nn.Linear(6, 3), 0.0

    def forward(self, x):
        out = self.layer(x) + self.before
        self.before = 0.1 * out.detach().mean(0)
        return out


class Averages(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.layer(x)


class Running(nn.Module):
    """A criterion."""

    def __init__(self):
        super().__init__()
        self.mean = 1.0

    def forward(self, out, y):
        losses = nn.functional.cross_entropy(out, y, reduction="none")
        weighed = losses / self.mean
        self.mean = 0.9 * self.mean + 0.1 * float(losses.mean())
        return weighed


def one_by_one(run):
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=1, optimizer=run.optimizer) as loader:
        for x, y in loader:
            run.step(x, y)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"model": Remembers()}, "the model keeps what follows from examples"), ({"model": Averages()}, "the model's buffers follow from examples"),
        ({"criterion": Running()}, "the criterion keeps numbers or tensors"),
    ],
    ids=["memory", "buffer", "criterion"],
)  # fmt: skip
def test_what_is_kept_of_batches_of_one_is_looked_at(options, said):
    run = Run(draws=(3, 2, 3), **options)
    with pytest.raises(RuntimeError, match=said):
        one_by_one(run)
    assert run.charged <= 1


def test_batches_of_one_are_taken():
    run = Run(draws=(3, 2, 3))
    one_by_one(run)
    assert run.charged == 3


def test_a_step_of_two_gradients_is_refused_with_a_sentence():
    run = Run()
    assert not hasattr(run.optimizer, "first_step")
    with pytest.raises(AttributeError, match="would show a draw twice"):
        run.optimizer.first_step()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_a_private_loader_is_not_copied(copied):
    run = Run()
    with pytest.raises(TypeError, match="a private loader is neither copied nor pickled"):
        copied(run.loader)
    trains(run)
