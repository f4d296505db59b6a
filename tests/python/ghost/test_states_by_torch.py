"""The private optimizer's state by torch.distributed.checkpoint's functions, which step an optimizer without states before they read or write them."""

import pytest
import torch
from private_run import Run
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict, set_optimizer_state_dict

KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "plain": lambda p: torch.optim.SGD(p, lr=0.1), "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    "tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
}  # fmt: skip


def run_of(kind):
    run = Run()
    run.optimizer.original_optimizer = KINDS[kind](run.model.parameters())
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_with_the_state_that_another_saved(kind):
    first = run_of(kind)
    for x, y in first.loader:
        first.step(x, y)
    saved, privacy = get_optimizer_state_dict(first.model, first.optimizer), first.engine.state_dict()
    run = run_of(kind)
    before = run.model.weight.detach().clone()
    with pytest.warns(UserWarning, match="no ledger"):
        run.engine.load_state_dict(privacy)
    set_optimizer_state_dict(run.model, run.optimizer, saved)
    assert torch.equal(run.model.weight, before) and run.model.weight.grad is None
    of_both = [each.optimizer.original_optimizer for each in (first, run)]
    assert [group["lr"] for group in of_both[0].param_groups] == [group["lr"] for group in of_both[1].param_groups]
    for name, value in of_both[0].state[first.model.weight].items():
        assert value is None or torch.equal(value, of_both[1].state[run.model.weight][name])
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_loaded_without_its_charges_is_refused(kind):
    first = run_of(kind)
    for x, y in first.loader:
        first.step(x, y)
    run = run_of(kind)
    set_optimizer_state_dict(run.model, run.optimizer, get_optimizer_state_dict(first.model, first.optimizer))
    with pytest.raises(RuntimeError, match="of a run that had charged 5 steps"):
        run.step(*next(iter(run.loader)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_read_before_the_first_step_charges_nothing_and_changes_no_weight(kind):
    run = run_of(kind)
    before = run.model.weight.detach().clone()
    get_state_dict(run.model, run.optimizer)
    assert run.charged == 0 and torch.equal(run.model.weight, before)
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 5


def test_a_step_without_a_batch_is_refused_at_any_other_rate_and_with_other_gradients():
    run = run_of("plain")
    run.model.weight.grad, run.model.bias.grad = torch.zeros(3, 6), torch.zeros(3)
    with pytest.raises(RuntimeError, match="step\\(\\) needs a backward"):
        run.optimizer.step()
    run.optimizer.param_groups[0]["lr"] = 0.0
    run.model.weight.grad, run.model.bias.grad = torch.zeros(3, 6), torch.ones(3)
    with pytest.raises(RuntimeError, match="step\\(\\) needs a backward"):
        run.optimizer.step()


def test_a_release_at_a_rate_of_zero_is_a_release():
    """The first of a warm-up, after zero_grad(set_to_none=False)."""
    run = run_of("plain")
    run.optimizer.param_groups[0]["lr"] = 0.0
    x, y = next(iter(run.loader))
    run.backward(x, y)
    run.model.weight.grad, run.model.bias.grad = torch.zeros(3, 6), torch.zeros(3)
    run.optimizer.step()
    assert run.charged == 1 and bool(run.model.weight.grad.any())
