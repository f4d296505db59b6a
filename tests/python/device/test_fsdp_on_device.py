"""Mode "ghost_fsdp" on the device (device_under_test.py): FSDP2 of PyTorch itself, over a backend of the device between two
processes, and alone."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from device_under_test import BACKEND, DEVICE, missing

HERE = Path(__file__).parent
pytestmark = [pytest.mark.emulated_device, pytest.mark.skipif(bool(missing()), reason=missing())]
TOLERANCE = 2e-5  # test_on_device.py
MESHES = {"1": 1, "2": 2, "2 rest": 2, "2x1": 2, "tensor2": 2}  # (replicate ×) shard; a tensor-parallel axis
TIME_LIMIT = 280

EVERY = [
    "mlp", "language_tied_and_embedded_twice", "conv2d", "layer_without_a_rule", "gpt2", "gpt2_accumulated", "gpt2_checkpointed",
    "gpt2_two_passes", "gpt2_offloaded", "packed_users",
]  # fmt: skip
FEW = ["mlp", "gpt2_two_passes"]
CUT = ["megatron", "along_the_sequence", "words_by_columns", "megatron_two_passes"]
SOME = [*FEW, "language_tied_and_embedded_twice", "gpt2_accumulated", "packed_users"]
# A machine with a GPU may have one alone: there every sum is looked at on one rank too.
SUMS = {"1": EVERY, "2": EVERY, "2x1": FEW, "tensor2": CUT}
OTHERS = {"1": ["noise"], "2": ["noise", "groups", "refusals", "checkpoint"], "2x1": ["noise"], "tensor2": []}
LONG = set()
if DEVICE == "emulated":
    OTHERS["2"].append("waits")  # which it counts
    SUMS |= {"1": FEW, "2": SOME, "2 rest": [name for name in EVERY if name not in SOME]}
    OTHERS["2 rest"] = []
    LONG = {"1", "2 rest", "2x1"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """results(mesh): the findings of all scenarios of that mesh, started once."""

    @functools.cache
    def run(mesh: str) -> dict:
        file = tmp_path_factory.mktemp("ranks") / "results.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(MESHES[mesh]),
            str(HERE / "fsdp_main.py"), str(file), mesh.split()[0], *SUMS[mesh], *OTHERS[mesh],
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)
        return json.loads(file.read_text()) if done.returncode == 0 else {"failed": done.stderr[-8000:]}

    def checked(mesh: str) -> dict:
        if why := missing(MESHES[mesh]):
            pytest.skip(why)
        found = run(mesh)
        assert "failed" not in found, found["failed"]
        return found

    return checked


def of_mesh(mesh: str, *scenario: str):
    return pytest.param(mesh, *scenario, marks=[pytest.mark.long] if mesh in LONG else [])


@pytest.mark.parametrize("mesh, scenario", [of_mesh(mesh, name) for mesh, names in SUMS.items() for name in names])
def test_released_sum_is_the_oracles(results, mesh, scenario):
    assert results(mesh)[scenario] < TOLERANCE


@pytest.mark.parametrize("mesh", [of_mesh(mesh) for mesh, names in OTHERS.items() if "noise" in names])
def test_every_mesh_draws_the_bits_of_one_ranks_noise(results, mesh):
    found = results(mesh)["noise"]
    assert found and all(found.values()), found


def test_groups_for_sums_are_the_devices_and_for_agreement_the_hosts(results):
    assert results("2")["groups"] == {"default": [DEVICE], "sums": [BACKEND], "agreement": ["gloo"]}


def test_every_rank_raises_what_one_finds(results):
    first, second = results("2")["refusals"]["one_rank_on_meta"]
    assert first.startswith("ValueError: rank 1: parameter '0.weight' is on device meta")
    assert second.startswith("ValueError: parameter '0.weight' is on device meta")
    expected = f"ValueError: all ranks must compute on one kind of device, but rank 0 does on {DEVICE} and rank 1 on cpu"
    assert results("2")["refusals"]["one_rank_on_the_cpu"] == [expected] * 2


@pytest.mark.skipif(DEVICE != "emulated", reason="waits are counted on the emulated device alone")
def test_the_host_waits_as_often_as_for_a_whole_model(results):
    """test_on_device.py names the waits: none is for each parameter, or for each of its states. The staged backend, unlike NCCL, waits for what it
    moves: in a backward each of the three blocks, which is gathered and reduced."""
    found = results("2")["waits"]
    first, *later = found["steps"]
    assert later == [found["own"] + 2 + 3 + 2 * 3] * len(later)
    assert first > later[0]
    assert found["of_adamw"][2:] == [later[0] + 2] * 2


def test_a_run_goes_on_from_a_sharded_checkpoint(results):
    assert results("2")["checkpoint"] == {"weights_come_back": True, "steps_are_counted": True, "finite": True}
