"""A tensor-parallel axis: alone, under FSDP2 over two ranks, and under replicas of that."""

import json

import pytest
from launch import HERE, SUM_TOLERANCE, OnMeshes, run_alone

SUMS = [
    "megatron", "along_the_sequence", "words_by_columns", "frozen_parts", "accumulated", "per_layer", "checkpointed", "two_passes",
    "two_passes_along_the_sequence", "llama",
]  # fmt: skip
OTHERS = ["bfloat16", "noise", "whole_parameters_stay_alike", "coins", "checkpoint"]
REFUSALS = {
    "uneven": "ranks must divide that dimension",
    "logits_left_cut": "losses must be plain tensors",
    "used_elsewhere": "used outside of its own layer's forward",
    "other_batches": "their forwards were given different batches",
}
# What a second axis of shards changes. The other sums are long tests there.
OF_SHARDS = ["megatron", "accumulated", "two_passes_along_the_sequence"]
EVERY = [*SUMS, *OTHERS, *REFUSALS]
on_meshes = OnMeshes(
    "tensor_parallel_main.py",
    {
        "2": EVERY, "2x2": [*OF_SHARDS, *OTHERS], "2x2 rest": [name for name in EVERY if name not in (*OF_SHARDS, *OTHERS)], "2x1x2 all": EVERY,
    },
)  # fmt: skip


@pytest.fixture
def results(request, tmp_path) -> dict:
    return on_meshes.results(request.param, tmp_path)


@on_meshes.cases(*SUMS)
def test_released_sum_is_the_oracles(results, scenario):
    assert results[scenario] < SUM_TOLERANCE


@on_meshes.cases("bfloat16")
def test_bfloat16_never_exceeds_the_clip_norm(results, scenario):
    found = results[scenario]
    # Upper bounds on norms may only make contributions smaller: by the bound's own width, 1e-3 if sums cancel. A model that
    # is bfloat16 itself gets gradients rounded to it, by up to 2^-9 each.
    rounded = 2**-9 if results["mesh"] == "2" else 0
    assert 0.999 - rounded < found["least"] <= found["most"] <= 1 + rounded


@on_meshes.cases("noise")
def test_noise_is_that_of_one_rank(results, scenario, tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(
        "import sys, json, copy, torch\nimport torch.distributed as dist\n"
        f"sys.path[:0] = [{str(HERE)!r}]\n"
        "from models import next_token_loss\nfrom private import Private\nfrom ranks_main import tokens\n"
        "from tensor_parallel_main import Stack\nfrom ghostshard import FSDP2Wrapper\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        f"shard = FSDP2Wrapper if {'x' in results['mesh']} else (lambda model: model)\n"  # it numbers parameters by block
        "torch.manual_seed(11)\nmodel, batches = Stack(), tokens()\n"
        "generator = torch.Generator().manual_seed(5)\nsums = []\n"
        "for sigma in (2.0, 0.0):\n"
        "    private = Private(shard(copy.deepcopy(model)), 0.3, noise_multiplier=sigma, generator=generator)\n"
        "    sums.append(private.step(next_token_loss, batches))\n"
        "names = ('words.weight', 'blocks.0.down.weight', 'blocks.1.norm.weight', 'blocks.0.down.bias')\n"
        "print(json.dumps([v for n in names for v in (sums[0][n] - sums[1][n]).flatten().tolist()]))\n"
    )
    alone = json.loads(run_alone(script))
    assert max(abs(a - b) for a, b in zip(alone, results[scenario], strict=True)) < 1e-5


@on_meshes.cases("whole_parameters_stay_alike")
def test_parameters_that_all_ranks_hold_are_released_once(results, scenario):
    assert results[scenario] == 0


@on_meshes.cases("coins")
def test_ranks_that_hold_the_same_data_draw_the_same_coins(results, scenario):
    by_data_rank: dict[int, list] = {}
    for rank, drawn in results[scenario]:
        assert by_data_rank.setdefault(rank, drawn) == drawn
    assert len(by_data_rank) == results["ranks"] // 2
    units = [set(sum(drawn, [])) for drawn in by_data_rank.values()]
    assert not set.intersection(*units) if len(units) > 1 else units[0]


@on_meshes.cases("checkpoint")
def test_a_run_is_resumed_from_a_sharded_checkpoint(results, scenario):
    assert results[scenario]["apart"] == 0
    assert results[scenario]["history"] == [[1.0, 0.25, 8]]  # an epoch of four steps before, one after


@on_meshes.cases(*REFUSALS)
def test_refused_with_a_sentence(results, scenario):
    assert REFUSALS[scenario] in results[scenario]
