"""Scripts that ranks run, started as torchrun starts them, and a script of one process alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TIME_LIMIT = 280

# Of a sum's relative error: a few hundred float32 operations between an input and a sum, each within 2^-24 of its terms.
SUM_TOLERANCE = 2e-5


def run_ranks(script: Path, ranks: int, *arguments: str) -> str:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), str(script), *arguments,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONFAULTHANDLER": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{script.name} on {ranks} ranks took over {TIME_LIMIT} s; it had said:\n{error.stderr}"[-4000:])
    said = "\n".join(line for line in done.stderr.splitlines() if "Extension modules:" not in line)
    assert done.returncode == 0, said if len(said) < 8000 else f"{said[:4000]}\n…\n{said[-4000:]}"
    return done.stdout


def results_on_mesh(script: str, mesh: str, folder: Path) -> dict:
    """The results of all scenarios of `script` on a mesh such as "2x2", with the mesh's name among them."""
    ranks = 1
    for extent in mesh.split("x"):
        ranks *= int(extent)
    file = folder / "results.json"
    run_ranks(HERE / script, ranks, str(file), mesh)
    return json.loads(file.read_text()) | {"mesh": mesh, "ranks": ranks}


def run_alone(script: Path) -> str:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
