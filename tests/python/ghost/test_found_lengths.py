"""Lengths that a model finds: its outputs are as long as the longest that it found, and a loop that counts places of others is refused."""

import pytest
import torch
from padded_texts import REFUSED, N, V, run_of, steps
from private_run import prescribe
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

REFUSED_HERE = f"{REFUSED}|goes with how far the batch is padded|went over padded places"


class Words:
    """From three to sixteen tokens, and zeros after them, and a class: every batch is as wide."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randint(1, V, (16,), generator=g)
        x[3 + i % 14 :] = 0
        return x, i % 3


def together(examples):
    return {"x": torch.stack([x for x, _ in examples]), "y": torch.tensor([y for _, y in examples])}


class Model(nn.Module):
    """Outputs [units, the longest, 3] and each example's own length. zero: beyond it they are."""

    def __init__(self, zero=False):
        super().__init__()
        self.embedding, self.rows, self.zero = nn.Embedding(V, 5), nn.Linear(5, 3), zero

    def forward(self, x):
        h, lengths = self.states(x)
        out = self.rows(h)
        there = torch.arange(h.shape[1]) < lengths[:, None]
        return torch.where(there[..., None], out, 0) if self.zero else out, lengths


class Speaker(Model):
    """Every token lasts from one place to three."""

    def states(self, x):
        h, lasts = self.embedding(x), torch.where(x > 0, 1 + x % 3, 0)
        return pad_sequence([each[[i for i, k in enumerate(n) for _ in range(k)]] for each, n in zip(h, lasts.tolist())], batch_first=True), lasts.sum(1)


class Trimmed(Model):
    """The batch is cut to its longest text."""

    def states(self, x):
        lengths = (x > 0).sum(1)
        return self.embedding(x[:, : int(lengths.max())]), lengths


class Recurrent(Model):
    def __init__(self, zero=False):
        super().__init__(zero)
        self.recurrent = nn.GRU(5, 5, batch_first=True)

    def states(self, x):
        lengths = (x > 0).sum(1)
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0], lengths


def there(out, lengths):
    return (torch.arange(out.shape[1]) < lengths[:, None])[..., None]


OF_ALL = {
    "mean": lambda out, lengths: out.mean(1), "last place": lambda out, lengths: out[:, -1], "maximum": lambda out, lengths: out.amax(1),
    "own places by the number of all": lambda out, lengths: torch.where(there(out, lengths), out, 0).sum(1) / out.shape[1],
    "attention": lambda out, lengths: (out.softmax(1) * out).sum(1), "another at every place": lambda out, lengths: (torch.arange(out.shape[1])[:, None] * (out + 1)).sum(1),
}  # fmt: skip
OF_OWN = {
    "mean": lambda out, lengths: torch.where(there(out, lengths), out, 0).sum(1) / lengths[:, None],
    "last place": lambda out, lengths: out[torch.arange(len(out)), lengths - 1],
    "maximum": lambda out, lengths: out.masked_fill(~there(out, lengths), -1e9).amax(1),
    "first places": lambda out, lengths: out[:, :3].mean(1),
}  # fmt: skip


def loss(pooled):
    return lambda module, criterion, batch: criterion(pooled(*module(batch["x"])), batch["y"])


@pytest.mark.parametrize("zero", [False, True], ids=["computed", "zero"])
@pytest.mark.parametrize("model", [Speaker, Trimmed, Recurrent], ids=lambda each: each.__name__)
@pytest.mark.parametrize("pooled", OF_ALL.values(), ids=OF_ALL)
def test_what_counts_places_of_others_is_refused(pooled, model, zero):
    if pooled is OF_ALL["maximum"] and not zero:
        pytest.skip("places beyond are seldom the largest")
    model = model(zero)
    if pooled is OF_ALL["maximum"]:
        model.rows.bias.data.fill_(-3.0)  # zeros are larger
    with pytest.raises((RuntimeError, ValueError), match=REFUSED_HERE):
        steps(loss(pooled), run_of(model, together, data=Words()), 60)


@pytest.mark.parametrize("zero", [False, True], ids=["computed", "zero"])
@pytest.mark.parametrize("model", [Speaker, Trimmed, Recurrent], ids=lambda each: each.__name__)
@pytest.mark.parametrize("pooled", OF_OWN.values(), ids=OF_OWN)
def test_own_places_are_taken(pooled, model, zero):
    steps(loss(pooled), run_of(model(zero), together, data=Words()), 5)


def test_a_sum_over_zeros_is_ones_own():
    steps(loss(lambda out, lengths: out.sum(1) / lengths[:, None]), run_of(Speaker(zero=True), together, data=Words()), 16)


def test_a_criterion_over_places():
    def of(weighted):
        class Targets(nn.Module):
            def forward(self, out, lengths, y):
                each = F.cross_entropy(out.transpose(1, 2), y[:, None].expand(out.shape[:2]), reduction="none")
                return each.mean(1) if not weighted else torch.where(there(out, lengths)[..., 0], each, 0).sum(1) / lengths

        return run_of(Speaker(), together, Targets(), data=Words())

    own = lambda module, criterion, batch: criterion(*module(batch["x"]), batch["y"])
    steps(own, of(True), 6)
    with pytest.raises((RuntimeError, ValueError), match=REFUSED_HERE):
        steps(own, of(False), 40)


class OneIsLonger(Words):
    """Of one length, but for the thirteenth."""

    def __getitem__(self, i):
        x = torch.randint(1, V, (16,), generator=torch.Generator().manual_seed(i))
        x[14 if i == 12 else 8 :] = 0
        return x, i % 3


def test_a_length_that_varies_later_is_seen():
    run = run_of(Trimmed(), together, data=OneIsLonger())
    prescribe(run[3], [12] * 3)
    steps(loss(OF_ALL["mean"]), run, 3)
    prescribe(run[3], [13] * 9)
    with pytest.raises((RuntimeError, ValueError), match=REFUSED_HERE):
        steps(loss(OF_ALL["mean"]), run, 9)
