"""What ranks bring together of their batches by torch.distributed is for people alone; and ranks set what forms their losses alike."""


import re

import pytest
from brought_together_main import GO_ON, REFUSED, UNLIKE
from launch import results_of_ranks


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return results_of_ranks("brought_together_main.py", 2, tmp_path_factory.mktemp("brought"))


BY_READS = {
    "a choice by read losses": "formed in another way than in an earlier draw", "a choice by gathered losses": "formed in another way than in an earlier draw",
    "a choice by a sent loss": "formed in another way than in an earlier draw", "a learning rate of read losses": "lr was read from a private batch",
    "an object": "another rank sent it",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_values_of_other_ranks_enter_no_loss_and_no_setting(said, name):
    """They were written unseen into the batch, into outputs, and into numbers that torch.tensor() made of losses."""
    sentence = BY_READS.get(name, "(torch.distributed) brought values of other ranks into it|written to in a way that is not followed")  # as its thread comes first or last
    assert all(re.search(sentence.replace("(", r"\(").replace(")", r"\)"), found) for found in said[f"refused {name}"])


@pytest.mark.parametrize("name", GO_ON)
def test_numbers_for_people_and_public_ones_go_on(said, name):
    assert said[f"goes on {name}"] == ["nothing", "nothing"]


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("kind", ["sharded", "replicas"])
def test_a_rank_that_sets_its_criterion_or_autocast_otherwise(said, kind, name):
    found = said.get(f"unlike {kind} {name}")
    assert (found is None) == (kind == "replicas" and name == "double")
    assert found is None or all("sets its criterion and autocast (torch.autocast) alike" in sentence for sentence in found)


@pytest.mark.parametrize("name", ["smooth", "weigh", "cast", "an evaluation by one", "what a criterion keeps"])
@pytest.mark.parametrize("kind", ["sharded", "replicas"])
def test_what_all_set_alike_or_for_an_evaluation_goes_on(said, kind, name):
    assert said[f"alike {kind} {name}"] == ["nothing", "nothing"]


def test_a_static_graph_is_refused_by_name(said):
    """torch's own error asks for a report of a bug."""
    assert all("DistributedDataParallel(static_graph=True) waits for gradients" in sentence for sentence in said["static graph"])
