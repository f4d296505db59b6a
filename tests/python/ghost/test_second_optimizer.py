"""Another optimizer over a private model's parameters: what is there for it to apply, and that it applies nothing that was not released."""

import copy

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private_run import Run
from torch import nn
from torch.nn import functional as F


def run_of(**options):
    torch.manual_seed(9)
    return Run(model=nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), **options)


def second(run, kind=torch.optim.SGD, **options):
    return kind(run.model.parameters(), lr=0.1, **options)


def values_of(run):
    return [p.detach().clone() for p in run.model.parameters()]


def same(run, values):
    return all(torch.equal(p, q) for p, q in zip(run.model.parameters(), values))


def gradients(run):
    return [None if p.grad is None else p.grad.clone() for p in run.model.parameters()]


def put_raw(run, x, y):
    """Gradients without noise, of a copy of the model, which is not private."""
    twin = copy.deepcopy(run.model)
    F.cross_entropy(twin(x), y).backward()
    for p, q in zip(run.model.parameters(), twin.parameters()):
        p.grad = q.grad


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=lambda kind: kind.__name__)
def test_a_backward_leaves_it_nothing(kind):
    run, before = run_of(), None
    other = second(run, kind)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        before = values_of(run)
        run.backward(x, y)
        assert gradients(run) == [None] * 4
        other.step()
        assert same(run, before)
        run.optimizer.step()
    assert not same(run, before)


def test_before_a_step_there_is_what_the_step_before_released():
    run, released = run_of(), None
    for x, y in run.loader:
        run.backward(x, y)
        found = gradients(run)
        assert released is None or all(torch.equal(p, q) for p, q in zip(found, released, strict=True))
        run.optimizer.step()
        released = gradients(run)


def test_the_parts_of_a_batch_leave_it_nothing():
    run = run_of(draws=(12, 9))
    other, parts = second(run), 0
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer) as physical:
        for x, y in physical:
            run.optimizer.zero_grad()
            before = values_of(run)
            run.backward(x, y)
            assert gradients(run) == [None] * 4
            other.step()
            assert same(run, before)
            run.optimizer.step()
            parts += same(run, before)
    assert parts == 4 and run.charged == 2


def test_accumulation_leaves_it_nothing():
    run = run_of(draws=(8, 8), accumulation_steps=2)
    other = second(run)
    for number, (x, y) in enumerate(run.loader):
        before = values_of(run)
        run.backward(x, y)
        assert gradients(run) == [None] * 4
        other.step()
        assert same(run, before)
        if number % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()


def test_a_plain_backward_leaves_it_nothing():
    run = run_of()
    x, y = next(iter(run.loader))
    F.cross_entropy(run.module(x), y).backward()
    assert gradients(run) == [None] * 4
    with pytest.raises(RuntimeError, match=r"step\(\) needs a backward"):
        run.optimizer.step()


def test_after_a_refused_backward_there_is_nothing():
    run = run_of()
    x, y = next(iter(run.loader))
    run.backward(x, y)
    with pytest.raises(RuntimeError):
        run.backward(x, y)  # the same examples again
    assert gradients(run) == [None] * 4


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("when", ["before any step", "after a step"])
def test_gradients_without_noise_are_not_applied(kind, when):
    run = run_of()
    x, y = next(iter(run.loader))
    if when == "after a step":
        run.step(x, y)
    before, other = values_of(run), second(run, kind)
    put_raw(run, x, y)
    with pytest.raises(RuntimeError, match="not the one given to make_private.* stepped on parameter '0.weight'"):
        other.step()
    assert same(run, before) and gradients(run) == [None] * 4


def test_nor_over_a_part_of_the_parameters():
    run = run_of()
    x, y = next(iter(run.loader))
    stranger = nn.Parameter(torch.ones(2))
    other = torch.optim.SGD([stranger, run.model[2].bias], lr=0.1)
    put_raw(run, x, y)
    with pytest.raises(RuntimeError, match="stepped on parameter '2.bias'"):
        other.step()


def test_nor_added_to_what_was_released():
    """No version counter sees it, so a gradient that was released is not taken from another optimizer either."""
    run = run_of()
    x, y = next(iter(run.loader))
    run.step(x, y)
    for p in run.model.parameters():
        p.grad.data.add_(1.0)
    with pytest.raises(RuntimeError, match="nothing tells whether what it applies was released"):
        second(run).step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS], ids=lambda kind: kind.__name__)
def test_nor_by_a_closure(kind):
    """It would run after the check."""
    run = run_of()
    x, y = next(iter(run.loader))
    before = values_of(run)

    def closure():
        put_raw(run, x, y)
        return torch.zeros(())

    with pytest.raises(RuntimeError, match="not the one given to make_private"):
        second(run, kind).step(closure)
    assert same(run, before)


def test_the_users_word_lets_it_step_on_what_was_released():
    run = run_of(allow_vouched=True)
    run.step(*next(iter(run.loader)))
    before = values_of(run)
    second(run).step()
    assert not same(run, before)


def test_optimizers_of_other_models_step_as_they_like():
    run, generator = run_of(), nn.Linear(2, 6)
    other = torch.optim.SGD(generator.parameters(), lr=0.1)
    run.step(*next(iter(run.loader)))
    before = generator.weight.detach().clone()
    run.module.requires_grad_(False)
    generator(torch.ones(1, 2)).sum().backward()
    other.step()
    assert not torch.equal(generator.weight, before)


def test_an_optimizer_in_the_place_of_the_first_steps():
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    run.optimizer.original_optimizer = second(run, torch.optim.AdamW)
    before = values_of(run)
    run.step(*next(batches))
    assert not same(run, before) and run.charged == 2


class Slow(torch.optim.SGD):
    """An optimizer that holds another one, as Lookahead does."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.held = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1)

    def step(self, closure=None):
        self.held.step()


def test_an_optimizer_that_the_first_one_holds_steps():
    run = run_of()
    batches = iter(run.loader)
    run.optimizer.original_optimizer = slow = Slow(run.model.parameters())
    before = values_of(run)
    run.step(*next(batches))
    assert not same(run, before)
    x, y = next(batches)
    run.backward(x, y)
    run.optimizer.pre_step()
    slow.step()
    before = values_of(run)
    put_raw(run, x, y)
    with pytest.raises(RuntimeError, match="not the one given to make_private"):
        slow.held.step()
    assert same(run, before)


class Averaged(torch.optim.SGD):
    """A step of its parent's, and more: half the way back to slow weights, as Lookahead goes it. Before it, gradients by their signs."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.sign()
        super().step()
        for parameter in self.param_groups[0]["params"]:
            slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
            slow.lerp_(parameter.detach(), 0.5)
            parameter.data.copy_(slow)


@pytest.mark.parametrize("beneath", [False, True], ids=["step", "pre_step"])
def test_a_subclass_does_what_it_likes_around_its_parents_step(beneath):
    run = run_of()
    second(run)  # torch calls the hooks of a class's step from its first instance on, in the parent's step too
    run.optimizer.original_optimizer = Averaged(run.model.parameters(), lr=0.1)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.backward(x, y)
        before = values_of(run)
        if beneath:
            run.optimizer.pre_step()
            run.optimizer.original_optimizer.step()
        else:
            run.optimizer.step()
        assert not same(run, before)
    assert run.charged == 5


class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise OSError("no step today")


def test_a_step_that_ended_with_an_error_opens_the_way_for_no_other():
    run = run_of()
    x, y = next(iter(run.loader))
    run.optimizer.original_optimizer = broken = Broken(run.model.parameters(), lr=0.1)
    run.backward(x, y)
    run.optimizer.pre_step()
    with pytest.raises(OSError, match="no step today"):
        broken.step()
    before = values_of(run)
    put_raw(run, x, y)
    with pytest.raises(RuntimeError, match="not the one given to make_private"):
        second(run).step()
    put_raw(run, x, y)
    with pytest.raises(RuntimeError, match="is not the one that was released"):
        broken.step()
    assert same(run, before)


@pytest.mark.parametrize("how", ["remove_hooks", "disable_hooks"])
def test_a_phase_without_privacy_steps_as_it_likes(how):
    run = run_of()
    run.step(*next(iter(run.loader)))
    getattr(run.module, how)()
    x, y = run.data[:8]
    before = values_of(run)
    run.model.zero_grad()
    F.cross_entropy(run.model(x), y).backward()
    second(run).step()
    assert not same(run, before)


def test_one_that_steps_without_gradients_is_told_that_it_trains_nothing():
    """A backward that is no private step forms none: public data after the private passes, for instance."""
    run = run_of()
    other, before = second(run), values_of(run)
    for x, y in run.loader:
        run.step(x, y)
    trained = values_of(run)
    public = torch.randn(8, 6), torch.randint(0, 3, (8,))
    other.zero_grad()
    other.step()  # as some loops do before their first scheduler
    with pytest.warns(UserWarning, match="none of which has a gradient: it trains nothing.*take the model back first"):
        for _ in range(3):
            other.zero_grad()
            F.cross_entropy(run.model(public[0]), public[1]).backward()
            other.step()
    assert same(run, trained)
    run.module.cleanup()
    F.cross_entropy(run.model(public[0]), public[1]).backward()
    other.step()
    assert not same(run, trained) and not same(run, before)
