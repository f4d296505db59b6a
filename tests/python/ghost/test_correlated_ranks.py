"""noise_bands=b and noise_chain=b on ranks under FSDP2: the noise of one rank to the bit, and after a kill every step that was taken stays
a round of its group."""

import json
from collections import Counter

import pytest
from launch import HERE, SUM_TOLERANCE, run_ranks

from ghostshard.accountants import epsilon_of_events

SCRIPT = HERE / "correlated_ranks_main.py"
DRAWS, GROUPS, DELTA = 10, 4, 1e-5
KINDS = ["noise_bands", "noise_chain"]


def releases(folder) -> list[tuple[int, int]]:
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [(line["step"], line["attempt"]) for line in lines if line["type"] == "release"]


def assert_reported(folder, account, found: dict) -> None:
    """Report and accountant are those of as many rounds as the group with the most has had, and a reader of the ledger finds the same."""
    by_group = Counter(step % GROUPS for step, _ in releases(folder))
    rounds = [by_group[group] for group in range(GROUPS)]
    made = json.loads((folder / "privacy_report.json").read_text())
    assert made["population_and_steps"]["groups"]["rounds"] == rounds and made["guarantee"]["applies"] is True
    event = {"type": "poisson_gaussian", "sampling_rate": GROUPS / DRAWS, "noise_multiplier": 1.0}
    expected = epsilon_of_events([(event, max(rounds))], delta=DELTA, adjacency="zero-out").upper
    assert made["guarantee"]["epsilon"]["upper"] == expected
    assert sum(count for *_, count in found["history"]) >= max(rounds) and found["epsilon"] >= expected * (1 - 1e-9)
    verified = account("verify", "--ledger", folder / "ledger.jsonl", "--report", folder / "privacy_report.json")
    assert verified.returncode == 0 and "Nothing differs" in verified.stdout, verified.stdout + verified.stderr


def results(folder, what: str, ranks: int) -> list[dict]:
    return [json.loads((folder / f"{what}{ranks}_{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_one_does(kind, account, tmp_path):
    found = {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        run_ranks(SCRIPT, ranks, str(folder), kind, "straight")
        first, *others = results(folder, "straight", ranks)
        assert all(other["ledger.jsonl"] == first["ledger.jsonl"] and other["epsilon"] == first["epsilon"] for other in others)
        assert releases(folder) == [(step, 0) for step in range(2 * DRAWS)]
        assert_reported(folder, account, first)
        found[ranks] = first
    assert found[1]["pieces"] > 2 * DRAWS, "some draws came in pieces"
    assert found[1]["silent.jsonl"] == found[2]["silent.jsonl"], "no gradients: the noise itself"
    # 20 steps that each move the weights by at most rate / (1 - momentum) / B times a sum of norm <= the 10 examples of a group. The noise
    # of one step moves each weight by 0.1 / 4.
    tolerance = 20 * (0.1 / 0.1 / 4) * 10 * SUM_TOLERANCE
    assert found[1]["ledger.jsonl"] == pytest.approx(found[2]["ledger.jsonl"], abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_and_lost_steps_stay_rounds(kind, account, tmp_path):
    run_ranks(SCRIPT, 2, str(tmp_path), kind, "begin_and_save")
    assert releases(tmp_path) == [(step, 0) for step in range(7)]
    run_ranks(SCRIPT, 2, str(tmp_path), kind, "go_on")
    assert releases(tmp_path) == [(step, 0) for step in range(7)] + [(4, 1), (5, 1), (6, 1)]
    first, second = results(tmp_path, "go_on", 2)
    assert first["history"] == second["history"] and first["epsilon"] == second["epsilon"]
    assert_reported(tmp_path, account, first)


def test_a_run_that_was_killed_before_its_first_checkpoint_is_not_begun_again_in_its_ledger(tmp_path):
    run_ranks(SCRIPT, 2, str(tmp_path), "noise_bands", "begin")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    assert releases(tmp_path) == [(step, 0) for step in range(6)]
    with pytest.raises(AssertionError, match="must not exist yet: it holds one run of one model"):
        run_ranks(SCRIPT, 2, str(tmp_path), "noise_bands", "begin")
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
