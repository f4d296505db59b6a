"""A run with a largest batch that is killed: every attempt is a truncated Poisson sample, and the report composes what the ledger has."""

import json

import pytest
from program import arguments, report
from resumable import KEYED, as_if_ended, ledger_lines, releases, resumed, run_all

# Three microbatches in every step of one rank: of smaller draws some are empty.
CAPPED = {**KEYED, "--max-batch": "6", "--steps": "12", "--microbatch": "2"}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_killed_run_goes_on_and_its_report_is_what_its_ledger_gives(keyed, account, ranks):
    assert run_all(keyed, ranks, arguments(CAPPED)).code == 0
    run = as_if_ended(keyed.folder, step=5, charged=8)
    done = run_all(keyed, ranks, resumed(CAPPED))
    assert done.code == 0, done.err
    made = report(run)
    header, *lines = ledger_lines(run)
    assert header["sampler"] == "truncated-poisson" and header["maximum_batch"] == 6
    event = {"type": "truncated_poisson_gaussian", "units": 24, "sampling_rate": 4 / 24, "cap": 6, "noise_multiplier": 1.0}
    assert all(line["event"] == event for line in lines if line["type"] == "release")
    assert [step for step, attempt in releases(run) if attempt > 0] == [5, 6, 7]
    assert made["sampler"]["assumed"] == made["sampler"]["executed"] == "truncated-poisson"
    assert made["sampler"]["executed_is_assumed"] is True and made["guarantee"]["applies"] is True
    phase = f"6:24:{4 / 24!r}:1:{len(releases(run))}"
    accounted = json.loads(account("epsilon", "--truncated-phase", phase, "--delta", made["guarantee"]["delta"], "--json").stdout)
    assert accounted["upper"] == made["guarantee"]["epsilon"]["upper"]
    verified = account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_auto_is_a_number_that_costs_little(keyed):
    target = {"target_epsilon": "4", "noise_multiplier": None}
    assert keyed.run(arguments(KEYED, steps="3", output="whole", **target)).code == 0
    assert keyed.run(arguments(KEYED, steps="3", max_batch="auto", **target)).code == 0
    whole = ledger_lines(keyed.folder / "whole")[0]
    header = ledger_lines(keyed.folder / "run")[0]
    assert 4 < header["maximum_batch"] < 24
    assert header["noise_multiplier"] <= 1.0011 * whole["noise_multiplier"]


@pytest.mark.parametrize(("changes", "message"), [
    ({"max_batch": "3"}, "--max-batch must be auto or a number of texts, at least --expected-batch (4), got '3'"),
    ({"max_batch": "6.5"}, "got '6.5'"),
    ({"max_batch": "25"}, "the largest batch must be at most the number of units (24), got 25"),
    ({"noise_bands": "2"}, "noise bands are derived for batches that are not truncated"),
    ({"clipping": "adaptive"}, "a clip norm that adapts is accounted for batches that are not truncated"),
    ({"noise_multiplier": None, "noise_key_file": None, "non_private": ""}, "--non-private has none"),
], ids=["below_the_mean", "no_number", "above_the_data", "noise_bands", "adaptive", "no_privacy"])  # fmt: skip
def test_largest_batches_that_cannot_be_are_refused(keyed, changes, message):
    done = keyed.run(arguments(CAPPED, **changes))
    assert done.code == 2 and message in done.err
    assert not (keyed.folder / "run").exists()


def test_a_run_is_resumed_with_the_same_largest_batch(keyed):
    assert keyed.run(arguments(CAPPED)).code == 0
    as_if_ended(keyed.folder, step=5)
    for cap, here in (("7", "7"), (None, "null")):
        done = keyed.run(resumed(CAPPED, max_batch=cap))
        assert done.code == 2 and f"the ledger's maximum_batch is 6, here it would be {here}" in done.err


def test_ranks_with_another_largest_batch_are_refused(keyed):
    done = keyed.run_ranks(arguments(CAPPED), arguments(CAPPED, max_batch="7"))
    assert {rank.code for rank in done} == {2}
    assert not (keyed.folder / "run" / "ledger.jsonl").exists()
