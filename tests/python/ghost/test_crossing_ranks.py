"""Ranks that wait for each other in two places, each for what the other would do next, waited for ten minutes."""

import json

import pytest
from launch import HERE, run_ranks

SECONDS = 10  # as in test_departing_ranks.py
CROSSED = "wait for each other, in two runs (two models that were made private) or at the beginning of a pass over a private loader"


def said(how: str, folder) -> list[dict]:
    run_ranks(HERE / "crossing_main.py", 2, str(folder), how)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("how", ["two runs", "a loader that is begun twice"])
def test_one_rank_says_that_they_crossed_and_both_end(how, tmp_path):
    found = said(how, tmp_path)
    assert any(CROSSED in each["said"] for each in found), found
    assert all("Error" in each["said"] or "LostRank" in each["said"] for each in found) and all(each["seconds"] < SECONDS for each in found)


def test_two_runs_in_one_order_go_on(tmp_path):
    assert [each["said"] for each in said("two runs in one order", tmp_path)] == ["nothing", "nothing"]
