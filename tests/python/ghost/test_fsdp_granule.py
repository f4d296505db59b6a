"""FSDP2Wrapper(granule=): rows that must stay on one rank, or a sentence before anything is sharded."""

from types import SimpleNamespace

import pytest
import torch

from ghostshard.fsdp import FSDP2Wrapper, _check_granules


def mesh(*sizes):
    return SimpleNamespace(ndim=len(sizes), size=lambda axis: sizes[axis])


def model(rows=48, columns=4):
    return torch.nn.Sequential(torch.nn.Linear(columns, rows))


def test_a_granule_that_would_be_cut_is_a_sentence_and_nothing_is_sharded():
    given = model(rows=50)
    with pytest.raises(ValueError) as error:
        FSDP2Wrapper(given, mesh=mesh(4), granule=4)
    assert str(error.value).startswith(
        "0.weight: fully_shard gives 13 of its 50 rows to a rank, which cuts granules of 4 rows. Pad it to a multiple of 16 rows"
    )
    assert type(given.get_parameter("0.weight")) is torch.nn.Parameter


@pytest.mark.parametrize(
    "rows, ranks, granule, cut",
    [
        (48, (4,), 4, False),
        (48, (4,), 12, False),
        (48, (4,), 8, True),
        (48, (1,), 7, False),
        (48, (2, 4), 12, False),  # two replicas of four shards
        (48, (4, 2), 24, False),
        (3, (4,), 1, False),
        (50, (4,), lambda name, parameter: None, False),
        (50, (4,), lambda name, parameter: 4 if name.endswith("bias") else None, True),
    ],
)
def test_rows_are_dealt_out_as_fully_shard_does(rows, ranks, granule, cut):
    if cut:
        with pytest.raises(ValueError, match="which cuts granules"):
            _check_granules(model(rows), granule, {"mesh": mesh(*ranks)})
    else:
        _check_granules(model(rows), granule, {"mesh": mesh(*ranks)})


@pytest.mark.parametrize("granule", [0, -1, 1.5, True, "4"])
def test_a_granule_is_a_number_of_rows(granule):
    with pytest.raises(ValueError, match="must be a whole number of rows, at least 1, got"):
        _check_granules(model(), granule, {"mesh": mesh(2)})


def test_other_extents_than_rows_are_refused():
    with pytest.raises(ValueError, match="shard_placement_fn"):
        FSDP2Wrapper(model(), granule=2, shard_placement_fn=lambda parameter: None)
