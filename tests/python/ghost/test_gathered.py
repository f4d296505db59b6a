"""Blocks stay gathered in a logical batch, and a step's weights are those of the next forward, whatever was evaluated before it."""


import pytest
from launch import results_of_ranks

# Outputs of magnitude 10 or less of three layers of at most eight products each: some 30 roundings of 2^-24.
TOLERANCE = 10 * 30 * 2**-24


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return results_of_ranks("gathered_main.py", 2, tmp_path_factory.mktemp("gathered"))


@pytest.mark.parametrize("kept", ["unsaid", "freed", "kept"])
def test_an_evaluation_between_backward_and_step_leaves_no_old_weights(seen, kept):
    for rank in seen[f"evaluates_before_each_step {kept}"]:
        assert len(rank) == 6
        assert max(rank) < TOLERANCE


@pytest.mark.parametrize("kept", ["unsaid", "freed", "kept"])
def test_a_forward_that_did_not_end_is_named_by_the_step(seen, kept):
    for rank in seen[f"evaluation_fails_before_a_step {kept}"]:
        said, *off = rank
        assert said == "nothing" if kept == "freed" else "is still gathered" in said
        assert max(off) < TOLERANCE


# Three blocks and the root, which is gathered once a microbatch unless it was told otherwise.
@pytest.mark.parametrize(("kept", "gathers"), [("unsaid", 3 + 3), ("freed", 3 * 2 * (3 + 1)), ("kept", 3 * (3 + 1))])
def test_blocks_are_gathered_once_a_step_if_nobody_said_otherwise(seen, kept, gathers):
    for found, off, plan in seen[f"counts_what_is_gathered {kept}"]:
        assert found == gathers
        assert off < TOLERANCE
        assert ("Blocks that stay gathered until a logical batch ends, as freeing them would save little: blocks.0" in plan) == (kept == "unsaid")
