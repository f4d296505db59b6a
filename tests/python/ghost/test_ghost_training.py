"""Whole loops on two ranks: ranks keep in step with any draws, and end together."""

import json
import subprocess
import sys
import time

import pytest
import torch
from launch import HERE, run_ranks, run_under_torchrun

SCRIPT = HERE / "engine_ranks_main.py"
EPOCHS, STEPS = 5, 4


@pytest.mark.parametrize("scenario", ["poisson", "memory_manager"])
def test_ranks_take_the_same_steps(scenario, tmp_path):
    """Faults H1 and H2, in ten chances of a hang each; P5: equal seeds must not draw equal masks."""
    file = tmp_path / "results.json"
    run_ranks(SCRIPT, 2, str(file), scenario)
    first, second = json.loads(file.read_text())["ranks"]
    assert first["history"] == second["history"] == [[1.0, 0.25, EPOCHS * STEPS]]
    assert first["weights"] == second["weights"]
    assert len(first["seen"]) == len(second["seen"])
    mine, other = sum(first["seen"], []), sum(second["seen"], [])
    assert not set(mine) & set(other)
    assert any(not batch for batch in first["seen"])  # the scenario had an empty batch
    if scenario == "memory_manager":
        assert max(map(len, first["seen"] + second["seen"])) == 1


def test_ranks_have_one_clip_norm_that_adapts(tmp_path):
    file = tmp_path / "results.json"
    run_ranks(SCRIPT, 2, str(file), "adaptive")
    first, second = json.loads(file.read_text())["ranks"]
    assert first["history"] == second["history"] == [[1.0, 0.25, EPOCHS * STEPS]]
    assert first["clip_norms"] == second["clip_norms"] and len(set(first["clip_norms"])) > EPOCHS
    assert first["weights"] == second["weights"]


def test_whole_models_on_every_rank(tmp_path):
    file = tmp_path / "results.json"
    run_ranks(SCRIPT, 2, str(file), "replicas")
    assert json.loads(file.read_text()) < 2e-5


def test_an_exception_on_one_rank_ends_all(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(SCRIPT),
               str(tmp_path / "results.json"), "raises"]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "a broken example" in done.stderr
    assert time.monotonic() - began < 100


@pytest.mark.parametrize("example", ["finetune_gpt2.py", "finetune_llama_lora.py"])
def test_examples_end_with_a_report(example, tmp_path):
    torch.manual_seed(0)
    words = "the patient reports mild pain in the left knee after long walks".split()
    lines = [" ".join(words[i] for i in torch.randint(0, len(words), (6,))) for _ in range(40)]
    (tmp_path / "notes.txt").write_text("\n".join(lines))
    said = run_under_torchrun(
        HERE.parents[2] / "examples" / example, 2, "--texts", str(tmp_path / "notes.txt"), "--output",
        str(tmp_path / "run"), "--epochs", "1", "--batch", "20", "--max-length", "24",
    )  # fmt: skip
    report = json.loads((tmp_path / "run" / "privacy_report.json").read_text())
    assert report["guarantee"]["applies"]
    assert 7.9 < report["guarantee"]["epsilon"]["upper"] <= 8
    assert "epsilon = 8.0000" in said
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 3
