"""A run with noise from buffers: each text in every b-th step, each step charged as a row of its session's chain, killed and gone on with."""

import json
import shutil

import pytest
from program import arguments, metrics, report
from resumable import KEYED, as_if_ended, ledger_lines, releases, resumed, run_all

BUFFERED = {**KEYED, "--noise-blt": "2"}  # 24 texts, batches of 4: 6 steps apart


def prices(run) -> list[float]:
    return [line["event"]["noise_multiplier"] for line in ledger_lines(run) if line["type"] == "release"]


def rows_of(header: dict, steps: int) -> list[float]:
    """What the steps of one text add up to, by the definition."""
    blt = header["noise_blt"]
    coefficients = [1.0] + [sum(w * d**i for w, d in zip(blt["outputs"], blt["decays"], strict=True)) for i in range(steps - 1)]
    return [sum(coefficients[r - k] for k in range(0, r + 1, blt["separation"])) for r in range(steps)]


def test_a_run_is_charged_as_one_gaussian(keyed, account):
    done = keyed.run(arguments(BUFFERED))
    assert done.code == 0, done.err
    run = keyed.folder / "run"
    header = ledger_lines(run)[0]
    assert header["sampler"] == "cyclic" and header["noise_blt"]["separation"] == 6 and "sampling_rate" not in header
    rows = rows_of(header, 20)
    norm = sum(row**2 for row in rows) ** 0.5
    assert prices(run) == pytest.approx([norm / row for row in rows], rel=1e-12)
    made = report(run)
    assert made["guarantee"]["applies"] is True and made["sampler"]["assumed"] == "cyclic"
    words = ("--delta", made["guarantee"]["delta"], "--sampling-rate", 1, "--noise-multiplier", 1, "--steps", 1, "--json")
    whole = json.loads(account("epsilon", *words).stdout)
    assert made["guarantee"]["epsilon"]["upper"] == pytest.approx(whole["upper"], rel=1e-9)
    by_ledger = json.loads(account("epsilon", "--ledger", run / "ledger.jsonl", "--delta", made["guarantee"]["delta"], "--json").stdout)
    assert by_ledger["upper"] == made["guarantee"]["epsilon"]["upper"]
    verified = account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    refused = account("report", "--ledger", run / "ledger.jsonl", "--output", keyed.folder / "again", "--receipt", keyed.folder / "receipt.json")
    assert refused.returncode != 0 and "noise buffers" in refused.stderr


def test_a_killed_run_begins_a_chain_and_pays_for_it(keyed, account):
    assert keyed.run(arguments(BUFFERED)).code == 0
    whole = report(keyed.folder / "run")["guarantee"]["epsilon"]["upper"]
    run = as_if_ended(keyed.folder, step=5, charged=8)
    done = keyed.run(resumed(BUFFERED))
    assert done.code == 0, done.err
    assert releases(run) == [(step, 0) for step in range(8)] + [(step, 1) for step in (5, 6, 7)] + [(step, 0) for step in range(8, 20)]
    rows = rows_of(ledger_lines(run)[0], 20)
    norm = sum(row**2 for row in rows) ** 0.5
    assert prices(run) == pytest.approx([norm / row for row in rows[:8] + rows[:15]], rel=1e-12)
    made = report(run)
    assert made["guarantee"]["applies"] is True and made["guarantee"]["epsilon"]["upper"] != whole
    assert metrics(run)[-1]["epsilon"] == pytest.approx(made["guarantee"]["epsilon"]["upper"], rel=1e-6)
    verified = account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_run_keeps_its_target(keyed):
    target = {"noise_multiplier": None, "target_epsilon": "3"}
    assert keyed.run(arguments(BUFFERED, **target)).code == 0
    run = keyed.folder / "run"
    assert 3 - 1e-5 < report(run)["guarantee"]["epsilon"]["upper"] <= 3
    as_if_ended(keyed.folder, step=5, charged=12)
    done = keyed.run(resumed(BUFFERED, **target))
    assert done.code == 0, done.err
    assert report(run)["guarantee"]["epsilon"]["upper"] <= 3


def test_a_run_that_stopped_between_steps_may_end_early_and_says_why(keyed):
    target = {"noise_multiplier": None, "target_epsilon": "3", "steps": "6"}  # one pass: a chain's first rows are the dearest
    assert keyed.run(arguments(BUFFERED, **target)).code == 0
    run = as_if_ended(keyed.folder, step=5, charged=5)
    done = keyed.run(resumed(BUFFERED, **target))
    assert done.code == 0 and "Ended after step 5 of 6" in done.out, done.out + done.err
    assert "because a new chain of noise began" in done.out and "steps were repeated" not in done.out, "none was"
    steps = report(run)["population_and_steps"]
    assert steps["steps_executed"] == 5 and "a new chain of noise, whose first steps cost most" in steps["ended_early"]


def test_two_ranks_end_as_one_does(keyed):
    quiet = {**BUFFERED, "--optimizer": "sgd", "--learning-rate": "0.1", "--noise-multiplier": "1e-3", "--eval-data": None}
    assert run_all(keyed, 2, arguments(quiet)).code == 0
    two = ledger_lines(keyed.folder / "run")
    shutil.move(keyed.folder / "run", keyed.folder / "two")
    assert keyed.run(arguments(quiet)).code == 0
    one = ledger_lines(keyed.folder / "run")
    assert [line.get("event") for line in one] == [line.get("event") for line in two]


@pytest.mark.parametrize(("changes", "message"), [
    ({"noise_bands": "4"}, "--noise-blt cannot be combined with --noise-bands or --noise-chain"),
    ({"noise_chain": "4"}, "--noise-blt cannot be combined with --noise-bands or --noise-chain"),
    ({"sampling": "balls-in-bins"}, "--noise-blt has sampling of its own"),
    ({"clipping": "adaptive"}, "noise buffers are derived for one clip norm"),
    ({"max_batch": "20"}, "noise buffers are derived for batches that are not truncated"),
    ({"budget_register": "register.jsonl", "budget_limit": "9"}, "--budget-register counts steps that cost the same"),
    ({"noise_blt": "17"}, "--noise-blt"),
    ({"noise_blt": "2", "steps": "100001"}, "--noise-blt is for runs of at most 100000 steps, got 100001"),
    ({"noise_multiplier": None, "noise_key_file": None, "non_private": ""}, "--noise-blt correlates the noise of private steps"),
], ids=["bands", "chain", "bins", "adaptive", "max_batch", "register", "too_many", "too_long", "no_privacy"])  # fmt: skip
def test_buffers_that_cannot_be_are_refused(keyed, changes, message):
    done = keyed.run(arguments(BUFFERED, **changes))
    assert done.code == 2 and message in done.err, done.err
    assert not (keyed.folder / "run").exists()


def test_a_run_is_resumed_with_its_own_kind_of_noise(keyed):
    assert keyed.run(arguments(BUFFERED, steps="8")).code == 0
    for changes in ({"noise_blt": "3"}, {"noise_blt": None}, {"noise_blt": None, "noise_bands": "4"}):
        done = keyed.run(resumed(BUFFERED, steps="8", **changes))
        assert done.code == 2 and "go" in done.err, changes
