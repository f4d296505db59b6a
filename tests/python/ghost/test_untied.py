from launch import HERE, run_ranks


def test_weights_that_sharding_has_untied_are_refused():
    """They trained apart without a word: of a tied GPT-2 under Opacus' FSDP2Wrapper, two weights of which one is lost when it is loaded."""
    run_ranks(HERE / "untied_main.py", 2)
