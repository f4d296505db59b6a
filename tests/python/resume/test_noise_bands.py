"""A run with correlated noise, by bands or drawn again, that is killed: each session has a chain of its own, each repeated step is one
more round of its group, and the report takes the group with the most."""

import json
from collections import Counter
from pathlib import Path

import pytest
from program import arguments, report
from resumable import KEYED, as_if_ended, releases, resumed

BANDS = 4
BANDED = {**KEYED, "--noise-bands": str(BANDS)}
CHAINED = {**KEYED, "--noise-chain": str(BANDS)}


def rounds(run: Path) -> list[int]:
    by_group = Counter(step % BANDS for step, _ in releases(run))
    return [by_group[group] for group in range(BANDS)]


@pytest.mark.parametrize("flags", [BANDED, CHAINED], ids=["bands", "chain"])
def test_a_killed_run_goes_on_and_its_report_is_what_its_ledger_gives(keyed, account, flags):
    assert keyed.run(arguments(flags)).code == 0
    run = as_if_ended(keyed.folder, step=5, charged=8)
    done = keyed.run(resumed(flags))
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
    ({"noise_chain": "4"}, "give one of --noise-bands and --noise-chain"),
    ({"noise_bands": "7"}, "noise bands must be at most n/B (6)"),
    ({"steps": "3"}, "--noise-bands must be at most the run's 3 steps, got 4"),
    ({"noise_bands": "0"}, "--noise-bands"),
    ({"noise_multiplier": None, "noise_key_file": None, "non_private": ""}, "--non-private has none"),
], ids=["both", "too_few_texts", "too_few_steps", "none", "no_privacy"])  # fmt: skip
def test_bands_that_cannot_be_are_refused(keyed, changes, message):
    done = keyed.run(arguments(BANDED, **changes))
    assert done.code == 2 and message in done.err
    assert not (keyed.folder / "run").exists()


@pytest.mark.parametrize(("changes", "message"), [
    ({"noise_chain": "7"}, "a noise chain's steps must be at most n/B (6)"),
    ({"steps": "3"}, "--noise-chain must be at most the run's 3 steps, got 4"),
    ({"sampling": "balls-in-bins"}, "cannot be combined with --noise-bands or --noise-chain"),
    ({"clipping": "adaptive"}, "noise chains are derived for one clip norm"),
    ({"max_batch": "20"}, "noise chains are derived for batches that are not truncated"),
    ({"noise_multiplier": None, "noise_key_file": None, "non_private": ""}, "--noise-chain correlates the noise of private steps"),
], ids=["too_few_texts", "too_few_steps", "bins", "adaptive", "max_batch", "no_privacy"])  # fmt: skip
def test_chains_that_cannot_be_are_refused(keyed, changes, message):
    done = keyed.run(arguments(CHAINED, **changes))
    assert done.code == 2 and message in done.err
    assert not (keyed.folder / "run").exists()


def test_a_run_is_resumed_with_as_many_bands(keyed):
    assert keyed.run(arguments(BANDED, steps="4")).code == 0
    done = keyed.run(resumed(BANDED, noise_bands="2", steps="4"))
    assert done.code == 2 and "the ledger's noise_bands is [1," in done.err


def test_a_run_is_resumed_with_its_own_kind_of_noise(keyed):
    assert keyed.run(arguments(CHAINED, steps="8")).code == 0
    for changes in ({"noise_chain": "2"}, {"noise_chain": None}, {"noise_chain": None, "noise_bands": "4"}):
        done = keyed.run(resumed(CHAINED, steps="8", **changes))
        assert done.code == 2 and "go" in done.err, changes
