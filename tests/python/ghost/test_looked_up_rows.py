"""Arguments that say whose rows of another argument an example sees, in a batch in which everybody sees its own: the check pairs arguments
anew, so that it does not depend on the batch that comes first."""

import pytest
import torch
from private_run import Run
from torch import nn

UNITS = 8
X, TABLE, NUMBERS = torch.randn(UNITS, 6), torch.randn(UNITS, 6), torch.arange(UNITS)
OWN_COLUMN = torch.cat([NUMBERS[:, None].float(), X[:, 1:]], 1)
# What a model makes of its arguments, and its first batch.
LOOK_UPS = {
    "table[numbers]": (lambda table, numbers: table[numbers], (TABLE, NUMBERS)),
    "beside the examples": (lambda x, table, numbers: x + table[numbers], (X, TABLE, NUMBERS)),
    "embedding": (lambda x, table, numbers: x + nn.functional.embedding(numbers, table), (X, TABLE, NUMBERS)),
    "numbers first": (lambda numbers, table: table[numbers.long()], (NUMBERS, TABLE)),
    "neighbours": (lambda x, numbers: x[numbers].mean(1), (X, NUMBERS[:, None].expand(UNITS, 2).contiguous())),
    "a matrix": (lambda x, weights: weights @ x, (X, torch.eye(UNITS))), "a mask": (lambda x, mask: mask.float() @ x, (X, torch.eye(UNITS).bool())),
    "a column of the examples": (lambda x, table: x[:, 1:2] + table[x[:, 0].long().clamp(0, UNITS - 1)], (OWN_COLUMN, TABLE)),
    "gathered": (lambda x, numbers: x.gather(0, numbers[:, None].expand(-1, 6)), (X, NUMBERS)),
    "added to": (lambda x, numbers: torch.zeros_like(x).index_add(0, numbers, x), (X, NUMBERS)),
}  # fmt: skip


class Takes(nn.Module):
    def __init__(self, rows):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.rows = nn.Linear(6, 3), rows

    def forward(self, *args, **kwargs):
        return self.layer(torch.tanh(self.rows(*args, **kwargs)))


def one_step(model, *args, **kwargs):
    run = Run(model=model, own_batches=True)
    run.criterion(run.module(*args, **kwargs), torch.zeros(UNITS, dtype=torch.long)).backward()
    run.optimizer.step()
    return run


@pytest.mark.parametrize("name", LOOK_UPS)
def test_rows_that_are_looked_up_are_refused_though_all_are_their_own(name):
    rows, args = LOOK_UPS[name]
    with pytest.raises(RuntimeError, match="outputs changed with the inputs of others"):
        one_step(Takes(rows), *args)


def padded(x, lengths):
    """As a recurrent layer takes them."""
    packed = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=6)[0].squeeze(2)


def picky(x, lengths):
    if int((x.isnan().sum(1) != 6 - lengths).sum()):
        raise ValueError("lengths and examples do not fit")
    return x.nan_to_num()


PADDED = X.clone()
PADDED[torch.arange(6)[None] >= NUMBERS[:, None] % 5 + 1] = float("nan")
# That keep their examples apart, whatever they are paired with.
APART = {
    "a second tensor": (lambda x, z: x * z, (X, TABLE)), "masks": (lambda x, mask: x * mask, (X, TABLE > 0)), "places": (lambda x, places: x * places[:6, None].T, (X, NUMBERS)),
    "places that all share": (lambda x, places: x + places.float().mean(), (X, NUMBERS)), "classes": (lambda x, numbers: x + nn.functional.one_hot(numbers, UNITS)[:, :6], (X, NUMBERS)),
    "lengths": (padded, (X, NUMBERS % 5 + 1)), "the same for all": (lambda x, ones: x * ones, (X, torch.ones(UNITS, 6))),
    "pairs of its own alone": (picky, (PADDED, NUMBERS % 5 + 1)), "own places": (lambda x, order: x.gather(1, order), (X, TABLE.argsort(1))),
    "a table of another extent": (lambda x, table, numbers: x + table[numbers], (X, torch.randn(UNITS + 3, 6), NUMBERS)),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_keeps_examples_apart_is_taken(name):
    rows, args = APART[name]
    run = one_step(Takes(rows), *args)
    assert run.charged == 1


def test_models_are_left_as_they_were():
    """By the forwards of batches that are paired anew, too."""

    class Counts(Takes):
        def forward(self, x, z):
            self.calls, self.seen = self.calls + 1, self.seen + [float(z[0, 0])]
            return super().forward(x, z)

    model = Counts(lambda x, z: x * z)
    model.calls, model.seen = 0, []
    one_step(model, X, TABLE)
    assert model.calls == 1 and model.seen == [float(TABLE[0, 0])]


def test_a_batch_without_other_arguments_costs_no_more_forwards(monkeypatch):
    counted = []

    class Counted(Takes):
        def forward(self, *args):
            counted.append(len(args))
            return super().forward(*args)

    one_step(Counted(lambda x: x), X)
    alone = len(counted)
    counted.clear()
    one_step(Counted(lambda x, z: x * z), X, TABLE)
    assert len(counted) == alone + 4
