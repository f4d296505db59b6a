"""Mode "ghost" on the device (device_under_test.py), in one process: see test_on_device.py.

    one_rank_main.py results.json [scenario ...]
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable

from on_device import DEVICE, here, take_engine, there

seen = take_engine()

import narrow
import oracle
import refusals
import steps
import torch
from models import CASES, Case, next_token_loss
from private import Private
from ranks_main import checkpointed_gpt2, gpt2, gpt2_with_lora
from whole_run import whole_run

ALL = {case.name: case for case in CASES}
ALL |= {
    build.__name__: Case(build.__name__, build, steps.tokens, next_token_loss, 0.05 if build is gpt2_with_lora else 0.5)
    for build in (gpt2, gpt2_with_lora, checkpointed_gpt2)
}
EMPTY = "with_an_empty_batch"
WAYS: dict[str, dict] = {
    "reduced_each": {}, "accumulated": {"accumulate": True}, "two_passes": {"memory_budget": 0},
    "two_passes_accumulated": {"memory_budget": 0, "accumulate": True}, "per_layer": {"clipping": "per_layer"}, EMPTY: {},
}  # fmt: skip


def sums(case: Case, way: str) -> dict[str, float]:
    """The distance of a release without noise from the oracle's, and from the CPU's."""
    torch.manual_seed(7)
    model, batches = case.build(), case.batches()
    given = batches
    if way == EMPTY:
        given = [batches[0], tuple(value[:0] for value in batches[0]), *batches[1:]]
    on_cpu = Private(copy.deepcopy(model), case.clip_norm, **WAYS[way]).step(case.loss, given)
    private = Private(copy.deepcopy(model).to(DEVICE), case.clip_norm, **WAYS[way])
    found = private.step(case.loss, [there(batch) for batch in given])
    assert all(value.device.type == DEVICE for value in found.values())
    scale = {name: value.double() for name, value in on_cpu.items()}
    differences = {"cpu": oracle.worst_difference(here(found), scale)}
    if way != "per_layer":  # the oracle clips whole gradients
        expected = oracle.clipped_sum(model, case.loss, batches, case.clip_norm)
        differences["oracle"] = oracle.worst_difference(here(found), expected)
    return differences


def some_sums() -> dict[str, dict[str, float]]:
    every = ("reduced_each", "accumulated", "two_passes", "two_passes_accumulated", "per_layer", EMPTY)
    wanted = dict.fromkeys(("mlp", "linear_of_4_extents", "frozen_parts", "layer_called_twice", "layer_norm_of_2_extents", "language_untied", "language_tied_and_embedded_twice", "padding_idx", "conv1d", "conv2d", "conv2d_few_places", "layer_without_a_rule", "parameters_beside_children", "scalar_parameter", "instance_norm", "gpt2_with_lora"), ("reduced_each",))  # fmt: skip
    wanted |= {"language_tied": every, "gpt2": ("reduced_each", EMPTY), "checkpointed_gpt2": ("two_passes",)}
    return {f"{name}-{way}": sums(ALL[name], way) for name, ways in wanted.items() for way in ways}


SCENARIOS: dict[str, Callable] = {
    "sums": some_sums, "whole_run": whole_run, **steps.scenarios(seen), **refusals.SCENARIOS,
    **narrow.SCENARIOS,
}  # fmt: skip


def main() -> None:
    found = {}
    for name in sys.argv[2:] or SCENARIOS:
        scenario = SCENARIOS[name]
        print(name, file=sys.stderr, flush=True)
        found[name] = scenario()
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
