"""A run with balls-in-bins sampling that is killed within a pass: it begins another one, and the report counts both."""

import json

import pytest
from program import arguments, report
from resumable import KEYED, as_if_ended, releases, resumed

BINS = {**KEYED, "--sampling": "balls-in-bins"}  # 24 texts, batches of 4: passes of 6 steps


def test_a_killed_run_begins_another_pass_and_its_report_is_what_its_ledger_gives(keyed, account):
    assert keyed.run(arguments(BINS)).code == 0
    assert [step for step, _ in releases(keyed.folder / "run")] == [0, 6, 12, 18]
    run = as_if_ended(keyed.folder, step=10, charged=2)
    done = keyed.run(resumed(BINS))
    assert done.code == 0, done.err
    assert releases(run) == [(0, 0), (6, 0), (10, 0), (16, 0)]
    made = report(run)
    assert made["sampler"]["executed_is_assumed"] is True and made["guarantee"]["applies"] is True
    assert made["population_and_steps"]["steps_executed"] == 20 and made["population_and_steps"]["releases_charged"] == 4
    words = ("--delta", made["guarantee"]["delta"], "--bins-phase", "6:1:4", "--json")
    assert json.loads(account("epsilon", *words).stdout)["upper"] == made["guarantee"]["epsilon"]["upper"]
    verified = account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize(("changes", "message"), [
    ({"noise_bands": "2"}, "cannot be combined with --noise-bands"),
    ({"clipping": "adaptive"}, "cannot be combined with one that adapts"),
    ({"noise_multiplier": None, "noise_key_file": None, "non_private": ""}, "--non-private draws as poisson does"),
    ({"sampling": "shuffle"}, "--sampling"),
], ids=["bands", "adaptive", "no_privacy", "unknown"])  # fmt: skip
def test_what_is_not_derived_is_refused(keyed, changes, message):
    done = keyed.run(arguments(BINS, **changes))
    assert done.code == 2 and message in done.err
    assert not (keyed.folder / "run").exists()


def test_a_run_is_resumed_with_its_own_sampling(keyed):
    assert keyed.run(arguments(BINS, steps="6")).code == 0
    done = keyed.run(resumed(BINS, sampling="poisson", steps="6"))
    assert done.code == 2 and "the ledger's sampler is" in done.err
