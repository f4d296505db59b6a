"""How far a batch is padded follows from its longest example: a loop that counts places from its end is refused, one that shifts, crops or takes an example's own last place is not."""

import itertools

import pytest
import torch
from padded_texts import Model, Varied, left, right, run_of, steps

LATER = "counted places from the end of the padded batch"


def mean_of_places(self, x, mask):
    there = (x > 0).float()[..., None]
    return self.head((self.embedding(x) * there).sum(1) / there.sum(1).clamp(min=1))


def of(take):
    return lambda module, criterion, batch: criterion(module(take(batch)), batch["y"])


def own_last(batch):
    x, lengths = batch["x"], batch["mask"].sum(1)
    return x.gather(1, lengths[:, None] - 1)


def crops():
    """By coins, which stay for two batches, so that they go with no length by chance."""
    turn = itertools.count()

    def take(batch):
        start = 3 + next(turn) // 2 % 3
        return batch["x"][:, start : start + 4]

    return take


def read_alone(batch):
    assert bool((batch["mask"][:, -1].sum() > 0).item())
    return batch["x"]


FROM_THE_END = {
    "the last two": lambda b: b["x"][:, -2:], "the last": lambda b: b["x"][:, -1:], "select": lambda b: b["x"].select(1, -1)[:, None],
    "narrow": lambda b: b["x"].narrow(1, b["x"].shape[1] - 3, 3), "by index": lambda b: b["x"].index_select(1, torch.tensor([b["x"].shape[1] - 1])),
}  # fmt: skip
TAKEN = {
    "but the first": (lambda b: b["x"][:, 1:], right), "the first four": (lambda b: b["x"][:, :4], right),
    "from the fifth place on": (lambda b: b["x"][:, 4:], right), "own last place": (own_last, right), "crops": (crops(), right),
    "the last two, padded on the left": (lambda b: b["x"][:, -2:], left), "the last place is read": (read_alone, right),
    "each place in turn": (lambda b: torch.stack([b["x"][:, t] for t in range(b["x"].shape[1])], 1), right),
}  # fmt: skip


@pytest.mark.parametrize("take", FROM_THE_END.values(), ids=FROM_THE_END)
def test_places_that_are_counted_from_the_end_are_refused(take, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    with pytest.raises((RuntimeError, ValueError), match=LATER):
        steps(of(take), run_of(Model(mean_of_places), right, data=Varied()), 24)


@pytest.mark.parametrize("take, collate", TAKEN.values(), ids=TAKEN)
def test_other_places_are_taken(take, collate, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    steps(of(take), run_of(Model(mean_of_places), collate, data=Varied()), 24)
