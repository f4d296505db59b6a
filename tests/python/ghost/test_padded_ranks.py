"""How far a batch is padded is looked at on several ranks, too, where a forward gathers weights: what one rank's batch shows, all refuse, and
nobody waits for a rank whose batch shows nothing."""


import pytest
from launch import results_of_ranks

PADDED = "how far a batch is padded follows from its longest example"
SENTENCES = {
    "neither masks": PADDED, "rank 0 masks": PADDED, "rank 1 masks": PADDED, "both mask": "nothing", "rank 1 has one length": PADDED,
    "rank 1 has one example": PADDED, "rank 1 has none": PADDED, "both mask, rank 1 has one length": "nothing", "both mask, rank 1 has none": "nothing",
    "rank 1 takes no other extents": "nothing", "rank 1 takes no other extents, rank 0 does not mask": PADDED,
    "of two forwards the first does not mask": PADDED, "of two forwards the second does not mask": PADDED,
    "of two forwards the first does not mask, rank 1 has none": PADDED, "of two forwards both mask, rank 1 has none": "nothing",
    "the shortest are moved": PADDED, "the shortest are moved, rank 1 has one length": PADDED, "the shortest are moved, rank 1 has none": PADDED,
    "the shortest are masked, rank 1 has one length": "nothing",
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return results_of_ranks("padded_main.py", 2, tmp_path_factory.mktemp("padded"))


@pytest.mark.parametrize("kind", ["sharded", "replicas"])
@pytest.mark.parametrize("name", SENTENCES)
def test_all_ranks_say_the_same(said, kind, name):
    assert all(SENTENCES[name] in each for each in said[f"{kind} {name}"])


@pytest.mark.parametrize("kind", ["sharded", "replicas"])
def test_the_row_of_padding_stays_zero(said, kind):
    padding, others = said[f"{kind} rows"]
    assert padding == 0 and others > 0
