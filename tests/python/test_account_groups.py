"""ghostshard-account epsilon and its like on ledgers of runs whose units are dealt to groups: what their reports say, or nothing."""

import json

import pytest
from ledgers import RATE, SIGMA, answer, write_ledger

RELEASES, GROUPS = 30, 4
ROUNDS = 8  # of the first two groups
CORRELATED = {"bands": {"noise_bands": [1, 0.5]}, "chain": {"noise_chain": {"steps": 4, "decay": 0.5}}}


@pytest.fixture(params=CORRELATED)
def ledger(request, tmp_path):
    path = tmp_path / "ledger.jsonl"
    write_ledger(path, releases=RELEASES, sampling_groups=GROUPS, **CORRELATED[request.param])
    return path


def test_a_ledger_of_groups_costs_what_its_report_says(account, ledger, tmp_path):
    assert account("report", "--ledger", ledger, "--delta", "1e-5", "--output", tmp_path).returncode == 0
    reported = json.loads((tmp_path / "privacy_report.json").read_text())["guarantee"]["epsilon"]
    found = answer(account("epsilon", "--ledger", ledger, "--json"))
    rounds = answer(account("epsilon", "--phase", f"{RATE}:{SIGMA}:{ROUNDS}", "--delta", "1e-5", "--json"))
    assert found["upper"] == reported["upper"] == rounds["upper"]
    assert f"of {RELEASES} releases, the {ROUNDS} of the group with the most are counted" in found["notes"][0]
    assert [phase["count"] for phase in found["run"]] == [ROUNDS]


@pytest.mark.parametrize("command", [["delta", "--epsilon", "1"], ["zcdp"], ["curve", "--delta", "1e-5", "--over-steps"]])
def test_other_numbers_are_those_of_the_rounds(account, ledger, command):
    of_rounds = account(*command, "--phase", f"{RATE}:{SIGMA}:{ROUNDS}").stdout.splitlines()
    assert account(*command, "--ledger", ledger).stdout.splitlines()[:2] == of_rounds[:2]


def test_nothing_stands_beside_a_ledger_of_groups(account, ledger):
    laplace = '1:{"type":"laplace","noise_multiplier":1,"sampling_rate":1}'
    done = account("epsilon", "--ledger", ledger, "--event", laplace)
    assert done.returncode == 2 and "--event and --dp-event must not stand beside a ledger" in done.stderr


@pytest.mark.parametrize("correlated", CORRELATED)
def test_noise_that_repeats_within_a_group_bounds_nothing(account, tmp_path, correlated):
    path = tmp_path / "ledger.jsonl"
    write_ledger(path, **CORRELATED[correlated])  # without groups
    done = account("epsilon", "--ledger", path)
    assert done.returncode == 2 and "the ledger bounds nothing: noise_" in done.stderr, done.stdout


@pytest.mark.parametrize("command", ["epsilon", "zcdp", "tradeoff"])
def test_two_releases_with_one_noise_bound_nothing(account, tmp_path, command):
    """Nor does their report."""
    path = tmp_path / "ledger.jsonl"
    write_ledger(path, releases=3, steps=[0, 1, 1])
    done = account(command, "--ledger", path)
    assert done.returncode == 2 and "two releases have key epoch, step and attempt in common" in done.stderr, done.stdout
    assert account("report", "--ledger", path, "--output", tmp_path).returncode == 0
    assert json.loads((tmp_path / "privacy_report.json").read_text())["guarantee"]["epsilon"]["upper"] is None
