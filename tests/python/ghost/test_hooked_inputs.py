"""Forward pre-hooks of the caller's stand between the loop and the model: they are followed, or what they put in is refused."""

import pytest
import torch
from private_run import Run
from torch import nn


@pytest.mark.parametrize("keywords", [False, True])
@pytest.mark.parametrize("place", ["before make_private", "after it", "on what it returned"])
def test_a_hook_that_puts_other_examples_in_is_refused(place, keywords):
    model, active = nn.Linear(6, 3), []

    def swap(_module, args, kwargs=None):
        other = active[0].data[20 : 20 + len(args[0])][0]
        return ((other,), kwargs) if keywords else (other,)

    if place == "before make_private":
        model.register_forward_pre_hook(swap, with_kwargs=keywords)
    run = Run(model=model)
    active.append(run)
    if place != "before make_private":
        (run.model if place == "after it" else run.module).register_forward_pre_hook(swap, with_kwargs=keywords)
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="hook|neither from the loader"):
        run.backward(x, y)
    assert not run.engine.accountant.history


CHANGED_BY_HOOKS = {
    "before make_private": lambda x: (x - torch.arange(6.0)) / 2,
    "after it": lambda x: x.double().float().clone(),
    "on what it returned": lambda x: x.flip(1),
}


@pytest.mark.parametrize("place", CHANGED_BY_HOOKS)
def test_a_hook_that_keeps_examples_apart_is_followed(place):
    model = nn.Linear(6, 3)
    hook = lambda _module, args: tuple(map(CHANGED_BY_HOOKS[place], args))
    if place == "before make_private":
        model.register_forward_pre_hook(hook)
    run = Run(model=model, draws=(8, 1, 0, 7))
    if place != "before make_private":
        (run.model if place == "after it" else run.module).register_forward_pre_hook(hook)
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 4
