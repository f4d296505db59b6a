"""Every optimizer of the C++ program: the report names it, a run goes on to the bit from its checkpoint, and with another it does not."""

import shutil

import pytest
from program import PLAIN, PRIVATE, arguments, everything_in, report, write_model
from resumable import checkpoints, goes_on_to_the_bit_and_on_other_ranks, resumed, run_all

# Matrices of 4,096 elements and more, so that there is something in 8 bits.
WIDE = {"n_embd": 64, "n_head": 4}
OPTIMIZERS = {
    "adamw8bit": {"--optimizer": "adamw8bit"},
    "adamw8bit_corrected": {"--optimizer": "adamw8bit", "--second-moment-floor": "0.1"},
    "adamw16bit": {"--optimizer": "adamw16bit"},
    "adamw_corrected": {"--second-moment-floor": "0.1"},
    "muon": {"--optimizer": "muon", "--weight-decay": "0.1"},
    "shampoo": {"--optimizer": "shampoo", "--tile-side": "32", "--refresh-every": "3", "--factor-decay": "0.9"},
    "soap": {"--optimizer": "soap", "--tile-side": "32", "--refresh-every": "3"},
    "muon_dropping": {"--optimizer": "muon", "--muon-noise": "drop"},
    "muon_corrected": {"--optimizer": "muon", "--muon-noise": "correct"},
    "muon_heads": {"--optimizer": "muon", "--muon-heads": "", "--momentum": "0.9"},
}
RULES = {"adamw8bit_corrected": "adamw8bit_corrected", "adamw_corrected": "adamw_corrected", "muon_heads": "muon"}


@pytest.fixture
def wide(program):
    write_model(program.folder / "model", config=WIDE)
    return program


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_private_run_on_two_ranks_names_its_optimizer(wide, name):
    done = run_all(wide, 2, arguments({**PRIVATE, **OPTIMIZERS[name], "--timeout": "60"}))
    assert done.code == 0, done.err
    said = report(wide.folder / "run")["mechanism"]["optimizer"]
    assert said == f"{RULES.get(name, name)}, computed from released gradients and public numbers alone (post-processing)"


@pytest.mark.parametrize("name", ["adamw8bit", "adamw16bit", "muon", "shampoo", "soap"])
def test_a_run_goes_on_to_the_bit_on_other_ranks_too(wide, name):
    """Without privacy, so that the batches come again; on two ranks, then on two and on one."""
    goes_on_to_the_bit_and_on_other_ranks(wide, {**PLAIN, **OPTIMIZERS[name]})
    assert checkpoints(wide.folder / "run")[4]["optimizer"]["rule"] == name


def test_another_optimizer_does_not_go_on(wide):
    flags = {**PRIVATE, "--optimizer": "adamw8bit", "--checkpoint-every": "2"}
    assert wide.run(arguments(flags)).code == 0
    shutil.rmtree(wide.folder / "run" / "model")
    (wide.folder / "run" / "privacy_report.json").unlink()
    before = everything_in(wide.folder)
    for change, message in (
        ({"optimizer": "adamw"}, "--optimizer must be what the run began with (adamw8bit), is adamw"),
        ({"optimizer": "muon"}, "--optimizer must be what the run began with (adamw8bit), is muon"),
        ({"optimizer": "soap"}, "--optimizer must be what the run began with (adamw8bit), is soap"),
        ({"second_moment_floor": "0.1"}, "--second-moment-floor must be what the run began with"),
    ):
        done = wide.run(resumed(flags, **change))
        assert done.code == 2 and message in done.err and done.err.count("\n") == 1, done
        assert everything_in(wide.folder) == before
