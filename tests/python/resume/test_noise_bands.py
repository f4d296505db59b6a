"""A run with correlated noise that is killed: each session has a chain of its own, each repeated step is one more round of its
group, and the report takes the group with the most."""

import json
from collections import Counter
from pathlib import Path

import pytest
from program import arguments, report
from resumable import KEYED, as_if_ended, releases, resumed

BANDS = 4
BANDED = {**KEYED, "--noise-bands": str(BANDS)}


def rounds(run: Path) -> list[int]:
    by_group = Counter(step % BANDS for step, _ in releases(run))
    return [by_group[group] for group in range(BANDS)]


def test_a_killed_run_goes_on_and_its_report_is_what_its_ledger_gives(keyed, account):
    assert keyed.run(arguments(BANDED)).code == 0
    run = as_if_ended(keyed.folder, step=5, charged=8)
    done = keyed.run(resumed(BANDED))
    assert done.code == 0, done.err
    made = report(run)
    assert [step for step, attempt in releases(run) if attempt > 0] == [5, 6, 7]
    groups = made["population_and_steps"]["groups"]
    assert groups["rounds"] == rounds(run) and groups["charged"] == max(rounds(run))
    assert made["sampler"]["executed_is_assumed"] is True and made["guarantee"]["applies"] is True
    (rate,) = made["population_and_steps"]["sampling_rates_charged"]
    assert rate == pytest.approx(4 * BANDS / 24, rel=1e-15)
    words = ("--delta", made["guarantee"]["delta"], "--sampling-rate", repr(rate), "--noise-multiplier", 1, "--json")
    accounted = json.loads(account("epsilon", *words, "--steps", max(rounds(run))).stdout)
    assert accounted["upper"] == made["guarantee"]["epsilon"]["upper"]
    verified = account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize(("changes", "message"), [
    ({"noise_bands": "7"}, "noise bands must be at most n/B (6)"),
    ({"steps": "3"}, "--noise-bands must be at most the run's 3 steps, got 4"),
    ({"noise_bands": "0"}, "--noise-bands"),
    ({"noise_multiplier": None, "noise_key_file": None, "non_private": ""}, "--non-private has none"),
], ids=["too_few_texts", "too_few_steps", "none", "no_privacy"])  # fmt: skip
def test_bands_that_cannot_be_are_refused(keyed, changes, message):
    done = keyed.run(arguments(BANDED, **changes))
    assert done.code == 2 and message in done.err
    assert not (keyed.folder / "run").exists()


def test_a_run_is_resumed_with_as_many_bands(keyed):
    assert keyed.run(arguments(BANDED, steps="4")).code == 0
    done = keyed.run(resumed(BANDED, noise_bands="2", steps="8"))
    assert done.code == 2 and "go" in done.err
