from launch import HERE, run_ranks


def test_ranks_that_would_be_given_the_same_examples():
    """Each was in a step twice, with twice the clip norm, and epsilon knew of one."""
    run_ranks(HERE / "own_ranks_main.py", 2)
