"""A step is made of one draw of the private loader, whole, once; everything else is refused."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private_run import BATCH, Run
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from ghostshard.loaders import GhostDataLoader

# Loops that are refused ----------------------------------------------------------------------------------------------


def a_loader_of_ones_own(run):
    for x, y in run.plain:
        run.step(x, y)


def a_loader_of_ones_own_beside_the_private_one(run):
    for (x, y), _ in zip(run.loader, DataLoader(run.data, batch_size=5)):
        run.step(x[:5], y[:5])


def the_loader_that_was_private_before_make_private(run):
    for x, y in GhostDataLoader(run.data, sample_rate=0.2):
        run.step(x, y)


def a_batch_kept_from_the_draw_before(run):
    kept = None
    for x, y in run.loader:
        run.step(*(kept or (x, y)))
        kept = x, y


def a_step_every_two_draws(run):
    for i, (x, y) in enumerate(run.loader):
        run.backward(x, y)
        if i % 2:
            run.optimizer.step()


def a_backward_and_then_continue(run):
    for i, (x, y) in enumerate(run.loader):
        run.backward(x, y)
        if i % 2 == 0:
            continue
        run.optimizer.step()
        run.optimizer.zero_grad()


def two_backwards_over_the_same_examples(run):
    for x, y in run.loader:
        run.backward(x, y)
        run.backward(x + 1, y)
        run.optimizer.step()


def two_steps_on_one_draw(run):
    for x, y in run.loader:
        run.step(x, y)
        run.step(x, y)


def half_of_a_draw_twice(run):
    for x, y in run.loader:
        run.backward(x[:4], y[:4])
        run.backward(x[:4], y[:4])
        run.optimizer.step()


def all_batches_fetched_first(run):
    for x, y in list(run.loader):
        run.step(x, y)


def rows_become_units(run):
    for x, y in run.loader:
        run.step(x.view(-1, 3).repeat(1, 2), y.repeat_interleave(2))


def an_example_joins(run):
    for x, y in run.loader:
        run.step(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))


def after_zero_grad_the_same_batch_again(run):
    for x, y in run.loader:
        run.backward(x, y)
        run.optimizer.zero_grad()
        run.backward(x, y)


REFUSED = {
    # name: (loop, the sentence, steps charged until then)
    a_loader_of_ones_own: ("no batch of the private loader is under way.*own_batches=True", 0),
    a_loader_of_ones_own_beside_the_private_one: ("over 5 units, but the private loader's batch has 8", 0),
    the_loader_that_was_private_before_make_private: ("no batch of the private loader is under way", 0),
    a_batch_kept_from_the_draw_before: ("over 8 units, but the private loader's batch has 7", 1),
    a_step_every_two_draws: (r"next draw was asked for before optimizer\.step\(\).*accumulation_steps=k", 1),
    a_backward_and_then_continue: (r"next draw was asked for before optimizer\.step\(\).*BatchMemoryManager", 1),
    two_backwards_over_the_same_examples: ("has gone backward already.*count twice", 1),
    two_steps_on_one_draw: ("the last draw has had its step", 1),
    half_of_a_draw_twice: ("over 4 units, but the private loader's batch has 8", 0),
    all_batches_fetched_first: ("one at a time|can have no step any more", 5),
    rows_become_units: ("over 16 units, but the private loader's batch has 8.*units=", 0),
    an_example_joins: ("over 9 units, but the private loader's batch has 8", 0),
    after_zero_grad_the_same_batch_again: ("dropped, and stays charged", 1),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loop", REFUSED, ids=lambda loop: loop.__name__)
def test_a_loop_off_the_path_is_refused(loop, workers):
    sentence, charged = REFUSED[loop]
    run = Run(workers=workers)
    before = [p.detach().clone() for p in run.model.parameters()]
    with pytest.raises((RuntimeError, ValueError), match=sentence):
        loop(run)
    assert run.charged == charged
    if charged == 0:
        assert all(torch.equal(p, q) for p, q in zip(run.model.parameters(), before))


def test_crops_that_collate_flattens_are_refused():
    """Four rows of an example, each clipped for itself, would move the sum by 4 C."""

    def four(examples):
        x, y = (torch.stack(column) for column in zip(*examples))
        return x.repeat_interleave(4, 0), y.repeat_interleave(4, 0)

    run = Run(collate=four)
    with pytest.raises(ValueError, match="over 32 units, but the private loader's batch has 8"):
        run.step(*next(iter(run.loader)))


def crops(examples):
    """Four rows of each example, and whose each row is."""
    x, y = (torch.stack(column) for column in zip(*examples))
    rows = x.repeat_interleave(4, 0) * torch.tensor([1.0, -1.0, 0.5, 2.0]).repeat(len(x))[:, None]
    return rows, y.repeat_interleave(4, 0), torch.arange(len(x)).repeat_interleave(4)


@pytest.mark.parametrize("order", ["together", "shuffled"])
def test_rows_of_one_example_are_joined_exactly(order):
    """An example's gradient is that of the mean over its rows, clipped as one."""
    run = Run(collate=crops, noise=0.0)
    twin = copy.deepcopy(run.model)
    x, y, units = next(iter(run.loader))
    expected = oracle.clipped_sum(
        twin, lambda m, batch: functional.cross_entropy(m(batch[0][0]), batch[1][0]), [(x.view(8, 4, 6), y.view(8, 4))], 0.1
    )
    places = torch.arange(32) if order == "together" else torch.randperm(32)
    run.criterion(run.module(x[places], units=units[places]), y[places]).backward()
    run.optimizer.step()
    found = {name: p.grad * BATCH for name, p in run.model.named_parameters()}
    assert oracle.worst_difference(found, expected) < SUM_TOLERANCE


UNITS = {
    "too_few": (torch.randn(4, 6), [0, 0, 1], "one for each of the 4 rows"),
    "not_integers": (torch.randn(4, 6), [0.5, 0, 1, 1], "units must be integers"),
}


@pytest.mark.parametrize("x, units, sentence", UNITS.values(), ids=UNITS)
def test_units_that_do_not_fit_are_refused(x, units, sentence):
    with pytest.raises(ValueError, match=sentence):
        Run().module(x, units=units)


# Loops that are right ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_documented_loop_is_charged_once_a_draw(workers):
    run = Run(draws=None, workers=workers, ledger=None)
    for _ in range(3):
        for x, y in run.loader:
            run.step(x, y)
    assert run.engine.accountant.history == [(1.0, 0.2, 15)]


def test_persistent_workers_and_a_pass_that_is_left_early():
    run = Run(workers=2)
    for _ in range(3):
        for i, (x, y) in enumerate(run.loader):
            run.step(x, y)
            if i == 1:
                break
    assert run.charged == 6


def test_evaluation_asks_for_nothing():
    run = Run()
    x, y = run.data.tensors
    for batch in run.loader:
        run.step(*batch)
        with torch.no_grad():
            run.module(x)
        run.module.eval()
        run.module(x[:3])  # a forward without a backward
        run.module.train()
    assert run.charged == 5


def test_one_loss_of_two_forwards_is_one_backward():
    run = Run()
    for x, y in run.loader:
        run.optimizer.zero_grad()
        (run.criterion(run.module(x), y) + run.criterion(run.module(-x), y)).backward()
        run.optimizer.step()
    assert run.charged == 5


def test_a_backward_that_failed_may_be_repeated():
    run = Run()
    for x, y in run.loader:
        with pytest.raises(ValueError, match="units"):
            run.backward(x[:3], y[:3])
        run.step(x, y)
    assert run.charged == 5


@pytest.mark.parametrize("step_at", ["last", "manager"])
@pytest.mark.parametrize("workers", [0, 2])
def test_one_draw_in_pieces_is_the_draw_whole(step_at, workers):
    """accumulation_steps=k: the loader cuts; a BatchMemoryManager: it cuts and skips steps. Both are the sum of the whole draw."""

    def trained(pieces):
        options = {"accumulation_steps": 3} if pieces == "last" else {}
        run = Run(draws=(8, 1, 0, 9), noise=0.0, workers=workers, **options)
        if pieces == "manager":
            with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as batches:
                for x, y in batches:
                    run.step(x, y)
        for i, (x, y) in enumerate(run.loader if pieces != "manager" else ()):
            run.backward(x, y)
            if pieces == "whole" or (i + 1) % 3 == 0:
                run.optimizer.step()
                run.optimizer.zero_grad()
        assert run.charged == 4
        return run.model.weight.detach()

    torch.testing.assert_close(trained(step_at), trained("whole"), rtol=1e-5, atol=1e-7)


def test_a_step_in_the_middle_of_a_draw_is_refused():
    run = Run(accumulation_steps=4)
    with pytest.raises(RuntimeError, match="after 2 of the 4 batches"):
        for i, (x, y) in enumerate(run.loader):
            run.backward(x, y)
            if i % 2:
                run.optimizer.step()


def test_pieces_that_are_fetched_ahead_are_of_one_draw():
    """As Hugging Face's Trainer fetches the batches of one update."""
    run = Run(accumulation_steps=2)
    batches = iter(run.loader)
    for _ in range(5):
        for x, y in [next(batches), next(batches)]:
            run.backward(x, y)
        run.optimizer.step()
    assert run.charged == 5


def test_two_ways_of_cutting_are_refused():
    run = Run(accumulation_steps=2)
    with pytest.raises(ValueError, match="Use one of them"):
        BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer).__enter__()
    with pytest.raises(ValueError, match="accumulation_steps must be a whole number"):
        Run(accumulation_steps=0)


# Models entered in other ways ----------------------------------------------------------------------------------------


class Flattens(nn.Module):
    """Its layers are called by a method of its own, on all rows of all examples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)

    def logits(self, x):
        return self.layer(x.repeat(3, 1))


def test_layers_called_by_a_method_count_units_too():
    run = Run(model=Flattens())
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="over 24 units, but the private loader's batch has 8"):
        run.criterion(run.model.logits(x), y.repeat(3)).backward()


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.layer(x))

    def method(self, x):
        return functional.linear(self.layer(self.layer(x)), self.out.weight)


@pytest.mark.parametrize("plain", [False, True], ids=["criterion", "plain_backward"])
def test_a_parameter_used_outside_of_its_layer_by_a_method(plain):
    run = Run(model=ByHand())
    x, y = next(iter(run.loader))
    with pytest.raises(RuntimeError, match=r"'out\.weight' was used outside"):
        logits = run.model.method(x)
        (functional.cross_entropy(logits, y) if plain else run.criterion(logits, y)).backward()
    assert run.model.out.weight.grad is None
