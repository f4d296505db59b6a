"""Whether a list of a batch has an entry for each example, or is one of columns, is told by batches of single examples, not by how many it has."""

import collections
import dataclasses
from collections import deque

import pytest
import torch
from torch.utils.data import default_collate

from ghostshard.loaders.empty_batch import CollateOrEmpty
from ghostshard.loaders.listed_examples import entry_at, ones_and_two, told_apart

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    boxes: list
    count: int


def told(collate, examples):
    found = ones_and_two(collate, examples)
    assert found is not None
    return told_apart(*found)


EXAMPLES = [(torch.full((2,), float(i)), torch.rand(1 + i % 3, 4)) for i in range(6)]
LISTS = {
    "entries": (lambda rows: {"x": torch.stack([x for x, _ in rows]), "boxes": [b for _, b in rows]}, {("boxes",): True}),
    "columns of two": (lambda rows: [torch.stack([x for x, _ in rows])] * 2, {(): False}),
    "columns that are dicts": (lambda rows: ([{"x": torch.stack([x for x, _ in rows])}] * 2, [1, 2]), {(): False, (0,): False, (1,): False}),
    "boxes of all": (lambda rows: {"boxes": [box for _, b in rows for box in b]}, {("boxes",): False}),
    "examples": (list, {(): True}),
    "transposed": (lambda rows: tuple(zip(*rows)), {(): False, (0,): True, (1,): True}),
    "deques": (lambda rows: Pair(deque(x for x, _ in rows), deque(b for _, b in rows)), {("x",): None, (0,): True, (1,): True}),
    "an object": (lambda rows: Batch(torch.stack([x for x, _ in rows]), [b for _, b in rows], len(rows)), {("boxes",): True}),
    "torch's own": (lambda rows: default_collate([x for x, _ in rows]), {}),
}  # fmt: skip


@pytest.mark.parametrize("collate, expected", LISTS.values(), ids=LISTS)
def test_lists_are_told_by_single_examples(collate, expected):
    found = told(collate, EXAMPLES)
    assert {path: found.get(path) for path in expected} == expected
    assert all(value is False or path in expected for path, value in found.items())


def test_a_collate_fn_that_takes_no_single_examples_tells_nothing():
    def of_two(rows):
        assert len(rows) > 1
        return list(rows)

    assert ones_and_two(of_two, EXAMPLES) is None


def test_generators_stay_what_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    told(lambda rows: [torch.rand(1) for _ in rows], EXAMPLES)
    assert torch.equal(torch.rand(2), expected)


def test_the_first_batch_and_an_empty_one_say_what_their_lists_are():
    collate = CollateOrEmpty(LISTS["entries"][0], EXAMPLES).telling()
    full, empty = collate(EXAMPLES[:3]), collate([])
    assert full.lists == {("boxes",): True} and empty.batch["boxes"] == [] and list(empty.entries) == [("boxes",)]
    assert torch.equal(empty.entries["boxes",], EXAMPLES[0][1]) and entry_at(full.batch, ("boxes",)) is full.batch["boxes"]


EMPTY = {
    "an object": (LISTS["an object"][0], lambda found: found.x.shape == (0, 2) and found.boxes == [] and isinstance(found, Batch)),
    "deques": (LISTS["deques"][0], lambda found: found == Pair(deque(), deque())),
    "what is no example's": (lambda rows: (torch.stack([x for x, _ in rows]), torch.device("cpu")), lambda found: found[1] == torch.device("cpu")),
}


@pytest.mark.parametrize("collate, is_right", EMPTY.values(), ids=EMPTY)
def test_batches_of_any_kind_have_one_without_examples(collate, is_right):
    found = CollateOrEmpty(collate, EXAMPLES)([])
    assert is_right(found)


def test_what_cannot_be_empty_is_named_at_the_first_batch():
    collate = CollateOrEmpty(lambda rows: object(), EXAMPLES).telling()
    with pytest.warns(UserWarning, match="object looks without examples is unknown"):
        collate(EXAMPLES[:2])
    with pytest.raises(TypeError, match="object looks without examples is unknown"):
        collate([])
