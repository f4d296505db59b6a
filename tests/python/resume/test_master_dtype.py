"""--master-dtype bfloat16: weights of two bytes, rounded at random after each step."""

import numpy
import pytest
from program import PLAIN, PRIVATE, arguments, report, weights, write_model
from resumable import goes_on_to_the_bit_and_on_other_ranks, run_all

NARROW = {"--compute-dtype": "bfloat16", "--master-dtype": "bfloat16"}


@pytest.fixture
def wide(program):
    write_model(program.folder / "model", config={"n_embd": 64, "n_head": 4})
    return program


def are_bfloat16(folder) -> bool:
    return all((value.view(numpy.uint32) & 0xFFFF == 0).all() for value in weights(folder).values())


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "muon"])
def test_a_private_run_on_two_ranks_says_so_and_its_weights_are_of_16_bits(wide, optimizer):
    done = run_all(wide, 2, arguments({**PRIVATE, **NARROW, "--optimizer": optimizer, "--timeout": "60"}))
    assert done.code == 0, done.err
    said = report(wide.folder / "run")
    assert said["mechanism"]["master_dtype"] == "bfloat16"
    assert said["further_facts"]["hyper_parameters"]["master-dtype"] == "bfloat16"
    assert are_bfloat16(wide.folder / "run")


def test_a_run_goes_on_to_the_bit_on_other_ranks_too(wide):
    goes_on_to_the_bit_and_on_other_ranks(wide, {**PLAIN, **NARROW, "--optimizer": "adamw16bit"})
    assert are_bfloat16(wide.folder / "run")
