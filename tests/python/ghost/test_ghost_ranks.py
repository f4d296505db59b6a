"""The same on several ranks: FSDP2 over two, replicas of it over four. One start of torchrun for all scenarios of a mesh."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MESHES = {"2": 2, "2x2": 4}
TIME_LIMIT = 280


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


@pytest.fixture(scope="module", params=list(MESHES))
def results(request, tmp_path_factory) -> dict:
    file = tmp_path_factory.mktemp("ranks") / "results.json"
    run_ranks(HERE / "ranks_main.py", MESHES[request.param], str(file), request.param)
    return json.loads(file.read_text()) | {"mesh": request.param}


SUMS = [
    "mlp", "language_tied_and_embedded_twice", "frozen_parts", "conv2d", "conv2d_few_places", "layer_without_a_rule",
    "gpt2_tied", "gpt2_accumulated", "gpt2_checkpointed", "gpt2_two_passes", "gpt2_checkpointed_two_passes",
    "gpt2_with_lora", "llama", "bert", "language_sharded_by_leaf", "packed_texts", "packed_users",
]  # fmt: skip


@pytest.mark.parametrize("scenario", SUMS)
def test_released_sum_is_the_oracles(results, scenario):
    # A few hundred float32 operations between an input and a sum, each within 2^-24 of its terms.
    assert results[scenario] < 2e-5


def test_noise_is_there_once_and_does_not_repeat_over_slices(results):
    noise = results["noise"]
    n = len(noise)
    scale = 2.0 * 0.3
    variance = sum(value * value for value in noise) / n / scale**2
    assert abs(variance - 1) < 6 * math.sqrt(2 / n)  # six standard deviations of a chi-square mean
    half = n // 2
    overlap = sum(a * b for a, b in zip(noise[:half], noise[half:])) / half / scale**2
    assert abs(overlap) < 6 / math.sqrt(half)


def test_bfloat16_never_exceeds_the_clip_norm(results):
    found = results["bfloat16"]
    # Upper bounds on norms may only make contributions smaller: by the bound's own width, 1e-3 where sums cancel.
    assert 0.999 < found["least"] <= found["most"] <= 1


def test_bytes_are_those_of_one_reduction_for_each_microbatch_or_each_step(results):
    found = results["bytes"]
    # All-to-all over two shards sends half of the gradient; the second axis adds up slices of half the size in rank order.
    once = found["parameters"] // 2 * (2 if results["mesh"] == "2x2" else 1)
    assert found["accumulated"] == once
    assert found["reduced_each"] == 2 * once


def test_every_mesh_draws_the_noise_of_one_rank(results, tmp_path):
    """Rank 0's generator decides; which rank draws which element does not."""
    script = tmp_path / "alone.py"
    script.write_text(
        "import sys, json, copy, torch\n"
        f"sys.path[:0] = [{str(HERE)!r}]\n"
        "from models import CASES, next_token_loss\nfrom private import Private\n"
        "case = next(c for c in CASES if c.name == 'language_tied')\n"
        "torch.manual_seed(11)\nmodel, batches = case.build(), case.batches()\n"
        "generator = torch.Generator().manual_seed(5)\nsums = []\n"
        "for sigma in (2.0, 0.0):\n"
        "    private = Private(copy.deepcopy(model), 0.3, noise_multiplier=sigma, generator=generator)\n"
        "    sums.append(private.step(next_token_loss, batches)['tokens.weight'])\n"
        "print(json.dumps((sums[0] - sums[1]).flatten().tolist()))\n"
    )
    alone = json.loads(run_alone(script))
    assert max(abs(a - b) for a, b in zip(alone, results["noise"], strict=True)) < 1e-5


def run_alone(script: Path) -> str:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
