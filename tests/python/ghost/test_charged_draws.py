"""Draws that no step was made of are charged all the same; batches of one's own as what they are at worst."""

import json

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private_run import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.accountants import PRVAccountant, RDPAccountant

# Draws that are passed over ------------------------------------------------------------------------------------------


def test_a_draw_that_is_passed_over_is_charged(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl")
    with pytest.warns(UserWarning, match="passed over"):
        for i, (x, y) in enumerate(run.loader):
            if i in (0, 2, 4):
                continue
            run.step(x, y)
    assert run.charged == 5
    run.engine.report(tmp_path / "report", delta=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [(line["step"], line["attempt"]) for line in lines[1:]] == [(step, 0) for step in range(5)]
    report = json.loads((tmp_path / "report" / "privacy_report.json").read_text())
    assert report["guarantee"]["epsilon"]["upper"] == pytest.approx(run.engine.get_epsilon(1e-5), rel=1e-9)
    assert report["sampler"]["executed"] == "poisson"
    assert report["sampler"]["seen"].startswith("by the engine")


def test_an_empty_draw_must_have_its_step():
    run = Run(draws=(8, 0, 7))
    with pytest.raises(RuntimeError, match="An empty batch is a step like any other"):
        for x, y in run.loader:
            if len(x) == 0:
                continue
            run.step(x, y)
    assert run.charged == 2
    run = Run(draws=(8, 0, 7))
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 3


@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
def test_a_look_at_the_first_batch_is_charged_and_nothing_else():
    run = Run(draws=(0, 7))
    next(iter(run.loader))
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 3


def test_a_logical_batch_that_is_dropped_stays_charged_everywhere(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl")
    for i, (x, y) in enumerate(run.loader):
        run.backward(x, y)
        if i == 1:
            run.optimizer.zero_grad()
            continue
        run.optimizer.step()
    assert run.charged == 5
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert len([line for line in lines if line["type"] == "release"]) == 5


def test_a_model_that_was_taken_back_charges_no_draw():
    run = Run(wrap_model=False)
    module = run.module
    run.module = run.model
    for x, y in run.loader:
        run.step(x, y)
    module.cleanup()
    for _ in run.loader:
        pass
    assert run.charged == 5


# Batches of one's own ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:batches of your own")
def test_own_batches_go_backward_once_a_step():
    run = Run(own_batches=True)
    assert run.loader is run.plain
    for x, y in run.plain:
        run.step(x, y)
    assert run.engine.accountant.history == [(1.0, 1.0, 5)]
    run.backward(x, y)
    with pytest.raises(RuntimeError, match="backward number 2 in one step"):
        run.backward(x, y)
    run.optimizer.step()
    run.step(x, y)
    run = Run(own_batches=True, accumulation_steps=2)
    run.backward(x[:2], y[:2])
    run.backward(x[2:], y[2:])
    run.optimizer.step()
    assert run.charged == 1


@pytest.mark.filterwarnings("ignore:batches of your own")
def test_own_batches_under_a_memory_manager():
    run = Run(own_batches=True)
    with BatchMemoryManager(data_loader=run.plain, max_physical_batch_size=3, optimizer=run.optimizer) as batches:
        for x, y in batches:
            run.step(x, y)
    assert run.charged == 5


@pytest.mark.parametrize("ledger", [False, True])
def test_a_second_model_of_one_engine_adds_up_and_needs_a_ledger_of_its_own(ledger, tmp_path):
    engine = PrivacyEngine(accountant="rdp")
    if ledger:
        engine.attach_ledger(tmp_path / "ledger.jsonl")

    def passes() -> None:
        model = nn.Linear(6, 3)
        module, optimizer, criterion, loader = engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost",
            data_loader=DataLoader(TensorDataset(torch.randn(40, 6), torch.zeros(40, dtype=torch.long)), batch_size=8),
        )  # fmt: skip
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()

    passes()
    if ledger:
        with pytest.raises(ValueError, match="ledger .* must not exist yet"):
            passes()
    else:
        passes()
    assert sum(steps for _, _, steps in engine.accountant.history) == (5 if ledger else 10)


def test_an_accountant_that_lost_steps_is_refused():
    run = Run()
    batches = iter(run.loader)
    run.step(*next(batches))
    kept = run.engine.accountant
    run.engine.accountant = RDPAccountant()
    with pytest.raises(RuntimeError, match="its accountant was replaced since"):
        run.engine.get_epsilon(1e-5)
    with pytest.raises(RuntimeError, match="its accountant was replaced since"):
        run.backward(*next(batches))
    run.engine.accountant = kept
    run.step(*next(batches))
    assert run.charged == 3 and run.engine.get_epsilon(1e-5) > 0
    kept.history.clear()
    with pytest.raises(RuntimeError, match="its accountant was left with 0"):
        run.engine.get_epsilon(1e-5)


def test_another_accountant_may_begin_and_be_given_a_copy():
    run = Run()
    run.engine.accountant = RDPAccountant()
    for x, y in run.loader:
        run.step(x, y)
    other = PRVAccountant()
    other.history = list(run.engine.accountant.history)
    assert 0 < other.get_epsilon(1e-5) < run.engine.get_epsilon(1e-5)


def test_a_memory_manager_takes_the_private_optimizer():
    run = Run()
    with pytest.raises(TypeError, match="give it the optimizer that make_private\\(\\) returned, got SGD"):
        BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer.original_optimizer).__enter__()


@pytest.mark.parametrize("noise", [1e300, 1e38])
def test_noise_that_is_no_float32_number_is_refused_before_its_step_is_charged(noise):
    run = Run()
    run.optimizer.noise_multiplier = noise  # as a schedule sets it
    with pytest.raises(ValueError, match="noise_multiplier times max_grad_norm must be at most 1e\\+36"):
        run.step(*next(iter(run.loader)))
    assert run.charged == 0 and run.engine.get_epsilon(1e-5) == 0
