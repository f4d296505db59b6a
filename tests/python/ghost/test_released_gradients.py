"""What is written into `.grad` between the release and the step is not applied, unless it is the released gradient scaled or clipped."""

import copy

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F


def model():
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def run_of(**options):
    return Run(model=model(), **options)


def raw(run, x, y):
    """Gradients without noise, of a copy of the model, which is not private."""
    twin = copy.deepcopy(run.model)
    F.cross_entropy(twin(x), y).backward()
    return [p.grad for p in twin.parameters()]


def values_of(run):
    return [p.detach().clone() for p in run.model.parameters()]


def added(run, of_copy):
    for p, g in zip(run.model.parameters(), of_copy):
        p.grad.add_(g)


def added_to_the_data(run, of_copy):
    for p, g in zip(run.model.parameters(), of_copy):
        p.grad.data.add_(g)  # no version counter sees it


def by_numpy(run, of_copy):
    for p, g in zip(run.model.parameters(), of_copy):
        p.grad.numpy()[:] += g.numpy()


def replaced(run, of_copy):
    for p, g in zip(run.model.parameters(), of_copy):
        p.grad = g


def one_element(run, of_copy):
    next(run.model.parameters()).grad[0, 0] = of_copy[0][0, 0]


def signs(run, of_copy):
    for p, g in zip(run.model.parameters(), of_copy):
        p.grad.mul_(g.sign())


def a_mask(run, of_copy):
    for p, g in zip(run.model.parameters(), of_copy):
        p.grad.mul_(g > 0)


CHANGES = [added, added_to_the_data, by_numpy, replaced, one_element, signs, a_mask]


def between(run, change, x, y):
    run.backward(x, y)
    assert run.optimizer.pre_step()
    change(run, raw(run, x, y))
    run.optimizer.original_optimizer.step()


def in_a_hook(run, change, x, y):
    run.optimizer.register_step_pre_hook(lambda *_: change(run, raw(run, x, y)))
    run.step(x, y)


def in_a_hook_of_the_original(run, change, x, y):
    run.backward(x, y)
    run.optimizer.original_optimizer.register_step_pre_hook(lambda *_: change(run, raw(run, x, y)))
    run.optimizer.step()


def in_opacus_step_hook(run, change, x, y):
    run.optimizer.attach_step_hook(lambda _: change(run, raw(run, x, y)))
    run.step(x, y)


PLACES = [between, in_a_hook, in_a_hook_of_the_original, in_opacus_step_hook]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_what_was_not_released_is_not_applied(place, change):
    run = run_of()
    before = values_of(run)
    with pytest.raises(RuntimeError, match="is not the one that was released"):
        place(run, change, *next(iter(run.loader)))
    assert all(torch.equal(p, q) for p, q in zip(run.model.parameters(), before))
    assert all(p.grad is None for p in run.model.parameters())
    assert run.charged == 1


def clip_all(run):
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.01)


def clip_each(run):
    for p in run.model.parameters():
        torch.nn.utils.clip_grad_norm_([p], 0.01)


def clip_values(run):
    torch.nn.utils.clip_grad_value_(run.model.parameters(), 0.01)


def unscale(run):
    for p in run.model.parameters():
        p.grad = p.grad / 3  # another tensor


def drop(run):
    list(run.model.parameters())[1].grad = None


@pytest.mark.parametrize("change", [clip_all, clip_each, clip_values, unscale, drop], ids=lambda f: f.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_post_processing_goes_through(place, change, dtype):
    run = Run(model=model().to(dtype))
    before, x, y = values_of(run), *next(iter(run.loader))
    place(run, lambda run, _: change(run), x.to(dtype), y)
    if dtype is torch.float32:  # of bfloat16 the step is less than half of a weight's last place
        assert not torch.equal(run.model[2].weight, before[2])
    if change is drop:
        assert torch.equal(run.model[0].bias, before[1])


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_any_change_goes_through_by_the_users_word(place):
    run = run_of(allow_vouched=True)
    before, x, y = values_of(run), *next(iter(run.loader))
    place(run, a_mask, x, y)
    assert not torch.equal(run.model[2].weight, before[2])


@pytest.mark.parametrize("options", [{}, {"allow_vouched": True}], ids=["", "vouched"])
def test_the_optimizer_beneath_takes_no_gradient_that_was_not_released(options):
    run = run_of(**options)
    x, y = next(iter(run.loader))
    before = values_of(run)
    replaced(run, raw(run, x, y))
    with pytest.raises(RuntimeError, match="stepped by itself"):
        run.optimizer.original_optimizer.step()
    run.step(x, y)  # which overwrites what is there
    now = values_of(run)
    added_to_the_data(run, raw(run, x, y))
    with pytest.raises(RuntimeError, match="stepped by itself"):
        run.optimizer.original_optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(values_of(run), now))
    assert not torch.equal(now[0], before[0])


def test_a_closure_of_the_optimizer_beneath_is_refused():
    """It would run after the comparison."""
    run = run_of()
    x, y = next(iter(run.loader))
    run.backward(x, y)
    run.optimizer.pre_step()
    with pytest.raises(RuntimeError, match="given a closure"):
        run.optimizer.original_optimizer.step(lambda: replaced(run, raw(run, x, y)))


def test_a_hook_that_comes_after_the_comparison_is_refused():
    run = run_of()
    x, y = next(iter(run.loader))
    run.backward(x, y)
    run.optimizer.pre_step()
    run.optimizer.original_optimizer.register_step_pre_hook(lambda *_: added(run, raw(run, x, y)))
    with pytest.raises(RuntimeError, match="registered between the release and the step"):
        run.optimizer.original_optimizer.step()


@pytest.mark.parametrize("where", ["new group", "same group", "groups swapped"])
def test_a_frozen_parameter_that_only_the_optimizer_has_is_not_moved(where):
    """Optimizers apply `.grad` whether the parameter requires one or not."""
    run = run_of()
    x, y = next(iter(run.loader))
    extra = nn.Parameter(torch.ones(3), requires_grad=False)
    groups = run.optimizer.param_groups
    if where == "new group":
        run.optimizer.add_param_group({"params": [extra]})
    elif where == "same group":
        groups[0]["params"].append(extra)
    else:
        run.optimizer.param_groups = [{**groups[0], "params": [extra, *groups[0]["params"]]}]
    run.backward(x, y)
    extra.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="has a gradient that was not released"):
        run.optimizer.step()
    assert torch.equal(extra, torch.ones(3))


def test_a_model_that_is_taken_back_trains_as_it_likes():
    run = run_of()
    run.step(*next(iter(run.loader)))
    run.module.remove_hooks()
    x, y = run.data[:8]
    F.cross_entropy(run.model(x), y).backward()
    run.optimizer.original_optimizer.step()


def test_a_public_phase_with_disabled_hooks_trains_as_it_likes():
    run = run_of()
    run.module.disable_hooks()
    x, y = run.data[:8]
    F.cross_entropy(run.model(x), y).backward()
    run.optimizer.original_optimizer.step()
    run.module.enable_hooks()
    run.optimizer.zero_grad()
    run.step(*next(iter(run.loader)))


def test_weights_that_a_hook_writes_after_the_step_are_no_steps():
    run = run_of()
    batches = iter(run.loader)

    def writes(*_):
        with torch.no_grad():
            for p in run.model.parameters():
                p.add_(torch.randn_like(p))

    run.optimizer.register_step_post_hook(writes)
    run.step(*next(batches))
    with pytest.raises(RuntimeError, match="is not what the last step of the private optimizer made of it"):
        run.backward(*next(batches))


def test_a_hook_may_read_and_clip_weights_after_the_step():
    run, kept = run_of(), []

    def clips(*_):
        kept.append(values_of(run))
        with torch.no_grad():
            for p in run.model.parameters():
                p.clamp_(-0.3, 0.3)

    run.optimizer.register_step_post_hook(clips)
    for x, y in run.loader:
        run.step(x, y)
    assert len(kept) == run.charged == 5
