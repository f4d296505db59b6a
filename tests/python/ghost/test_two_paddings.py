"""Batches of two kinds of lengths (question and passage), lengths of something else than the model's first argument, and forwards of which one masks."""

import weakref

import pytest
import torch
from short_loop import steps_of
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

N, V = 60, 30
REFUSED = "how far a batch is padded follows from its longest example"


class Pairs:
    """Two texts of lengths that have nothing to do with each other, features and a class."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        texts = (torch.randint(1, V, (length,), generator=g) for length in (2 + i * 7 % 11, 3 + i * 5 % 13))
        return *texts, torch.randn(20, generator=g), i % 3


def padded(examples):
    q, p, f, y = zip(*examples)
    return {"q": pad_sequence(q, batch_first=True), "p": pad_sequence(p, batch_first=True), "f": torch.stack(f), "y": torch.tensor(y)}


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.g, self.o = nn.Embedding(V, 8, padding_idx=0), nn.Linear(20, 8), nn.Linear(8, 3)

    def text(self, x, masked=True):
        there = (x > 0).float()[..., None] if masked else torch.ones(*x.shape, 1)
        return (self.e(x) * there).sum(1) / there.sum(1).clamp(min=1)


class Both(Texts):
    def __init__(self, q, p):
        super().__init__()
        self.q, self.p = q, p
        self.g.requires_grad_(False)

    def forward(self, q, p):
        return self.o(self.text(q, self.q) + self.text(p, self.p))


class AfterFeatures(Texts):
    def __init__(self, masked):
        super().__init__()
        self.masked = masked

    def forward(self, f, text):
        return self.o(self.g(f) + self.text(text, self.masked))


class Tower(Texts):
    def __init__(self):
        super().__init__()
        self.g.requires_grad_(False)

    def forward(self, x, masked=True):
        return self.o(self.text(x, masked))


def distance(outputs, _):
    return (outputs[0] - outputs[1]).square().sum(1)


def both(module, criterion, batch):
    return criterion(module(batch["q"], batch["p"]), batch["y"])


def by_name(module, criterion, batch):
    return criterion(module(p=batch["p"], q=batch["q"]), batch["y"])


def after_features(module, criterion, batch):
    return criterion(module(batch["f"], batch["p"]), batch["y"])


def towers(*, q, p):
    def loss(module, criterion, batch):
        return criterion((module(batch["q"], q), module(batch["p"], p)), batch["y"])

    return loss


def steps(model, loss, criterion=None, collate=padded, data=None, count=10):
    return steps_of(loss, model, criterion or nn.CrossEntropyLoss(), data or Pairs(), collate, count)


UNMASKED = {
    "question": (lambda: Both(False, True), both, None), "passage": (lambda: Both(True, False), both, None),
    "both": (lambda: Both(False, False), both, None), "by_name": (lambda: Both(True, False), by_name, None),
    "after_features": (lambda: AfterFeatures(False), after_features, None),
    "first_tower": (Tower, towers(q=False, p=True), distance), "second_tower": (Tower, towers(q=True, p=False), distance),
}  # fmt: skip
MASKED = {
    "both": (lambda: Both(True, True), both, None), "by_name": (lambda: Both(True, True), by_name, None),
    "after_features": (lambda: AfterFeatures(True), after_features, None), "towers": (Tower, towers(q=True, p=True), distance),
}  # fmt: skip


@pytest.mark.parametrize("case", UNMASKED)
def test_whichever_is_averaged_over_is_refused(case):
    model, loss, criterion = UNMASKED[case]
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(model(), loss, criterion)


@pytest.mark.parametrize("case", MASKED)
def test_masks_are_taken(case, monkeypatch):
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    model, loss, criterion = MASKED[case]
    for seed in range(2):
        torch.manual_seed(seed)
        assert steps(model(), loss, criterion) == 10


class Mixing(Tower):
    """A statistic without a gradient, if it is asked for."""

    def forward(self, x, mixes=False):
        found = super().forward(x)
        return found - found.detach().mean(0) * mixes


def test_each_forward_under_a_loss_is_looked_at():
    for order in ((True, False), (False, True)):
        with pytest.raises(RuntimeError, match="must not depend on other examples"):
            steps(Mixing(), lambda module, criterion, b, order=order: criterion((module(b["q"], order[0]), module(b["q"], order[1])), b["y"]), distance)


def test_many_forwards_under_a_loss_are_taken():
    def loss(module, criterion, batch):
        return criterion((sum(module(batch["q"]) for _ in range(70)), module(batch["p"])), batch["y"])

    assert steps(Tower(), loss, distance, count=3) == 3


class Boxes:
    """[3,8,8], and 1 to 9 boxes: 7 and 9 are beside the picture's extents."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 8, 8, generator=g), torch.rand(1 + i % 9, 4, generator=g)


def pictures(examples):
    most = max(len(boxes) for _, boxes in examples)
    pad = lambda value: F.pad(value, (0, 0) * (value.dim() - 1) + (0, most - len(value)))
    return (
        torch.stack([x for x, _ in examples]), torch.stack([pad(boxes) for _, boxes in examples]), torch.stack([pad(torch.ones(len(b))) for _, b in examples])
    )  # fmt: skip


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.f = nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x):
        return self.f(self.c(x).mean((2, 3)))


def to_masked_boxes(outputs, targets):
    boxes, mask = targets
    return ((outputs[:, None] - boxes).abs().sum(2) * mask).sum(1) / mask.sum(1).clamp(min=1)


def test_a_picture_beside_padded_boxes_is_not_cropped(monkeypatch):
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    for seed in range(6):
        torch.manual_seed(seed)
        assert steps(Detector(), lambda module, criterion, b: criterion(module(b[0]), b[1:]), to_masked_boxes, pictures, Boxes()) == 10


def to_all_boxes(outputs, targets):
    return (outputs[:, None] - targets[0]).abs().sum(2).mean(1)


def test_a_criterion_that_averages_over_padded_targets_is_refused():
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(Detector(), lambda module, criterion, b: criterion(module(b[0]), b[1:]), to_all_boxes, pictures, Boxes())


# Squares, captions, and targets of outputs that have their own places -----------------------------------------------------


class Squares:
    """[3,s,s], s from 5 to 9; [s,s]; a text of s tokens."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        s = 5 + i % 5
        return torch.randn(3, s, s, generator=g), torch.rand(s, s, generator=g) > 0.5, torch.randint(1, V, (s,), generator=g), i % 3


def squared(examples):
    most = max(len(text) for _, _, text, _ in examples)
    fill = lambda value, dims: F.pad(value, (0, most - value.shape[-1]) * dims)
    x, pairs, texts, y = zip(*examples)
    return {
        "pairs": torch.stack([fill(each, 2) for each in pairs]), "x": torch.stack([fill(each, 2) for each in x]),
        "text": torch.stack([fill(each, 1) for each in texts]), "y": torch.tensor(y),
    }  # fmt: skip


class OfSquares(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.o = nn.Conv2d(3, 4, 1), nn.Linear(4, 3)

    def forward(self, x, mask=None):
        found = self.c(x)
        return self.o(found.mean((2, 3)) if mask is None else (found * mask).sum((2, 3)) / mask.sum((2, 3)))


def test_both_extents_of_a_square_are_one_kind_of_length(monkeypatch):
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(OfSquares(), lambda m, c, b: c(m(b["x"]), b["y"]), collate=squared, data=Squares())
    masked = lambda m, c, b: c(m(b["x"], (b["x"].abs().sum(1, keepdim=True) > 0).float()), b["y"])
    assert steps(OfSquares(), masked, collate=squared, data=Squares()) == 10


def test_a_square_that_comes_first_hides_no_texts_padding():
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(Tower(), lambda m, c, b: c(m(b["text"], False), b["y"]), collate=squared, data=Squares())


class Captions:
    """1 to 4 texts of one length, from 3 to 10 tokens."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.randint(1, V, (1 + i % 4, 3 + i * 7 % 8), generator=torch.Generator().manual_seed(i))


def captioned(examples):
    most = [max(each.shape[d] for each in examples) for d in (0, 1)]
    return torch.stack([F.pad(each, (0, most[1] - each.shape[1], 0, most[0] - each.shape[0])) for each in examples])


def each_caption(outputs, x):
    there = (x[..., 0] > 0).float()
    return (outputs.square().sum(2) * there).sum(1) / there.sum(1)


def test_two_axes_that_are_cut_by_as_much_are_told_apart(monkeypatch):
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)

    class Pooled(Texts):
        def forward(self, x):
            there = (x > 0).float()[..., None]
            return self.o((self.e(x) * there).sum(2) / there.sum(2).clamp(min=1))

    for seed in range(3):
        torch.manual_seed(seed)
        model = Pooled()
        model.g.requires_grad_(False)
        assert steps(model, lambda m, c, b: c(m(b), b), each_caption, captioned, Captions()) == 10


class Series:
    """A number for each of up to 9 places, and a text of 20."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(1, V, (20,), generator=g), torch.randint(1, 5, (3 + i % 7,), generator=g)


def of_series(examples):
    return torch.stack([x for x, _ in examples]), pad_sequence([y for _, y in examples], batch_first=True)


class OfPlaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.o = nn.Embedding(V, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.o(self.e(x))


@pytest.mark.parametrize("ignored", [0, -100])
def test_targets_that_are_padded_beside_outputs_that_the_loop_cuts(ignored):
    criterion = nn.CrossEntropyLoss(ignore_index=ignored)
    loss = lambda m, c, b: c(m(b[0])[:, : b[1].shape[1]].transpose(1, 2), b[1])
    if ignored == 0:
        assert steps(OfPlaces(), loss, criterion, of_series, Series()) == 10
    else:
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(OfPlaces(), loss, criterion, of_series, Series())


class ManyPairs(Pairs):
    def __len__(self):
        return 5 * N


def test_an_axis_that_varies_later_is_looked_at_then(monkeypatch):
    """In the first batches all passages are as long. Of the later ones every second is looked at, or so: the extents of the others are too much alike."""
    monkeypatch.setattr("ghostshard.loaders.collate_check._BATCHES", 40)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 10**9)  # not by lot
    seen = 0

    def collate(examples):
        batch = padded(examples)
        return batch if seen > 2 else batch | {"p": F.pad(batch["p"], (0, 20 - batch["p"].shape[1]))}

    def loss(module, criterion, batch):
        nonlocal seen
        seen += 1
        return both(module, criterion, batch)

    for _ in range(3):
        seen = 0
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(Both(True, False), loss, collate=collate, data=ManyPairs(), count=40)
        assert seen > 2


def test_a_forward_that_no_loss_is_over_keeps_nothing_alive():
    """An evaluation that forgot torch.no_grad(), between the steps."""
    model = nn.Linear(8, 3)
    data = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=16), noise_multiplier=1.0,
        max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    for x, y in loader:
        alive = []
        for _ in range(20):
            public = torch.randn(16, 8)
            module(public).argmax(1)
            alive.append(weakref.ref(public))
        del public
        assert sum(each() is not None for each in alive) <= 1, "the last forward's"
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
