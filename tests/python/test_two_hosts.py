"""Ranks on two hosts, over TCP, give what the same ranks give on one.

The hosts are two network namespaces joined by a pair of virtual Ethernet devices, inside a user namespace that ends
with the test and leaves nothing behind. Nothing in them resolves a host name: addresses are all that the ranks have.
"""

import math
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from program import PLAIN, PRIVATE, arguments, json_lines, write_inputs

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = "29517"
RANK_TEST = "RankOfAnEnvironment.DISABLED_WritesItsWeights"

# Two hosts; then one line for each rank. `ip netns` keeps its names below /run, which is ours alone here.
HOSTS = f"""
set -eu
mount -t tmpfs none /run
ip netns add one
ip netns add two
ip link add cable netns one type veth peer name cable netns two
ip -n one address add {ADDRESSES[0]}/24 dev cable
ip -n two address add {ADDRESSES[1]}/24 dev cable
for host in one two; do ip -n $host link set lo up; ip -n $host link set cable up; done
"""


def in_namespace(script: str, seconds: float) -> subprocess.CompletedProcess:
    """Killed as a whole when the time is up: the processes inside share a PID namespace."""
    words = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c"]
    return subprocess.run([*words, script], capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module", autouse=True)
def namespaces_permitted():
    for tool in ("unshare", "ip"):
        if shutil.which(tool) is None:
            pytest.skip(f"two hosts need `{tool}` (util-linux, iproute2), which is not installed")
    tried = in_namespace(HOSTS + "ip netns exec one true\n", 20)
    if tried.returncode != 0:
        pytest.skip(f"this system does not permit network namespaces: {tried.stderr.strip()}")


@dataclass(frozen=True)
class Launch:
    """One command on every rank, ranks dealt over hosts in order."""

    folder: Path
    command: list[str]
    ranks: int

    def script(self, hosts: list[str], place: dict[str, str]) -> str:
        lines = []
        for rank in range(self.ranks):
            host = hosts[rank * len(hosts) // self.ranks]
            environment = {
                "WORLD_SIZE": self.ranks, "RANK": rank, "LOCAL_WORLD_SIZE": self.ranks // len(hosts), "MASTER_PORT": PORT,
                "OMP_NUM_THREADS": 1, **place,
            }  # fmt: skip
            words = ["env", *(f"{name}={value}" for name, value in environment.items()), *self.command]
            lines.append(f"ip netns exec {host} {shlex.join(map(str, words))} > {rank}.out 2>&1 & pids[{rank}]=$!")
        waits = [f"wait ${{pids[{rank}]}} || {{ echo rank {rank}: $?; cat {rank}.out; bad=1; }}" for rank in range(self.ranks)]
        return "\n".join([HOSTS, f"cd {shlex.quote(str(self.folder))}", "bad=0", *lines, *waits, "exit $bad"])

    def run(self, hosts: list[str], **place: str) -> None:
        done = in_namespace(self.script(hosts, place), 120)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mesh", ["1x2x1", "1x4x1", "2x2x1", "1x2x2", "2x1x2"])
def test_private_weights_of_one_key_are_the_same_to_the_bit(binary, tmp_path, mesh):
    """The test program, because the program draws a run id, and with it noise, of its own for every run."""
    ranks = math.prod(map(int, mesh.split("x")))
    launch = Launch(tmp_path, [binary.parent / "gpt2_test", "--gtest_also_run_disabled_tests",
                               f"--gtest_filter={RANK_TEST}"], ranks)  # fmt: skip
    launch.run(["one", "two"], MASTER_ADDR=ADDRESSES[0], GHOSTSHARD_TEST_OUTPUT="two", GHOSTSHARD_TEST_MESH=mesh)
    launch.run(["one"], MASTER_ADDR="127.0.0.1", GHOSTSHARD_TEST_OUTPUT="one", GHOSTSHARD_TEST_MESH=mesh)
    expected = (tmp_path / "one.0").read_bytes()
    for rank in range(ranks):
        assert (tmp_path / f"two.{rank}").read_bytes() == expected, rank


def test_the_program_trains_over_two_hosts(binary, tmp_path):
    write_inputs(tmp_path)
    (tmp_path / "key").write_bytes(os.urandom(32))
    (tmp_path / "key").chmod(0o600)
    words = arguments(PRIVATE, noise_key_file="key", timeout="60", mesh="1x2x2")
    Launch(tmp_path, [binary, *words], 4).run(["one", "two"], MASTER_ADDR=ADDRESSES[0])
    header, *releases = json_lines(tmp_path / "run" / "ledger.jsonl")
    assert [release["step"] for release in releases] == [0, 1, 2], header
    assert (tmp_path / "run" / "model" / "model.safetensors").stat().st_size > 0


def test_a_run_without_privacy_repeats_to_the_bit_on_two_hosts(binary, tmp_path):
    write_inputs(tmp_path)
    for output, hosts, address in (("a", ["one"], "127.0.0.1"), ("b", ["one", "two"], ADDRESSES[0])):
        words = arguments(PLAIN, output=output, timeout="60")
        Launch(tmp_path, [binary, *words], 2).run(hosts, MASTER_ADDR=address)
    a, b = ((tmp_path / run / "model" / "model.safetensors").read_bytes() for run in "ab")
    assert a == b
