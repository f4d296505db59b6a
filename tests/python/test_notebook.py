"""examples/finetune_and_plot.ipynb: its cells run in order, as a reader runs them, and show what they promise."""

import json
import os
import subprocess
import sys

import pytest

CELLS = """
import json, sys
scope = {}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), "cell", "exec"), scope)
print(json.dumps({"steps": scope["steps"], "epsilons": scope["epsilons"], "losses": scope["losses"], "run": str(scope["run"]),
                  "budget": scope["EPSILON"]}))
"""


@pytest.fixture(scope="module")
def ran(repository, tmp_path_factory):
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path_factory.mktemp("notebook")),
                   "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib"))}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CELLS, repository / "examples" / "finetune_and_plot.ipynb"],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done


def test_it_learns_within_its_budget(ran):
    seen, _ = ran
    assert seen["steps"] == list(range(41))
    assert sorted(seen["epsilons"]) == seen["epsilons"] and 0.9 * seen["budget"] < seen["epsilons"][-1] <= seen["budget"]
    # Uniform guesses cost log(17) = 2.83 nats; four subjects, four verbs and three places some 0.6 a token.
    assert seen["losses"][0] > 2.5 and seen["losses"][-1] < 1.8


def test_it_leaves_picture_and_report(ran):
    seen, done = ran
    for name in ("epsilon_and_loss.png", "privacy_report.html", "privacy_report.json", "ledger.jsonl"):
        assert os.path.getsize(os.path.join(seen["run"], name)) > 1000
    assert "epsilon" in done.stdout and "Traceback" not in done.stderr


def test_no_output_is_kept_in_it(repository):
    """What cells printed on one machine is nothing to commit."""
    notebook = json.loads((repository / "examples" / "finetune_and_plot.ipynb").read_text(encoding="utf-8"))
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in notebook["cells"] if cell["cell_type"] == "code")
