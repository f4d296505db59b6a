"""A report is made from the very file that its run has written."""

import os
import re
import shutil

import pytest
from private_run import Run

from ghostshard import PrivacyEngine

DELTA = 1e-3


def trained(run) -> Run:
    for x, y in run.loader:
        run.step(x, y)
    return run


def reported(run, folder) -> float:
    return float(re.search(r"epsilon = ([0-9.]+)", run.engine.report(folder, delta=DELTA))[1])


@pytest.mark.parametrize("how", ["another file", "in place", "gone"])
def test_an_older_copy_in_the_ledgers_place_is_refused(tmp_path, how):
    """A whole ledger of fewer steps: from a backup, by a checkout, by a synchronised folder."""
    ledger, old = tmp_path / "ledger.jsonl", tmp_path / "old"
    run = trained(Run(ledger=ledger))
    shutil.copy(ledger, old)
    trained(run)
    whole = ledger.read_bytes()
    assert reported(run, tmp_path) == pytest.approx(run.engine.get_epsilon(DELTA), rel=1e-3)
    if how == "another file":
        os.replace(old, ledger)
    elif how == "in place":
        ledger.write_bytes(old.read_bytes())
    else:
        ledger.unlink()
    with pytest.raises(ValueError, match="was removed, replaced or cut short since the last step"):
        run.engine.report(tmp_path, delta=DELTA)
    with pytest.raises(ValueError, match="removed, replaced or cut short"):
        run.engine.save_checkpoint(path=tmp_path / "run.pt", module=run.module, optimizer=run.optimizer)
    if how == "in place":
        ledger.write_bytes(whole)
        trained(run)
        assert reported(run, tmp_path) == pytest.approx(run.engine.get_epsilon(DELTA), rel=1e-3)


@pytest.mark.parametrize("in_place", [False, True])
def test_steps_that_write_no_line_do_not_take_an_older_copy_for_the_ledger(tmp_path, in_place):
    """As those of a pass of balls-in-bins after its first, or a draw's later parts."""
    ledger, old = tmp_path / "ledger.jsonl", tmp_path / "old"
    run = trained(Run(ledger=ledger, draws=None, sampling="balls_in_bins", engine=PrivacyEngine(accountant="contour")))
    shutil.copy(ledger, old)
    batches = iter(run.loader)
    run.step(*next(batches))
    if in_place:
        ledger.write_bytes(old.read_bytes())
    else:
        os.replace(old, ledger)
    for x, y in batches:
        run.step(x, y)
    with pytest.raises(ValueError, match="was removed, replaced or cut short since the last step"):
        run.engine.report(tmp_path, delta=DELTA)


def test_a_ledger_stays_where_it_was_when_the_program_goes_elsewhere(tmp_path, monkeypatch):
    """Where another run has a ledger of the same name."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    quiet = trained(Run(ledger="ledger.jsonl", noise=20.0))
    monkeypatch.chdir(tmp_path / "two")
    run = trained(Run(ledger="ledger.jsonl"))
    monkeypatch.chdir(tmp_path / "one")
    assert reported(run, tmp_path) == pytest.approx(run.engine.get_epsilon(DELTA), rel=1e-3)
    run.model.bias.requires_grad_(False)  # another session, which opens the file anew
    trained(run)
    assert reported(run, tmp_path) == pytest.approx(run.engine.get_epsilon(DELTA), rel=1e-3)
    assert quiet.engine.get_epsilon(DELTA) < 0.1
