"""Arguments are paired anew on several ranks, too, where a forward gathers weights: a rank whose model takes no other pairs leaves nobody waiting.

Otherwise a rank waits for minutes, which ends the script by its time limit.
"""


import pytest
from launch import results_of_ranks

MIXED = "outputs changed with the inputs of others"
SENTENCES = {
    "both look up": MIXED, "rank 0 looks up": MIXED, "rank 1 looks up": MIXED, "rank 0 looks up, rank 1 refuses": MIXED, "rank 1 has one example": MIXED, "rank 1 has none": MIXED,
    "rank 1 refuses": "nothing", "rank 0 refuses": "nothing", "both refuse": "nothing", "rank 1 refuses late": "nothing", "rank 1 refuses between": "nothing", "apart": "nothing",
    "apart, rank 1 has none": "nothing", "later on rank 1": MIXED,
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return results_of_ranks("looked_up_main.py", 2, tmp_path_factory.mktemp("looked_up"))


@pytest.mark.parametrize("kind", ["sharded", "replicas"])
@pytest.mark.parametrize("name", SENTENCES)
def test_all_ranks_say_the_same(said, kind, name):
    assert all(SENTENCES[name] in each for each in said[f"{kind} {name}"])
