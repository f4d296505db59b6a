"""Interrupts and errors at a bad moment, in a program that catches them and goes on (a notebook): no example is added twice to one step."""

import warnings

import pytest
import torch
from private_run import N, Run
from torch.utils.data import Dataset

DRAWS = (8, 8, 8)


def interrupt(*_, **__) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["drawn", "own batches"])
@pytest.mark.filterwarnings("ignore:batches of your own")
def test_a_batch_whose_sum_was_added_when_the_interrupt_came_is_not_added_again(options, monkeypatch):
    """As when the signal comes while the sum is formed: Python raises it right afterwards."""
    once, run = Run(draws=DRAWS, noise=0.0, **options), Run(draws=DRAWS, noise=0.0, **options)
    for each in (once, run):
        each.optimizer.param_groups[0]["lr"] = 0.0
    once.step(*next(iter(once.loader)))  # the draws are alike
    batches = iter(run.loader)
    x, y = next(batches)
    with monkeypatch.context() as patched:
        patched.setattr(run.module.engine._gathered, "end_backward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.backward(x, y)
    if not options:
        with pytest.raises(RuntimeError, match="its logical batch was dropped, and stays charged"):
            run.backward(x, y)
        with pytest.raises(RuntimeError, match="step\\(\\) needs a backward"):
            run.optimizer.step()
        x, y = next(batches)
    run.backward(x, y)
    run.optimizer.step()
    torch.testing.assert_close(run.model.weight.grad, once.model.weight.grad)
    assert run.charged == 2


def test_an_interrupt_in_a_part_of_a_draw_drops_the_draw(monkeypatch):
    run = Run(draws=DRAWS, accumulation_steps=2)
    batches = iter(run.loader)
    run.backward(*next(batches))
    x, y = next(batches)
    with monkeypatch.context() as patched:
        patched.setattr(run.module.engine._gathered, "end_backward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.backward(x, y)
    with pytest.raises(RuntimeError, match="stays charged"):
        run.backward(x, y)
    for _ in range(2):
        run.backward(*next(batches))
    run.optimizer.step()
    assert run.charged == 2


CANNOT_BE_READ: set[int] = set()  # no setting of the data set's, at whose change items are looked at again


class Broken(Dataset):
    """Item 5 cannot be read, once the others were looked at."""

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.x, self.y = torch.randn(N, 6, generator=generator), torch.randint(0, 3, (N,), generator=generator)

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index in CANNOT_BE_READ:
            raise OSError("item 5 cannot be read")
        return self.x[index], self.y[index]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_ends_with_a_batch_that_could_not_be_made(workers):
    """What follows would count as parts of its draw: with accumulation_steps=2 the second half of one draw and the first of the next were one step."""
    data = Broken()
    run = Run(draws=DRAWS, data=data, workers=workers, accumulation_steps=2)
    CANNOT_BE_READ.add(5)
    batches = iter(run.loader)
    run.backward(*next(batches))
    with pytest.raises(OSError):
        next(batches)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="this pass is over"):
            next(batches)
    with pytest.raises(RuntimeError, match="step\\(\\) after 1 of the 2 batches"):
        run.optimizer.step()
    run.optimizer.zero_grad()
    CANNOT_BE_READ.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="a batch of the private loader was passed over")
        for number, (x, y) in enumerate(run.loader):
            run.backward(x, y)
            if number % 2:
                run.optimizer.step()
    assert run.charged == 4


def test_a_phase_without_privacy_before_the_first_step_trains_on_no_private_batch():
    run = Run()
    run.module.disable_hooks()
    x, y = next(iter(run.loader))
    torch.nn.functional.cross_entropy(run.module(x), y).backward()
    run.optimizer.original_optimizer.step()
    run.module.enable_hooks()
    with pytest.warns(UserWarning, match="passed over"), pytest.raises(RuntimeError, match="is not what the last step of the private optimizer made of it"):
        run.step(*next(iter(run.loader)))


def test_a_phase_on_public_data_before_the_first_step_may_train():
    run = Run()
    run.module.disable_hooks()
    torch.nn.functional.cross_entropy(run.module(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()
    run.optimizer.original_optimizer.step()
    run.module.enable_hooks()
    run.step(*next(iter(run.loader)))
    assert run.charged == 1
