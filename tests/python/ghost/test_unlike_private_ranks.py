"""Ranks whose make_private() differs are refused on all of them before anything is charged or written. (The C++ program's ranks:
tests/python/test_unlike_ranks.py.)"""

import json

import pytest
from launch import HERE, run_ranks

NAMED = {
    "noise": "noise_multiplier on rank 1",
    "clip_norm": "max_grad_norm on rank 1",
    "clipping": "clipping on rank 1",
    "clip_quantile": "the clip quantile on rank 1",
    "reduction": "loss_reduction on rank 1",
    "criterion": "the criterion on rank 1",
    "accumulation": "accumulation_steps on rank 1",
    "own_batches": "own_batches on rank 1",
    "accountant": "the accountant on rank 1",
    "spent_before": "the accountant on rank 1",
    "a_seed": "a generator of the data loader on rank 1",
    "order": "the optimizer's parameters on rank 1",
    "fewer_parameters": "the optimizer's parameters on rank 1",
    "batch_size": "the data loader's sampling on rank 1",
    "other_data": "the data set on rank 1",
    "fewer_items": "the data set on rank 1",
    "a_mistake": "the criterion's reduction must be",
    "layers": "the model's",
    "betas": "the optimizer's settings on rank 1",
    "register": "a budget register on rank 1",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unlike")
    run_ranks(HERE / "unlike_main.py", 2, str(folder / "results.json"), str(folder))
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", NAMED)
def test_all_ranks_name_what_differs(said, name):
    assert all(NAMED[name] in sentence for sentence in said[name]), said[name]


def test_noise_that_comes_apart_later_is_refused_before_it_is_used(said):
    for sentence in said["terms_come_apart"]:
        assert "noise multiplier 1.0" in sentence and "noise multiplier 0.001" in sentence


def test_a_ledger_that_is_there_is_refused_on_all_ranks(said):
    assert all("there.jsonl" in sentence for sentence in said["the_ledger_is_there"]), said["the_ledger_is_there"]


@pytest.mark.parametrize("name", ["terms_change_alike", "generators_stay", "own_generator"])
def test_what_is_alike_goes_on(said, name):
    assert said[name] == ["nothing", "nothing"]
