"""Scripts that ranks run, and a script of one process alone."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from program import free_port

HERE = Path(__file__).parent
TIME_LIMIT = 280
SETTINGS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONFAULTHANDLER": "1"}

# Of a sum's relative error: a few hundred float32 operations between an input and a sum, each within 2^-24 of its terms.
SUM_TOLERANCE = 2e-5


class RankServer:
    """rank_server.py, started when first asked: one for each process of pytest."""

    def __init__(self):
        self.process = None

    def run(self, **job) -> dict:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "rank_server.py")], env=os.environ | SETTINGS, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"rank_server.py ended with status {self.process.wait(10)}"
        return json.loads(answer)


server = RankServer()


def run_ranks(script: Path, ranks: int, *arguments: str) -> None:
    """Every rank must end with status 0. (Ranks under torchrun itself: test_ghost_training.py.)"""
    environment = dict(os.environ) | SETTINGS
    done = server.run(
        script=str(script), arguments=arguments, ranks=ranks, port=free_port(), environment=environment, seconds=TIME_LIMIT
    )
    assert done["code"] != 124, f"{script.name} on {ranks} ranks took over {TIME_LIMIT} s; it had said:\n{done['said'][-4000:]}"
    said = "\n".join(line for line in done["said"].splitlines() if "Extension modules:" not in line)
    assert done["code"] == 0, said if len(said) < 8000 else f"{said[:4000]}\n…\n{said[-4000:]}"


def results_of_ranks(script: str, ranks: int, folder: Path) -> Any:
    """What a script of this folder writes into the file that it gets, in JSON."""
    file = folder / "results.json"
    run_ranks(HERE / script, ranks, str(file))
    return json.loads(file.read_text())


def run_under_torchrun(script: Path, ranks: int, *arguments: str) -> str:
    """As a user starts it: standard output."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), str(script), *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, env=os.environ | SETTINGS, capture_output=True, text=True, timeout=TIME_LIMIT)
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout


def results_on_mesh(script: str, mesh: str, folder: Path, scenarios: Sequence[str]) -> dict:
    """The results of these scenarios of `script` on a mesh such as "2x2", with the mesh's name among them."""
    ranks, mesh = 1, mesh.split()[0]
    for extent in mesh.split("x"):
        ranks *= int(extent)
    file = folder / "results.json"
    run_ranks(HERE / script, ranks, str(file), mesh, *scenarios)
    return json.loads(file.read_text()) | {"mesh": mesh, "ranks": ranks}


class OnMeshes:
    """The scenarios of `script` that each mesh runs, by name: one start of ranks for a mesh. A second word in a mesh's name, as in "2x2 rest", says that its
    cases are long tests."""

    def __init__(self, script: str, meshes: dict[str, list[str]]):
        self.script, self.meshes, self.found = script, meshes, {}

    def results(self, mesh: str, folder: Path) -> dict:
        if mesh not in self.found:
            self.found[mesh] = pytest.fail.Exception(f"the ranks of {mesh} failed before")
            self.found[mesh] = results_on_mesh(self.script, mesh, folder, self.meshes[mesh])
        if isinstance(self.found[mesh], dict):
            return self.found[mesh]
        raise self.found[mesh]

    def cases(self, *scenarios: str):
        """A decorator: cases for the fixtures `results` and `scenario`."""
        return pytest.mark.parametrize(
            ("results", "scenario"),
            [
                pytest.param(mesh, name, marks=[pytest.mark.long] if " " in mesh else [])
                for mesh, names in self.meshes.items() for name in names if name in scenarios
            ], indirect=["results"],
        )  # fmt: skip


def run_alone(script: Path) -> str:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
