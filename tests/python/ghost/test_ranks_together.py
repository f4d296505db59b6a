"""Ranks that come apart end in a sentence on all of them; nobody waits for a message that never comes.

Without the sentence a rank waits for minutes, which ends the script by its time limit.
"""


import pytest
from launch import results_of_ranks

SECONDS = 10  # of a scenario, the steps before included: far below one if the machine is not busy
APART = "the ranks are not at the same place of the run"
BROUGHT = "the learning rate follows from a number that the ranks read from private batches and brought together"
COUNTED = "met a number that goes with how many examples were drawn"
WRITTEN = "0.weight' is not what the last step of the private optimizer made of it"


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return results_of_ranks("together_main.py", 2, tmp_path_factory.mktemp("together"))


# name: what each rank says
SENTENCES = {
    "one_rank_skips_its_empty_batch": ("An empty batch is a step like any other", "An empty batch is a step like any other"),
    "one_rank_leaves_a_loss_out": (APART, APART),
    "one_rank_steps_and_the_other_goes_on": ("step() after 1 of the 2 batches", "rank 0 refused this: step() after 1 of the 2"),
    "one_rank_drops_its_sum": ("step() needs a backward()", "rank 0 refused this: step() needs a backward()"),
    "one_rank_begins_another_pass": ("passes over the loader 2", "passes over the loader 2"),
    "one_rank_has_other_units": ("rank 1 refused this: this backward is over 3 units", "this backward is over 3 units"),
    "one_rank_learns_faster": ("learning rates together 0.1)", "learning rates together 0.2)"),
    "one_rank_decays_weights": ("settings of the optimizer by their digest", "other settings of the optimizer alike"),
    "one_rank_trains_other_parameters": ("settings of the optimizer by their digest", "other settings of the optimizer alike"),
    "one_rank_trains_in_evaluation_mode": ("modules in training mode by their digest", "the same modules in training mode"),
    "one_rank_loads_another_checkpoint": ("must load one and the same checkpoint", "the checkpoint's step and charges on rank 1"),
    "one_rank_shuffles_its_items": ("items of the data set by their digest", "passes over the loader 2"),
    "one_rank_shuffles_the_items_of_a_manager": ("items of the data set by their digest", "passes over the loader 2"),
    "both_ranks_shuffle_their_items": ("nothing", "nothing"),
    "one_rank_freezes_a_layer": ("parameters that train by their digest", "trains the same parameters"),
    "one_rank_loads_a_state": (APART, "at a checkpoint or a report"),
    "one_rank_writes_weights": (WRITTEN, WRITTEN),
    "one_rank_writes_weights_before_the_step": (WRITTEN, WRITTEN),
    "weights_are_put_back": ("nothing", "nothing"),
    "losses_are_divided_by_all_ranks_examples": (COUNTED, COUNTED),
    "losses_are_weighted_by_a_ranks_share": (COUNTED, COUNTED),
    "a_plateau_of_all_ranks_losses": ("learning rate was read from a private batch", "learning rate was read from a private batch"),
    "a_plateau_of_what_objects_brought": (BROUGHT, BROUGHT),
    "a_plateau_of_public_losses": ("nothing", "nothing"),
    "losses_are_annealed": ("nothing", "nothing"),
    "three_pieces_and_two": (APART, APART),
    "two_and_one_against_one_and_two": (APART, APART),
}


@pytest.mark.parametrize("kind", ["sharded", "replicas"])
@pytest.mark.parametrize("name", SENTENCES)
def test_all_ranks_say_why(said, kind, name):
    for found, expected in zip(said[f"{kind} {name}"], SENTENCES[name], strict=True):
        assert expected in found
    assert said[f"{kind} {name}, seconds"] < SECONDS


@pytest.mark.parametrize("name", ["one_rank_scales_its_gradients", "one_rank_loads_weights_before_the_first_step", "one_rank_loads_frozen_weights_before_the_first_step"])
def test_replicas_that_come_apart_are_refused(said, name):
    """The parts of a sharded model have no twins."""
    assert all("rank 0 and rank 1 hold the same part of the model, and their weights have come apart" in sentence for sentence in said[f"replicas {name}"])
    assert said[f"sharded {name}"] == ["nothing", "nothing"]


DEEDS = {
    "mixes": "outputs changed with the inputs of others", "counts": "outputs changed with the inputs of others", "carries": "outputs for the next batch follow from it",
    "takes_nothing_else": "takes no other inputs in the place of some of them",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["sharded", "replicas"])
@pytest.mark.parametrize("deed", DEEDS)
def test_all_ranks_learn_what_the_model_does_on_one(said, kind, deed):
    """They make as many forwards, which communicate if the model is sharded."""
    found = said.get(f"{kind} {deed}")
    assert (found is None) == (kind == "sharded" and deed == "takes_nothing_else")
    assert found is None or all(DEEDS[deed] in sentence for sentence in found)


@pytest.mark.parametrize("kind", ["sharded", "replicas"])
def test_a_view_of_the_batch_may_be_a_leaf_and_a_copy_may_not(said, kind):
    assert said[f"{kind} leaf: view"] == ["nothing", "nothing"]
    for found, expected in zip(said[f"{kind} leaf: copy"], ("rank 1 refused this: this backward would give a gradient", "so does a copy"), strict=True):
        assert expected in found


def test_a_plain_model_on_two_ranks_is_refused(said):
    assert all("is a plain model on 2 ranks" in sentence for sentence in said["plain model"])


def test_every_rank_is_refused_by_a_full_register(said):
    assert all("with this run it would be" in sentence for sentence in said["full register"])


@pytest.mark.parametrize("how", ["method", "method, plain backward"])
def test_a_method_that_uses_a_parameter_outside_of_its_layer(said, how):
    sentences, left = said[how]
    assert all("'table.weight' was used outside" in sentence for sentence in sentences)
    assert not left


def test_a_second_optimizer_of_a_sharded_model_applies_nothing(said):
    """Of two batches of one draw."""
    nothing_there, sentences, unmoved = said["second optimizer"]
    assert nothing_there == [True] * 8 and unmoved
    assert all("stepped on parameter 'model.0.weight'" in sentence or "stepped on parameter '0.weight'" in sentence for sentence in sentences)
