"""Charges that a program loses (an accountant set back, an optimizer's state loaded without its run), and reports and checkpoints of
weights that the run did not make."""

import contextlib
import copy
import io

import opacus
import pytest
import torch
from private_run import Run
from torch import nn
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine
from ghostshard.accountants import ContourAccountant


def trained(run) -> None:
    for x, y in run.loader:
        run.step(x, y)


def test_an_accountant_that_is_set_back_to_a_longer_history_than_this_process_made():
    """As after a run that diverged, in a process that went on with another one's charges."""
    first = Run()
    trained(first)
    saved = copy.deepcopy(first.engine.accountant.state_dict())
    run = Run()
    run.engine.accountant.load_state_dict(saved)
    trained(run)
    assert run.charged == 10
    run.engine.accountant.load_state_dict(copy.deepcopy(saved))
    with pytest.raises(RuntimeError, match="charged 10 steps, and its accountant was left with 5"):
        run.engine.get_epsilon(1e-5)
    with pytest.raises(RuntimeError, match="left with 5"):
        trained(run)


def test_an_accountant_that_is_given_as_many_steps_with_more_noise():
    """Of another run, or written by hand."""
    run = Run()
    trained(run)
    run.engine.accountant.history = [(100.0, 0.01, 5)]
    with pytest.raises(RuntimeError, match="charged 5 steps, and its accountant was left with 0 of them"):
        run.engine.get_epsilon(1e-5)


KINDS = {"truncated": {"max_batch_size": 10}, "in bins": {"sampling": "balls_in_bins"}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["second call", "another accountant"])
def test_steps_are_counted_as_what_they_are(kind, how):
    """A second make_private() of an engine that has charged nothing, and another accountant, count Poisson samples."""
    engine = PrivacyEngine(accountant="contour")
    first, second = (Run(draws=None, engine=engine, **options) for options in (KINDS[kind], {} if how == "second call" else KINDS[kind]))
    if how == "another accountant":
        engine.accountant = ContourAccountant()
    with pytest.raises(RuntimeError, match="counts steps of another kind than those of this run: truncation None, bins None, and they are"):
        trained(first)
    with pytest.raises(RuntimeError, match="another kind") if how == "another accountant" else contextlib.nullcontext():
        trained(second)


def test_an_accountant_that_is_told_to_count_another_kind():
    run = Run(draws=None, engine=PrivacyEngine(accountant="contour"), sampling="balls_in_bins")
    trained(run)
    run.engine.accountant.bins = None
    with pytest.raises(RuntimeError, match="another kind"):
        run.engine.get_epsilon(1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_file_of_opacus_adds_its_steps_to_those_that_were_charged(tmp_path):
    theirs = opacus.PrivacyEngine(accountant="rdp")
    run = Run(noise=0.5)
    trained(run)
    theirs.accountant.history = [(20.0, 0.2, 15)]
    theirs.save_checkpoint(path=tmp_path / "theirs.pt", module=run.module)
    run.engine.load_checkpoint(path=tmp_path / "theirs.pt", module=run.module)
    assert run.engine.accountant.history == [(0.5, 0.2, 5), (20.0, 0.2, 15)]
    trained(run)
    assert run.charged == 25


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_cannot_be_loaded_leaves_the_charges(tmp_path):
    """Opacus' method has put the file's in their place when it comes to the optimizer."""
    first = Run(noise=20.0)
    for _ in range(3):
        trained(first)
    first.engine.save_checkpoint(path=tmp_path / "run.pt", module=first.module, optimizer=first.optimizer)
    run = Run(noise=0.5)
    trained(run)
    run.optimizer.original_optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match="parameter group"):
        run.engine.load_checkpoint(path=tmp_path / "run.pt", module=run.module, optimizer=run.optimizer)
    assert run.engine.accountant.history == [(0.5, 0.2, 5)]


def test_a_ledger_holds_all_that_the_accountant_does(tmp_path):
    """Steps that were loaded before make_private(), and steps that are put there later."""
    first = Run()
    trained(first)
    engine = PrivacyEngine(accountant="rdp")
    engine.accountant.load_state_dict(first.engine.accountant.state_dict())
    with pytest.raises(ValueError, match="the accountant holds 5 steps beside those of this ledger.*load its checkpoint after make_private"):
        Run(engine=engine, ledger=tmp_path / "ledger.jsonl")
    run = Run(ledger=tmp_path / "ledger.jsonl")
    trained(run)
    run.engine.report(tmp_path, delta=1e-5)
    run.engine.accountant.history = [(0.7, 0.2, 50), *run.engine.accountant.history]
    with pytest.raises(ValueError, match="holds 50 steps beside those of this ledger"):
        run.engine.report(tmp_path, delta=1e-5)


@pytest.mark.parametrize("history_first", [True, False])
def test_a_state_of_the_optimizer_needs_the_charges_of_its_run(history_first):
    first = Run()
    trained(first)
    state, charges = first.optimizer.state_dict(), first.engine.accountant.state_dict()
    assert state["ghostshard_charges"] == 5
    run = Run()
    if history_first:
        run.engine.accountant.load_state_dict(charges)
    run.optimizer.load_state_dict(state)
    if not history_first:
        with pytest.raises(RuntimeError, match="of a run that had charged 5 steps, and this engine's accountant knows of 0"):
            run.engine.get_epsilon(1e-5)
        with pytest.raises(RuntimeError, match="load_checkpoint"):
            trained(run)
        run.engine.accountant.load_state_dict(charges)
    trained(run)
    assert run.charged == 10 + (not history_first)  # the draw that was refused is charged too
    assert run.engine.get_epsilon(1e-5) > first.engine.get_epsilon(1e-5)


def test_a_state_that_was_loaded_before_make_private_needs_them_too():
    first = Run()
    trained(first)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.load_state_dict(first.optimizer.state_dict())
    engine = PrivacyEngine(accountant="rdp")
    engine.make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(first.data, batch_size=8), noise_multiplier=1.0, max_grad_norm=0.1,
        criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="had charged 5 steps, and this engine's accountant knows of 0"):
        engine.get_epsilon(1e-5)
    engine.accountant.load_state_dict(first.engine.accountant.state_dict())
    assert engine.get_epsilon(1e-5) == first.engine.get_epsilon(1e-5)
    assert all("ghostshard_charges" not in group for group in optimizer.param_groups)


def taken_back(first) -> nn.Module:
    first.module.remove_hooks()
    return first.model


def saved_whole(first) -> nn.Module:
    file = io.BytesIO()
    torch.save(taken_back(first), file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def within_another(first) -> nn.Module:
    return nn.Sequential(taken_back(first), nn.Linear(3, 3))


@pytest.mark.parametrize("again", [taken_back, lambda first: copy.deepcopy(first.model), saved_whole, within_another])
def test_weights_of_a_run_need_its_charges(again):
    """A notebook's cell that calls make_private() once more."""
    first = Run()
    trained(first)
    run = Run(model=again(first))
    with pytest.raises(RuntimeError, match="trained by a run that had charged 5 steps, and this engine's accountant knows of 0"):
        run.engine.get_epsilon(1e-5)
    with pytest.raises(RuntimeError, match="Go on with the engine of that run"):
        trained(run)
    run.engine.accountant.load_state_dict(first.engine.accountant.state_dict())
    trained(run)
    assert run.engine.get_epsilon(1e-5) > first.engine.get_epsilon(1e-5)


def test_the_engine_of_that_run_has_them():
    first = Run()
    trained(first)
    run = Run(model=taken_back(first), engine=first.engine)
    trained(run)
    assert run.charged == 10
    third = Run(model=copy.deepcopy(run.model))
    with pytest.raises(RuntimeError, match="had charged 10 steps"):
        trained(third)


def test_weights_with_which_a_run_began_owe_nothing():
    first = Run()
    began = copy.deepcopy(first.model.state_dict())
    trained(first)
    taken_back(first).load_state_dict(began)
    run = Run(model=first.model)
    trained(run)
    assert run.charged == 5


def test_a_run_on_other_data_may_be_left_out():
    first = Run()
    trained(first)
    for each in taken_back(first).modules():
        vars(each).pop("ghostshard_charges", None)
    run = Run(model=first.model)
    trained(run)
    assert run.charged == 5


def test_a_run_that_charged_nothing_is_owed_nothing():
    run = Run(model=taken_back(Run()))
    trained(run)
    assert run.charged == 5


def test_a_checkpoint_of_the_engine_has_its_charges(tmp_path):
    first = Run()
    trained(first)
    first.engine.save_checkpoint(path=tmp_path / "run.pt", module=first.module, optimizer=first.optimizer)
    run = Run()
    with pytest.warns(UserWarning, match="no ledger"):
        run.engine.load_checkpoint(path=tmp_path / "run.pt", module=run.module, optimizer=run.optimizer)
    trained(run)
    assert run.charged == 10


def test_the_state_of_the_wrapped_optimizer_stays_what_torch_takes():
    run = Run()
    trained(run)
    torch.optim.SGD(run.model.parameters(), lr=1.0).load_state_dict(run.optimizer.state_dict())


def written_over(run) -> None:
    with torch.no_grad():
        run.model.weight.copy_(torch.randn(3, 6))



def test_a_report_does_not_speak_of_weights_that_were_put_in_afterwards(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl")
    trained(run)
    run.engine.report(tmp_path / "right")
    written_over(run)
    run.engine.report(tmp_path / "wrong")
    right, wrong = ((tmp_path / name / "privacy_report.json").read_text() for name in ("right", "wrong"))
    sentence = "not known: weights were changed after the last step, and this report says nothing of those"
    assert sentence in wrong and sentence not in right


def test_such_weights_are_not_saved_as_the_runs(tmp_path):
    run = Run()
    trained(run)
    written_over(run)
    with pytest.raises(RuntimeError, match="'weight' is not what the last step of the private optimizer made of it"):
        run.engine.save_checkpoint(path=tmp_path / "run.pt", module=run.module, optimizer=run.optimizer)
    with pytest.raises(RuntimeError, match="'weight' is not what"):
        run.engine.state_dict()


def test_weights_before_the_first_step_are_the_users_own(tmp_path):
    run = Run()
    run.engine.save_checkpoint(path=tmp_path / "run.pt", module=run.module, optimizer=run.optimizer)
    written_over(run)
    trained(run)
