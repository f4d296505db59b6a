"""Weights that travel in codes, in the C++ program: the report says so, losses are near those of plain weights, and a run goes on to the bit."""

import json

import numpy
import pytest
from program import PLAIN, PRIVATE, arguments, metrics, report, weights, write_model
from resumable import goes_on_to_the_bit_and_on_other_ranks, run_all

WIDE = {"n_embd": 64, "n_head": 4}  # matrices of 4,096 elements and more


@pytest.fixture
def wide(program):
    write_model(program.folder / "model", config=WIDE)
    return program


@pytest.mark.parametrize("code", ["int8", "float8"])
def test_a_private_run_on_two_ranks_says_how_its_weights_travelled(wide, code):
    done = run_all(wide, 2, arguments({**PRIVATE, "--gather-dtype": code, "--timeout": "60", "--explain-plan": ""}))
    assert done.code == 0, done.err
    assert "weights in codes" in done.err
    said = report(wide.folder / "run")
    assert said["mechanism"]["gather_dtype"] == code
    assert said["further_facts"]["hyper_parameters"]["gather-dtype"] == code
    begun = json.loads((wide.folder / "run" / "ledger.jsonl").read_text().split("\n")[0])["binding"]["run"]
    assert begun["the code of the model's weights on their way"] == f"{code} by 256"
    assert all(values.dtype == numpy.float32 for values in weights(wide.folder / "run").values())


def test_public_losses_are_those_of_the_coded_weights(wide):
    flags = {**PRIVATE, "--eval-data": "public.safetensors"}
    losses = {}
    for code in ("compute", "int8"):
        assert wide.run(arguments(flags, gather_dtype=code, output=code)).code == 0
        losses[code] = metrics(wide.folder / code)[0]["eval_loss"]
    # Weights off by at most 1/254 of 256 elements' largest, in a model that has not learnt: the loss of order 3.5 moves little.
    assert losses["int8"] != losses["compute"]
    assert losses["int8"] == pytest.approx(losses["compute"], abs=0.02)


def test_a_run_goes_on_to_the_bit_and_on_another_number_of_ranks(wide):
    goes_on_to_the_bit_and_on_other_ranks(wide, {**PLAIN, "--gather-dtype": "int8"})
