"""Values that are refused rather than read as something else, and outputs that are not overwritten: ghostshard-account."""

import hashlib
import json

import pytest
from ledgers import RATE, SIGMA, write_chain, write_ledger

PHASE = ["--phase", "0.1:1:9"]
EMPTY = {
    "head": ["verify", "--ledger", "ledger.jsonl", "--head", ""],
    "report": ["verify", "--ledger", "ledger.jsonl", "--report", ""],
    "signature": ["verify", "--ledger", "ledger.jsonl", "--key", "", "--signed-head", ""],
    "sign": ["report", "--ledger", "ledger.jsonl", "--output", "out", "--sign", ""],
    "receipt": ["report", "--ledger", "ledger.jsonl", "--output", "out", "--receipt", ""],
    "bins": ["noise", "-e", "1", "-d", "1e-5", "-q", "0.1", "-t", "9", "--bins", ""],
    "omega": ["zcdp", *PHASE, "--omega", ""],
    "deltas": ["curve", *PHASE, "--deltas", ""],
    "priors": ["tradeoff", *PHASE, "--priors", ""],
    "ledger": ["epsilon", *PHASE, "--delta", "1e-5", "--ledger", ""],
    "adjacency": ["epsilon", *PHASE, "--delta", "1e-5", "--adjacency", ""],
    "limit": ["register", "register.jsonl", "--data-set", "a", "--limit", ""],
    "file": ["register", ""],
}  # fmt: skip


@pytest.mark.parametrize("line", EMPTY.values(), ids=EMPTY)
def test_an_empty_value_is_refused(account, tmp_path, monkeypatch, line):
    """An empty --head would verify nothing, without a word."""
    monkeypatch.chdir(tmp_path)
    write_ledger(tmp_path / "ledger.jsonl")
    done = account(*line)
    assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "out").exists()
    assert "must not be empty: leave the option out, or give it a value" in done.stderr and done.stderr.count("\n") == 1


OVER_STEPS = ["curve", *PHASE, "--over-steps", "--delta", "1e-5", "--points"]
USELESS = {
    "octal": ([*OVER_STEPS, "010"], "--points: must be a whole number without leading zeros, got 010"),
    "hexadecimal": ([*OVER_STEPS, "0x10"], "--points: must be a whole number in decimal digits, got 0x10"),
    "delta_of_no_curve": (["curve", *PHASE, "--delta", "1e-5,nan"], "--delta requires --over-steps"),
    "points_of_no_curve": (["curve", *PHASE, "--points", "5"], "--points requires --over-steps"),
    "csv_and_json": (["curve", *PHASE, "--csv", "--json"], "excludes --"),
    "accountant_of_rho": (["zcdp", "--phase", "1:20:100", "--accountant", "prv"], "--accountant"),
    "no_passes": (["noise", "-e", "1", "-d", "1e-5", "--bins", "9", "--passes", "0"], "passes must be > 0, got 0"),
    "bins_beyond": (["noise", "-e", "1", "-d", "1e-5", "--bins", "100001", "--passes", "1"],
                    "bins must lie between 1 and 100000, got 100001"),
}  # fmt: skip


@pytest.mark.parametrize("line, sentence", USELESS.values(), ids=USELESS)
def test_what_has_no_meaning_is_refused_by_its_name(account, line, sentence):
    done = account(*line)
    assert done.returncode == 2 and done.stdout == ""
    assert sentence in done.stderr and done.stderr.count("\n") == 1


def test_a_run_keeps_its_own_report_unless_force_is_given(account, tmp_path):
    """It holds what no ledger does, such as the digest of the trained weights."""
    write_ledger(tmp_path / "ledger.jsonl")
    report = tmp_path / "privacy_report.json"
    report.write_text("the run's own")
    line = ["report", "--ledger", tmp_path / "ledger.jsonl", "--output", tmp_path]
    done = account(*line)
    assert done.returncode == 2 and "--output must not hold a privacy_report.json yet" in done.stderr and "--force" in done.stderr
    assert report.read_text() == "the run's own" and not (tmp_path / "privacy_report.html").exists()
    receipt = account("report", "--ledger", tmp_path / "ledger.jsonl", "--output", tmp_path / "new", "--receipt", report)
    assert receipt.returncode == 2 and "--receipt must be a new file" in receipt.stderr and not (tmp_path / "new").exists()
    assert account(*line, "--force").returncode == 0
    assert json.loads(report.read_text())["guarantee"]["applies"] is True


def test_a_last_line_that_breaks_the_plan_is_found_without_a_report(account, tmp_path):
    path = tmp_path / "ledger.jsonl"
    event = {"type": "poisson_gaussian", "sampling_rate": RATE, "noise_multiplier": SIGMA}
    header = {"type": "header", "schema": "ghostshard.ledger/1", "adjacency": "zero-out", "noise_multiplier": SIGMA}
    lines = write_chain(path, header, [event] * 3)
    head = hashlib.sha256(lines[-1].encode()).hexdigest()
    assert account("verify", "--ledger", path).returncode == 0
    write_chain(path, header, [event, event, {**event, "noise_multiplier": 900.0}])
    done = account("verify", "--ledger", path)
    assert done.returncode == 1
    assert "DIFFERS      the ledger's lines break a rule: Every charged noise multiplier is the planned one." in done.stdout
    assert account("verify", "--ledger", path, "--head", head).returncode == 1
