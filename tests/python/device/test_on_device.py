"""Mode "ghost" where models are on a device: on the emulated one, by the kernels that nvcc compiles.

One start of a script for all scenarios, in a process of its own: PyTorch takes one device of this kind, and one engine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.emulated_device

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
        "language_tied_and_embedded_twice", "padding_idx", "conv1d", "conv2d", "conv2d_few_places", "gemma_norm",
        "layer_without_a_rule", "parameters_beside_children", "scalar_parameter", "instance_norm", "gpt2_with_lora",
    )),
    *(f"{case}-{way}" for case in ("language_tied", "gpt2") for way in (
        "reduced_each", "accumulated", "two_passes", "two_passes_accumulated", "per_layer", "with_an_empty_batch",
    )),
    "checkpointed_gpt2-reduced_each", "checkpointed_gpt2-two_passes",
]  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_released_sum_is_the_oracles_and_the_cpus(results, name):
    found = results["sums"][name]
    assert ("oracle" in found) != name.endswith("-per_layer")  # the oracle clips whole gradients
    assert found.get("oracle", 0) < TOLERANCE
    assert found["cpu"] < 2 * TOLERANCE


def test_every_sum_is_looked_at(results):
    assert sorted(results["sums"]) == sorted(SUMS)
