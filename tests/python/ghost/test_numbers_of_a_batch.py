"""Whole numbers that a collate_fn counts over its examples may be shown, and be extents; they stand in no loss, model or criterion."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from short_loop import steps_of
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

N, V = 60, 30
READ = "met a number that was read from a private batch, or that collate_fn counted over it"


class Texts:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.randint(1, V, (2 + i * 7 % 11,), generator=torch.Generator().manual_seed(i))


def counted(examples):
    lengths = [len(each) for each in examples]
    return {
        "x": pad_sequence(examples, batch_first=True), "lengths": lengths, "tokens": sum(lengths) + 1000, "numpy": np.int64(sum(lengths) + 1000), "array": np.array(sum(lengths) + 1000),
        "longest": max(lengths), "examples": len(lengths), "names": [f"{each}" for each in lengths], "flag": True,
    }  # fmt: skip


@dataclass
class Batch:
    x: torch.Tensor
    tokens: int


class Model(nn.Module):
    def __init__(self, scale=lambda number: 1.0):
        super().__init__()
        self.e, self.o, self.scale = nn.Embedding(V, 8, padding_idx=0), nn.Linear(8, V), scale

    def forward(self, x, number=1):
        return self.o(self.e(x)) * self.scale(number)


def of_texts(outputs, x):
    return F.cross_entropy(outputs.transpose(1, 2), x, reduction="none", ignore_index=0).sum(1)


def steps(loss, model=None, criterion=of_texts, collate=counted, count=6):
    torch.manual_seed(0)
    return steps_of(loss, model or Model(), criterion, Texts(), collate, count)


REFUSED = {  # one draw in hundreds is empty, and its numbers are 0
    "divided": lambda m, c, b: c(m(b["x"]), b["x"]) / b["tokens"],
    "of_numpy": lambda m, c, b: c(m(b["x"]), b["x"]) * (1 / b["numpy"]),
    "of_an_array": lambda m, c, b: c(m(b["x"]), b["x"]) / b["array"],
    "summed": lambda m, c, b: c(m(b["x"]), b["x"]) / max(sum(b["lengths"]), 1),
    "mean": lambda m, c, b: c(m(b["x"]), b["x"]) / (max(sum(b["lengths"]), 1) / max(len(b["lengths"]), 1)),
    "one_of_them": lambda m, c, b: c(m(b["x"]), b["x"]) / (b["lengths"] or [1])[0],
    "in_the_model": lambda m, c, b: c(m(b["x"], b["tokens"]), b["x"]),
    "beside_the_input": lambda m, c, b: c(m(b["x"]) * (b["tokens"] / 1000), b["x"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_number_of_the_batch_in_a_loss_is_refused(case):
    # The longest one's is an extent, too, and has a sentence of its own.
    with pytest.raises(ValueError, match="met a number that goes with how far the batch is padded|" + READ):
        steps(REFUSED[case], Model(lambda number: 1 / max(number, 1)), count=12)


def test_one_that_the_criterion_takes_is_refused():
    with pytest.raises(ValueError, match=READ):
        steps(lambda m, c, b: c(m(b["x"]), (b["x"], b["tokens"])), criterion=lambda outputs, targets: of_texts(outputs, targets[0]) / targets[1])


def test_one_of_an_objects_attributes_is_refused():
    with pytest.raises(ValueError, match=READ):
        steps(lambda m, c, b: c(m(b.x), b.x) / b.tokens, collate=lambda examples: Batch(pad_sequence(examples, batch_first=True), sum(map(len, examples)) + 1000))


@pytest.mark.parametrize("where", ["model", "criterion"])
def test_a_list_of_numbers_that_is_summed_up_is_refused(where):
    total = lambda lengths: max(sum(lengths), 1)
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        if where == "model":
            steps(lambda m, c, b: c(m(b["x"], b["lengths"]), b["x"]), Model(lambda lengths: 10 / total(lengths)))
        else:
            steps(lambda m, c, b: c(m(b["x"]), (b["x"], b["lengths"])), criterion=lambda outputs, targets: of_texts(outputs, targets[0]) / total(targets[1]))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(V, 8, padding_idx=0), nn.GRU(8, 8, batch_first=True), nn.Linear(8, V)

    def forward(self, x, lengths, longest):
        packed = pack_padded_sequence(self.e(x), lengths, batch_first=True, enforce_sorted=False)
        return self.o(pad_packed_sequence(self.r(packed)[0], batch_first=True, total_length=longest)[0])


def each_by_its_own(module, criterion, batch):
    return criterion(module(batch["x"]), batch["x"]) / torch.tensor(batch["lengths"])


TAKEN = {
    "lengths_and_extents": (lambda m, c, b: c(m(b["x"], b["lengths"], b["longest"]), b["x"]), Packed),
    "each_by_its_own": (each_by_its_own, Model),
    "cut_to_an_extent": (lambda m, c, b: c(m(b["x"][:, : b["longest"]]), b["x"]), Model),
    "shown": (lambda m, c, b: (f"{b['tokens'] / max(b['examples'], 1):.2f} {b['names']} {b['flag']}", c(m(b["x"]), b["x"]))[1], Model),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
def test_what_stands_in_no_loss_is_taken(case):
    loss, model = TAKEN[case]
    assert steps(loss, model()) == 6


def test_they_stay_numbers():
    seen = []

    def loss(module, criterion, batch):
        seen.append(batch)
        return criterion(module(batch["x"]), batch["x"])

    steps(loss, count=1)
    (batch,) = seen
    assert isinstance(batch["tokens"], int) and isinstance(batch["numpy"], int) and isinstance(batch["array"], int) and batch["flag"] is True
    assert batch["tokens"] == sum(batch["lengths"]) + 1000 and [0] * batch["longest"] == [0] * batch["x"].shape[1]
