"""A path that opens in a model of several ranks, seen by the operations that it runs: all ranks end with a sentence, and what FSDP2 gathers counts for nothing."""


import pytest
from launch import results_of_ranks
from paths_main import SCENARIOS, STEPS

NEVER, PUT_BACK = "must not depend on other examples", "is another than it was in the forward of this batch"


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return results_of_ranks("paths_main.py", 2, tmp_path_factory.mktemp("paths"))


@pytest.mark.parametrize("kind", ["sharded", "by block", "replicas"])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if not name.endswith(("nothing opens", "nothing"))])
def test_every_rank_is_refused(said, kind, name):
    for sentence, _ in said[f"{kind} {name}"]:
        assert (PUT_BACK if "forwards" in name else NEVER) in sentence


@pytest.mark.parametrize("name, checks", [("nothing opens", 1), ("zeros hide nothing", 2)])
@pytest.mark.parametrize("kind", ["sharded", "by block", "replicas"])
def test_a_model_that_goes_one_way_is_looked_at_once(said, kind, name, checks):
    """By some fifteen forwards; ranks make as many. Once more if outputs of zeros told nothing."""
    (one, forwards), (two, of_other) = said[f"{kind} {name}"]
    assert (one, two) == ("nothing", "nothing")
    assert STEPS < forwards == of_other < STEPS + 25 * checks


@pytest.mark.parametrize("kind", ["sharded", "by block", "replicas"])
def test_one_rank_may_keep_something(said, kind):
    """Its forward is looked at beside the others' nowhere where it would gather: they would wait."""
    assert [sentence for sentence, _ in said[f"{kind} one rank keeps what it uses for nothing"]] == ["nothing", "nothing"]
