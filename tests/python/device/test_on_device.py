"""Mode "ghost" with models on a device (device_under_test.py): the emulated one, or a GPU, by the kernels that nvcc
compiles.

One start of a script for all scenarios, in a process of its own: PyTorch takes one device of this kind, and one engine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from device_under_test import DEVICE, missing

HERE = Path(__file__).parent
pytestmark = [pytest.mark.emulated_device, pytest.mark.skipif(bool(missing()), reason=missing())]
only_emulated = pytest.mark.skipif(
    DEVICE != "emulated", reason="what it looks at is counted, or built, for the emulated device alone"
)

# As on the CPU (test_ghost_sums.py): a few hundred float32 operations between an input and a sum, each within 2^-24 of
# its terms. Two results within it of one value are within twice that of each other.
TOLERANCE = 2e-5


def run_script(script: str, *arguments: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-8000:]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    file = tmp_path_factory.mktemp("device") / "results.json"
    run_script("one_rank_main.py", str(file))
    return json.loads(file.read_text())


SUMS = [
    *(f"{case}-reduced_each" for case in (
        "mlp", "linear_of_4_extents", "frozen_parts", "layer_called_twice", "layer_norm_of_2_extents", "language_untied",
        "language_tied_and_embedded_twice", "padding_idx", "conv1d", "conv2d", "conv2d_few_places",
        "layer_without_a_rule", "parameters_beside_children", "scalar_parameter", "instance_norm", "gpt2_with_lora",
    )),
    *(f"language_tied-{way}" for way in (
        "reduced_each", "accumulated", "two_passes", "two_passes_accumulated", "per_layer", "with_an_empty_batch",
    )),
    "gpt2-reduced_each", "gpt2-with_an_empty_batch", "checkpointed_gpt2-two_passes",
]  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_released_sum_is_the_oracles_and_the_cpus(results, name):
    found = results["sums"][name]
    assert ("oracle" in found) != name.endswith("-per_layer")  # the oracle clips whole gradients
    assert found.get("oracle", 0) < TOLERANCE
    assert found["cpu"] < 2 * TOLERANCE


def test_every_sum_is_looked_at(results):
    assert sorted(results["sums"]) == sorted(SUMS)


def test_noise_has_the_cpus_bits(results):
    assert results["noise"] == {"same_bits": True, "steps_differ": True, "is_there": True}


def test_six_steps_come_to_the_cpus_weights(results):
    """An error made in a step is a small move of the weights, and grows from there as any other. How far a move of
    moved_by·N(0,1) in every weight leads away is measured on the CPU; six errors that are made on the way lead away at most as
    far, in proportion to their size."""
    found = results["trajectory"]
    assert found["moved_from_cpu"] > 10 * found["device_from_cpu"], "the measure must see more than what is measured"
    growth = found["moved_from_cpu"] / (found["moved_by"] * found["parameters"] ** 0.5)
    # Of one step: the sum's, by the bound of the sums above on each of its weights at most, whose largest is at most the clip
    # norm of all examples; and rounding a weight.
    of_sum = found["lr"] * 2 * TOLERANCE * found["clip_norm"] * found["examples"]
    of_rounding = 2**-24 * found["largest"]
    bound = found["steps"] * max(growth, 1) * (of_sum + of_rounding) * found["parameters"] ** 0.5
    assert found["device_from_cpu"] < bound


@pytest.mark.parametrize("name", ["packed_texts", "packed_users", "packed_users_apart"])
def test_packed_texts_are_units(results, name):
    assert results[name] < TOLERANCE


def test_memory_of_a_step_goes_back(results):
    """The session keeps the slices that it owns and nothing of a microbatch: no step takes more than the one before."""
    first, *later = results["memory"]
    assert later == [first] * len(later)


@only_emulated
def test_the_host_waits_for_targets_alone(results):
    """docs/cuda.md: twice for the criterion, whether targets are in range and whether a probability is too small for its
    logarithm; once before a step's first backward and once at its end for a sample of the weights, and once for what
    forwards wrote to them. The first microbatch also checks whether examples meet. The model's own forward waits too."""
    first, *later = results["waits"]["steps"]
    assert later == [results["waits"]["own"] + 2 + 3] * len(later)
    assert first > later[0]
    # Momenta, too, are looked at before a step's first backward and at its end, all of them together.
    assert results["waits"]["of_adamw"][2:] == [later[0] + 2] * 2


def test_a_model_may_be_moved_between_steps(results):
    assert results["moved"] < TOLERANCE


REFUSED = {
    "partly_on_the_device": f"ValueError: all parameters of a model must be on one device, but '0.weight' is on cpu and '2.weight' on {DEVICE}:0",
    "on_meta": "ValueError: parameter '0.weight' is on device meta, where it has no values",
    "examples_meet": "an example's output must not depend on other examples",
    "moved_within_a_step": "RuntimeError: parameters may be frozen, unfrozen or moved to another device between steps, not between",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_sentence(results, name):
    assert REFUSED[name] in results[name]


def test_coins_of_the_device_are_tossed_the_same_again(results):
    assert results["coins_come_again"] == ""


@only_emulated
def test_a_build_without_kernels_says_so(tmp_path):
    file = tmp_path / "results.json"
    run_script("without_kernels_main.py", str(file))
    found = json.loads(file.read_text())
    assert found["cpu"] == ""
    assert "ValueError: the model is on emulated:0, but this build of ghostshard has no kernels for emulated" in found["device"]


def test_a_whole_run_with_ledger_and_checkpoint(results):
    found = results["whole_run"]
    steps = found.pop("steps_charged")
    assert steps == found.pop("lines_of_the_ledger") == 15  # three epochs of 5 steps
    assert found == {
        "weights_come_back": True, "on_the_device": True, "states_on_the_device": [DEVICE], "finite": True,
    }  # fmt: skip


def test_autocast_sums_are_the_cpus(results):
    """Both are autocast's gradients up to its own roundings, 2^-9 each, that may fall otherwise (test_autocast.py)."""
    assert {name: apart for name, apart in results["narrow"]["sums_apart"].items() if apart >= 8 * 2**-9} == {}


def test_no_example_of_autocast_exceeds_the_clip_norm(results):
    for name, lengths in results["narrow"]["lengths"].items():
        assert 0.99 < min(lengths) <= max(lengths) <= 1 + 1e-6, name
    assert max(results["narrow"]["cancelling"]) <= 1 + 1e-6


def test_no_example_of_a_model_in_bfloat16_exceeds_the_clip_norm(results):
    lengths = results["narrow"]["in_bfloat16"]
    assert 0.99 < min(lengths) <= max(lengths) <= 1 + 2**-9
