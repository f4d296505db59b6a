"""Weights that somebody else than the private optimizer has written between two steps: refused, unless they are known to be released."""

import copy

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

WRITTEN = "is not what the last step of the private optimizer made of it"


def run_of(**options):
    torch.manual_seed(9)
    return Run(model=nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), **options)


def trained_copy(run, x, y):
    """A plain copy, after a step on the batch without noise."""
    twin = copy.deepcopy(run.model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    F.cross_entropy(twin(x.clone()), y.clone()).backward()
    optimizer.step()
    return twin


def load(model, twin):
    model.load_state_dict(twin.state_dict())


def write(model, twin):
    with torch.no_grad():
        for p, q in zip(model.parameters(), twin.parameters()):
            p.copy_(q)


def swap_data(model, twin):
    for p, q in zip(model.parameters(), twin.parameters()):
        p.data = q.data.clone()


def write_data(model, twin):
    for p, q in zip(model.parameters(), twin.parameters()):
        p.data.copy_(q.data)


def by_vector(model, twin):
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(twin.parameters()), model.parameters())


def one_alone(model, twin):
    model[2].bias.data.copy_(twin[2].bias.data)


def mixed(model, twin):
    for p, q in zip(model.parameters(), twin.parameters()):
        p.data.lerp_(q.data, 0.1)


WAYS = (load, write, swap_data, write_data, by_vector, one_alone, mixed)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("when", ["before the backward", "before the step", "before the optimizer beneath"])
def test_a_copy_that_was_trained_without_noise_is_refused(way, when):
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    x, y = next(batches)
    twin = trained_copy(run, x, y)
    if when == "before the backward":
        way(run.model, twin)
        with pytest.raises(RuntimeError, match=WRITTEN):
            run.backward(x, y)
        return
    run.backward(x, y)
    if when == "before the step":
        way(run.model, twin)
        with pytest.raises(RuntimeError, match=WRITTEN):
            run.optimizer.step()
        return
    run.optimizer.pre_step()
    way(run.model, twin)
    with pytest.raises(RuntimeError, match=WRITTEN):
        run.optimizer.original_optimizer.step()


def test_it_stays_refused():
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    x, y = next(batches)
    load(run.model, trained_copy(run, x, y))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=WRITTEN):
            run.backward(x, y)


def test_frozen_weights_too():
    run = run_of()
    run.model[0].requires_grad_(False)
    batches = iter(run.loader)
    run.step(*next(batches))
    run.model[0].weight.data.add_(torch.rand(5, 6))
    with pytest.raises(RuntimeError, match=f"'0.weight' {WRITTEN}"):
        run.backward(*next(batches))


def averaged_and_back(model, held):
    held["now"] = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: 0.5 * value for name, value in held["now"].items()})
    model(torch.zeros(1, 6))
    model.load_state_dict(held["now"])


def an_earlier_step(model, held):
    held.setdefault("best", copy.deepcopy(model.state_dict()))
    model.load_state_dict(held["best"])


def clamped(model, _):
    for p in model.parameters():
        p.data.clamp_(-0.2, 0.3)


def decayed(model, _):
    for p in model.parameters():
        p.data.mul_(0.9)


def merged_and_unmerged(model, _):
    for p in model.parameters():
        more = torch.rand_like(p)
        p.data.add_(more).sub_(more)


@pytest.mark.parametrize("change", [averaged_and_back, an_earlier_step, clamped, decayed, merged_and_unmerged], ids=lambda change: change.__name__)
def test_what_released_weights_alone_decide_is_taken(change):
    run, held = run_of(), {}
    for x, y in run.loader:
        run.step(x, y)
        with torch.no_grad():
            change(run.model, held)
    assert run.charged == 5


def test_weights_before_the_first_step_are_the_users():
    run = run_of()
    run.model.load_state_dict(run_of().model.state_dict())
    decayed(run.model, None)
    run.model[0].weight.data.normal_()
    run.step(*next(iter(run.loader)))
    assert run.charged == 1


def test_the_users_word_lets_weights_be_replaced():
    run = run_of(allow_vouched=True)
    for x, y in run.loader:
        run.step(x, y)
        run.model[0].weight.data.normal_()
    assert run.charged == 5


def test_a_checkpoint_that_is_loaded_is_taken(tmp_path):
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    run.engine.save_checkpoint(path=tmp_path / "one", module=run.module, optimizer=run.optimizer)
    run.step(*next(batches))
    other = run_of()
    other.step(*next(iter(other.loader)))
    other.engine.load_checkpoint(path=tmp_path / "one", module=other.module, optimizer=other.optimizer)
    other.step(*next(iter(other.loader)))


def test_the_samples_of_large_parameters_are_few_and_toss_no_coins():
    run = Run(model=nn.Sequential(nn.Linear(6, 512), nn.Linear(512, 512), nn.Linear(512, 3)))
    before = torch.get_rng_state()
    weights = run.module.engine.weights
    weights.note()
    assert torch.equal(before, torch.get_rng_state())
    assert 64 + 512 * 512 // 4096 <= max(weights._kept.counts) < 1.1 * (64 + 512 * 512 // 4096)


def phase(run, batches, *, trains):
    """Without privacy."""
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    run.module.disable_hooks()
    for x, y in batches:
        optimizer.zero_grad()
        with torch.set_grad_enabled(trains):
            loss = F.cross_entropy(run.module(x), y)
        if trains:
            loss.backward()
            optimizer.step()
    optimizer.zero_grad()
    run.module.enable_hooks()


@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
def test_a_phase_without_privacy_has_no_draws():
    run = run_of()
    for x, y in run.loader:
        run.step(x, y)
    phase(run, run.loader, trains=True)
    with pytest.raises(RuntimeError, match=WRITTEN):
        run.backward(*next(iter(run.loader)))


@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
@pytest.mark.parametrize(("draws", "trains"), [(False, True), (True, False)], ids=["others", "an evaluation"])
def test_a_phase_of_others_trains_and_one_of_draws_evaluates(draws, trains):
    run = run_of()
    for x, y in run.loader:
        run.step(x, y)
    phase(run, run.loader if draws else [(torch.randn(4, 6), torch.zeros(4, dtype=torch.long))], trains=trains)
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == (15 if draws else 10)
