"""torch.distributed that begins after make_private(): each rank would train a model of its own."""

import pytest
from private_run import Run

from ghostshard.ghost.checks import gate


@pytest.fixture
def two_ranks_begin(monkeypatch):
    return lambda: monkeypatch.setattr(gate, "world_size", lambda: 2)


@pytest.mark.parametrize("at", ["a forward", "a backward", "a step"])
def test_ranks_that_begin_later_are_refused(at, two_ranks_begin):
    run = Run()
    batches = iter(run.loader)
    run.step(*next(batches))
    x, y = next(batches)
    run.optimizer.zero_grad()

    def step() -> None:
        for name, call in (("a forward", lambda: run.criterion(run.module(x), y)), ("a backward", lambda: loss.backward()), ("a step", run.optimizer.step)):
            if name == at:
                two_ranks_begin()
            loss = call()

    with pytest.raises(RuntimeError, match="was begun with 2 ranks after make_private"):
        step()


def test_processes_of_a_launcher_that_begin_nothing_are_warned(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.warns(UserWarning, match="a launcher started 2 processes"):
        Run()
