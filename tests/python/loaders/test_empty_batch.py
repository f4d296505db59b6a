"""A batch of no example has the structure of a full one."""

import collections
import copy

import numpy as np
import pytest
import torch
from drawing import seeded
from transformers import BatchEncoding

from ghostshard.loaders import GhostDataLoader

Pair = collections.namedtuple("Pair", "x y")
X, Y = torch.arange(3, dtype=torch.float16), torch.tensor(4)


class Rows(list):
    """A data set of 4 equal examples."""

    def __init__(self, example):
        super().__init__(copy.deepcopy(example) for _ in range(4))


def as_batch_encoding(examples):
    return BatchEncoding({"input_ids": torch.stack([example.pop("ids") for example in examples])})


def packed(examples):
    ends = torch.tensor([3 * i for i in range(len(examples) + 1)], dtype=torch.int32)
    return {"ids": torch.cat(examples)[None], "ends": ends, "longest": 3, "rows": len(examples), "kind": "packed"}


def second_dimension(examples):
    return torch.stack(examples, dim=1), torch.arange(len(examples)), torch.ones(1, 3)


E0 = torch.empty(0, 3, dtype=torch.float16)
EMPTY = {
    "tensor": (X, None, E0),
    "scalar": (Y, None, torch.empty(0, dtype=torch.int64)),
    "number": (2.5, None, torch.empty(0, dtype=torch.float64)),
    "string": ("a", None, []),
    "fields": ((X, Y), None, [E0, torch.empty(0, dtype=torch.int64)]),
    "dict": ({"x": X, "text": "a", "deep": {"y": Y}}, None,
             {"x": E0, "text": [], "deep": {"y": torch.empty(0, dtype=torch.int64)}}),
    "namedtuple": (Pair(X, "a"), None, Pair(E0, ())),
    "batch_encoding": ({"ids": X}, as_batch_encoding, BatchEncoding({"input_ids": E0})),
    "rows": ((X, Y), list, []),
    "columns": ((X, 1), lambda rows: tuple(zip(*rows, strict=True)), ((), ())),
    "numpy": (X, lambda rows: np.stack([np.asarray(row) for row in rows]), np.empty((0, 3), dtype=np.float16)),
    "packed": (X, packed, {"ids": torch.empty(1, 0, dtype=torch.float16), "ends": torch.zeros(1, dtype=torch.int32),
                           "longest": 3, "rows": 0, "kind": "packed"}),
    "second_dimension": (X, second_dimension,
                         (torch.empty(3, 0, dtype=torch.float16), torch.empty(0, dtype=torch.int64), torch.ones(1, 3))),
}  # fmt: skip


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict | BatchEncoding):
        assert list(found.keys()) == list(expected.keys())
        for key in expected.keys():
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    elif isinstance(expected, torch.Tensor | np.ndarray):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype) and (found == expected).all()
    else:
        assert found == expected


@pytest.mark.parametrize("example, collate, expected", EMPTY.values(), ids=EMPTY.keys())
def test_a_first_batch_that_is_empty_has_the_structure_of_a_full_one(example, collate, expected):
    loader = GhostDataLoader(Rows(example), sample_rate=1e-12, steps=2, collate_fn=collate)
    batches = list(loader)
    for batch in batches:
        assert_same(batch, expected)
    assert len(batches) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_empty_batches_come_between_full_ones(workers):
    examples = [{"x": X, "text": "a"} for _ in range(4)]
    loader = GhostDataLoader(examples, sample_rate=0.25, steps=60, generator=seeded(), num_workers=workers)
    batches = list(loader)
    sizes = {len(batch["text"]) for batch in batches}
    assert 0 in sizes and len(sizes) > 1 and len(batches) == 60
    for batch in batches:
        assert batch["x"].shape == (len(batch["text"]), 3) and batch["x"].dtype == torch.float16


def test_one_example_is_read_and_only_when_needed():
    class Counting(Rows):
        read = 0

        def __getitem__(self, index):
            self.read += 1
            return super().__getitem__(index)

    data = Counting(X)
    loader = GhostDataLoader(data, sample_rate=1e-12, steps=5)
    assert data.read == 0
    list(loader)
    assert data.read == 1


def test_a_batch_of_an_unknown_kind_is_refused():
    with pytest.raises(TypeError, match="object.*collate_fn"):
        list(GhostDataLoader(Rows(X), sample_rate=1e-12, steps=1, collate_fn=lambda rows: object()))
