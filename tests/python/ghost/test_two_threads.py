"""A run is one thread's at a time: who calls it within another thread's forward, backward or step is refused, and the other's step is what it would have been."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

N, BATCH = 40, 8


class Waits(nn.Module):
    """In a forward, if it is told to."""

    def __init__(self):
        super().__init__()
        self.layer, self.there, self.go_on = nn.Linear(6, 3), None, threading.Event()
        self.interrupted = False

    def forward(self, x):
        if self.there is not None:
            there, self.there = self.there, None
            there.set()
            assert self.go_on.wait(60)
        if self.interrupted:
            raise KeyboardInterrupt
        return self.layer(x)


class Run:
    def __init__(self, seed=1):
        torch.manual_seed(seed)
        self.model, self.engine = Waits(), PrivacyEngine(accountant="rdp")
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
            data_loader=DataLoader(TensorDataset(torch.randn(N, 6), torch.randint(0, 3, (N,))), batch_size=BATCH), grad_sample_mode="ghost",
        )  # fmt: skip

    def step(self, x, y):
        self.optimizer.zero_grad()
        self.criterion(self.module(x), y).backward()
        self.optimizer.step()

    def train(self):
        for x, y in self.loader:
            self.step(x, y)


def in_a_thread(work):
    """The thread, and a list of its error."""
    errors = []

    def caught():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    return thread, errors


def evaluates(run, _batches, _loss):
    with torch.no_grad():
        run.module(torch.randn(4, 6))


DEEDS = {
    "trains": lambda run, batches, loss: run.step(torch.randn(4, 6), torch.zeros(4, dtype=torch.long)),
    "evaluates": evaluates,
    "goes backward": lambda run, batches, loss: loss.backward(),
    "steps": lambda run, batches, loss: run.optimizer.step(),
    "clears": lambda run, batches, loss: run.optimizer.zero_grad(),
    "takes a batch": lambda run, batches, loss: next(batches),
    "trains without privacy": lambda run, batches, loss: run.module.disable_hooks(),
    "saves": lambda run, batches, loss: run.engine.state_dict(),
}


@pytest.mark.filterwarnings("ignore:no ledger")
@pytest.mark.parametrize("deed", DEEDS)
def test_a_call_within_anothers_forward_is_refused(deed):
    run = Run()
    batches = iter(run.loader)
    run.step(*next(batches))
    x, y = next(batches)
    loss = run.criterion(run.module(x), y)
    there = run.model.there = threading.Event()
    thread, errors = in_a_thread(lambda: run.step(x, y))
    assert there.wait(60)
    in_forward = run.engine._ghost.in_forward
    with pytest.raises(RuntimeError, match="a private run is one thread's at a time"):
        DEEDS[deed](run, batches, loss)
    assert run.engine._ghost.in_forward == in_forward  # the other's
    run.model.go_on.set()
    thread.join()
    assert not errors and run.engine.accountant.history == [(1.0, BATCH / N, 2)]
    run.step(*next(batches))


@pytest.mark.filterwarnings("ignore:no ledger")
def test_a_thread_that_ended_within_a_forward_holds_nothing():
    run = Run()
    run.model.interrupted = True
    thread, errors = in_a_thread(run.train)
    thread.join()
    assert isinstance(errors[0], KeyboardInterrupt)
    run.model.interrupted = False
    thread, errors = in_a_thread(run.train)
    thread.join()
    assert not errors


@pytest.mark.filterwarnings("ignore:no ledger", "ignore:a batch of the private loader was passed over")
def test_who_was_interrupted_within_a_forward_goes_on():
    run = Run()
    run.model.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        run.train()
    run.model.interrupted = False
    run.train()
    thread, errors = in_a_thread(run.train)
    thread.join()
    assert not errors


@pytest.mark.filterwarnings("ignore:no ledger")
def test_runs_of_their_own_are_trained_side_by_side():
    runs = [Run(seed) for seed in (1, 2)]
    threads = [in_a_thread(run.train) for run in runs]
    for thread, _ in threads:
        thread.join()
    assert [errors for _, errors in threads] == [[], []]
    assert all(run.engine.accountant.history == [(1.0, BATCH / N, N // BATCH)] for run in runs)
