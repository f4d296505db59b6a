"""Views that are kept must be of what stands there now."""

import pytest
import torch

from ghostshard.ghost.checks.samples import Samples, Views, side_by_side

CHANGES = {
    "transposed": lambda w: w.t(), "expanded": lambda w: w[:1].expand(3, 3), "another tensor": lambda w: w + 1, "of another type": lambda w: w.view(torch.int32),
    "a part": lambda w: w[:2], "moved": lambda w: w.flip(0),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_came_to_stand_there_is_seen(change):
    views, weight = Views(side_by_side), torch.arange(1.0, 10).view(3, 3)
    before = Samples(views.of([("w", weight)]))
    assert Samples(views.of([("w", weight)])).same_as(before)
    assert not Samples(views.of([("w", change(weight))])).same_as(before)
    assert Samples(views.of([("w", weight)])).same_as(before)


def test_what_is_written_in_place_is_seen():
    views, weight = Views(side_by_side), torch.arange(1.0, 10).view(3, 3)
    before = Samples(views.of([("w", weight)]))
    weight.data[1, 1] += 1
    assert not Samples(views.of([("w", weight)])).same_as(before)
