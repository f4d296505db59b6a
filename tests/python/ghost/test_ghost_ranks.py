"""Sums, noise and bytes on several ranks: FSDP2 over two, replicas of it over four. One start of torchrun for all scenarios of a mesh."""

import json
import math

import pytest
from launch import HERE, SUM_TOLERANCE, OnMeshes, run_alone

SUMS = [
    "mlp", "language_tied_and_embedded_twice", "frozen_parts", "conv2d", "conv2d_few_places", "layer_without_a_rule",
    "gpt2_tied", "gpt2_accumulated", "gpt2_checkpointed", "gpt2_two_passes", "gpt2_checkpointed_two_passes",
    "gpt2_with_lora", "llama", "bert", "language_sharded_by_leaf", "packed_texts", "packed_users", "lstm", "opacus_lstm",
    "gru_sharded_as_a_leaf", "own_parameters_beside_blocks", "own_parameters_beside_blocks_two_passes", "own_parameter_beside_an_lstm", "t5_by_its_own_loss", "bert_spans_by_its_own_loss", "own_head_by_its_own_loss",
]  # fmt: skip
# What replicas change: how sums are reduced, who draws the noise, and which rows of a table or a leaf a rank has. The other sums are long tests there.
OF_REPLICAS = ["language_tied_and_embedded_twice", "gpt2_accumulated", "gpt2_two_passes", "language_sharded_by_leaf", "packed_users"]
OTHERS = ["noise", "bfloat16", "bytes"]
CUT = "opacus_lstm_by_fully_shard"

on_meshes = OnMeshes(
    "ranks_main.py",
    {
        "2": [*SUMS, *OTHERS, CUT], "2x2": [*OF_REPLICAS, *OTHERS], "2x2 rest": [name for name in (*SUMS, CUT) if name not in OF_REPLICAS]
    },
)  # fmt: skip


@pytest.fixture
def results(request, tmp_path) -> dict:
    return on_meshes.results(request.param, tmp_path)


@on_meshes.cases(*SUMS)
def test_released_sum_is_the_oracles(results, scenario):
    assert results[scenario] < SUM_TOLERANCE


@on_meshes.cases(CUT)
def test_cells_that_fully_shard_does_not_see_are_refused(results, scenario):
    said = results[scenario]
    assert "fully_shard does not gather" in said and "FSDP2Wrapper" in said


@on_meshes.cases("noise")
def test_noise_is_there_once_and_does_not_repeat_over_slices(results, scenario):
    noise = results[scenario]
    n = len(noise)
    scale = 2.0 * 0.3
    variance = sum(value * value for value in noise) / n / scale**2
    assert abs(variance - 1) < 6 * math.sqrt(2 / n)  # six standard deviations of a chi-square mean
    half = n // 2
    overlap = sum(a * b for a, b in zip(noise[:half], noise[half:])) / half / scale**2
    assert abs(overlap) < 6 / math.sqrt(half)


@on_meshes.cases("bfloat16")
def test_bfloat16_never_exceeds_the_clip_norm(results, scenario):
    found = results[scenario]
    # Upper bounds on norms may only make contributions smaller: by the bound's own width, 1e-3 if sums cancel.
    assert 0.999 < found["least"] <= found["most"] <= 1


@on_meshes.cases("bytes")
def test_bytes_are_those_of_one_reduction_for_each_microbatch_or_each_step(results, scenario):
    found = results[scenario]
    # All-to-all over two shards sends half of the gradient; the second axis adds up slices of half the size in rank order.
    once = found["parameters"] // 2 * (2 if results["mesh"] == "2x2" else 1)
    assert found["accumulated"] == found["by_itself"] == once
    assert found["reduced_each"] == 2 * once


@on_meshes.cases("noise")
def test_every_mesh_draws_the_noise_of_one_rank(results, scenario, tmp_path):
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
    assert max(abs(a - b) for a, b in zip(alone, results[scenario], strict=True)) < 1e-5
