"""How far a batch is padded follows from its longest example: loops and criterions that it moves are refused, those that mask are not."""

import pytest
import torch
from padded_texts import REFUSED, H, Model, Texts, V, Varied, logits, next_tokens, places, right, run_of, steps
from torch import nn
from torch.nn import functional as F


def pooled(module, criterion, batch):
    return criterion(module(batch["x"])[..., :3].mean(1), batch["y"])


def pooled_where_masked(module, criterion, batch):
    mask = batch["mask"][..., None]
    return criterion((module(batch["x"])[..., :3] * mask).sum(1) / mask.sum(1), batch["y"])


def of_the_last(module, criterion, batch):
    return criterion(module(batch["x"])[:, -1, :3], batch["y"])


def all_tokens(module, criterion, batch):
    out = module(batch["x"])
    return criterion(out.reshape(-1, V), batch["x"].reshape(-1), shape=out.shape)



def series(module, criterion, batch):
    return criterion(module(batch["x"]), batch["x"].float()[..., None].expand(-1, -1, H))


def masked_series(module, criterion, batch):
    return criterion(module(batch["x"]) * batch["mask"][..., None], (batch["x"] * batch["mask"]).float()[..., None].expand(-1, -1, H))


def masked_mean_over_all(module, criterion, batch):
    return criterion((module(batch["x"])[..., :3] * batch["mask"][..., None]).mean(1), batch["y"])


def middle_of_all(module, criterion, batch):
    return criterion((module(batch["x"])[..., :3] * batch["mask"][..., None]).quantile(0.8, dim=1), batch["y"])


class OverAllPlaces(nn.Module):
    def forward(self, out, y):
        return F.cross_entropy(out, y, ignore_index=0, reduction="none").sum(1) / y.shape[1]


REFUSED_LOOPS = {
    "mean in the loop": (places, pooled, None), "last place in the loop": (places, of_the_last, None),
    "padding is a target": (logits, all_tokens, None), "padding is the next token": (logits, next_tokens, None),
    "series": (places, series, nn.MSELoss()), "masked series over all places": (places, masked_series, nn.MSELoss()),
    "mean of what a mask made zeros": (places, masked_mean_over_all, None), "quantile of what a mask made zeros": (places, middle_of_all, None),
    "of its own, over all places": (logits, next_tokens, OverAllPlaces()),
}  # fmt: skip


@pytest.mark.parametrize("forward, loss, criterion", REFUSED_LOOPS.values(), ids=REFUSED_LOOPS)
def test_a_loop_that_padding_moves_is_refused(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    with pytest.raises((RuntimeError, ValueError), match=REFUSED):
        steps(loss, run_of(Model(forward), right, criterion, data=Varied()), 24)


TAKEN_LOOPS = {
    "masked mean in the loop": (places, pooled_where_masked, None),
    "padding is ignored": (logits, all_tokens, nn.CrossEntropyLoss(ignore_index=0)),
    "padding is ignored as a next token": (logits, next_tokens, nn.CrossEntropyLoss(ignore_index=0)),
    "sum of masked series": (places, masked_series, nn.MSELoss(reduction="sum")),
}


@pytest.mark.parametrize("forward, loss, criterion", TAKEN_LOOPS.values(), ids=TAKEN_LOOPS)
def test_a_loop_that_masks_is_taken(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    reduction = {"loss_reduction": "sum"} if getattr(criterion, "reduction", "") == "sum" else {}
    steps(loss, run_of(Model(forward), right, criterion, **reduction), 6)


def test_a_number_of_places_is_no_constant():
    """In the third batch at the latest, as one may go with it by chance."""

    def divided(module, criterion, batch):
        out = (module(batch["x"])[..., :3] * batch["mask"][..., None]).sum(1) / batch["x"].shape[1]
        return criterion(out, batch["y"])

    def by_a_tensor(module, criterion, batch):
        out = (module(batch["x"])[..., :3] * batch["mask"][..., None]).sum(1) / torch.tensor(batch["x"].shape[1])
        return criterion(out, batch["y"])

    def by_a_product(module, criterion, batch):
        out = (module(batch["x"])[..., :3] * batch["mask"][..., None]).transpose(1, 2)
        return criterion(out @ torch.full((batch["x"].shape[1],), 1 / batch["x"].shape[1]), batch["y"])

    def loss_divided(module, criterion, batch):
        return pooled_where_masked(module, criterion, batch) / batch["x"].shape[1]

    class Lengths(Texts):
        longest = 9

        def __getitem__(self, i):
            return torch.full((self.longest - i % 2,), 1 + i % 5), i % 3

    for loss in (divided, by_a_tensor, by_a_product, loss_divided):
        *run, loader = run_of(Model(places), right, data=(data := Lengths()))
        batches = iter(loader)
        with pytest.raises((RuntimeError, ValueError), match="goes with how far the batch is padded"):
            for data.longest in (9, 7, 5, 8, 6):
                steps(loss, (*run, [next(batches)]), 1)
        assert data.longest == 5


class Translation(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.o = nn.Embedding(V, H), nn.Linear(H, V)

    def forward(self, source, target):
        there = (source > 0).float()[..., None]
        return self.o(self.e(target) + ((self.e(source) * there).sum(1) / there.sum(1))[:, None])


def in_pairs(examples):
    """Sources and targets have lengths of their own."""
    targets = [x.flip(0).repeat(2)[: 2 + int(x.sum()) * 7 % 15] for x, _ in examples]
    return {"x": right(examples)["x"], "target": nn.utils.rnn.pad_sequence(targets, batch_first=True)}


def shifted_in_the_loop(module, criterion, batch):
    y = batch["target"]
    return criterion(module(batch["x"], y[:, :-1]).reshape(-1, V), y[:, 1:].reshape(-1))


def test_one_of_two_lengths_is_shifted_in_the_loop(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(shifted_in_the_loop, run_of(Translation(), in_pairs, data=Varied()), 24)
    steps(shifted_in_the_loop, run_of(Translation(), in_pairs, nn.CrossEntropyLoss(ignore_index=0), data=Varied()), 8)


def by_lengths(*, outputs=lambda out: out):
    """The criterion gets lengths, and makes the mask."""

    def loss(module, criterion, batch):
        return criterion(outputs(module(batch["x"])), batch["y"], batch["mask"].sum(1))

    return loss


def tokens_by_lengths(module, criterion, batch):
    return criterion(module(batch["x"]), batch["x"], batch["mask"].sum(1))


def there(lengths, extent):
    return (torch.arange(extent)[None] < lengths[:, None]).float()


def over_padded_tokens(out, y, lengths):
    return (F.cross_entropy(out.transpose(1, 2), y, reduction="none") * there(lengths, out.shape[1])).mean(1)


def over_own_tokens(out, y, lengths):
    return (F.cross_entropy(out.transpose(1, 2), y, reduction="none") * there(lengths, out.shape[1])).sum(1) / lengths


def over_padded_places(out, y, lengths):
    return F.cross_entropy((out[..., :3] * there(lengths, out.shape[1])[..., None]).mean(1), y, reduction="none")


def over_own_places(out, y, lengths):
    return F.cross_entropy((out[..., :3] * there(lengths, out.shape[1])[..., None]).sum(1) / lengths[:, None], y, reduction="none")


def class_at_each_place(out, y, lengths):
    each = F.cross_entropy(out.transpose(1, 2), y[:, None].expand(-1, out.shape[1]), reduction="none")
    return (each * there(lengths, out.shape[1])).mean(1)


def over_padded_numbers(out, y, lengths):
    return ((out - y[:, None]).square() * there(lengths, out.shape[1])).mean(1)


def over_own_numbers(out, y, lengths):
    return ((out - y[:, None]).square() * there(lengths, out.shape[1])).sum(1) / lengths


first = lambda out: out[..., 0]
turned = lambda out: out.transpose(1, 2)
BY_LENGTHS_REFUSED = {
    "tokens": (logits, tokens_by_lengths, over_padded_tokens), "a class": (places, by_lengths(), over_padded_places),
    "a class at each place": (places, by_lengths(), class_at_each_place), "one number at each place": (places, by_lengths(outputs=first), over_padded_numbers),
    "turned": (places, by_lengths(outputs=turned), lambda out, y, n: over_padded_places(turned(out), y, n)),
}  # fmt: skip
BY_LENGTHS_TAKEN = {
    "tokens": (logits, tokens_by_lengths, over_own_tokens), "a class": (places, by_lengths(), over_own_places),
    "one number at each place": (places, by_lengths(outputs=first), over_own_numbers),
    "pooled before": (places, lambda m, c, b: c(pooled_outputs(m, b), b["y"], b["mask"].sum(1)), lambda out, y, n: F.cross_entropy(out, y, reduction="none") / n),
}  # fmt: skip


def pooled_outputs(module, batch):
    mask = batch["mask"][..., None]
    return (module(batch["x"]) * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize("forward, loss, criterion", BY_LENGTHS_REFUSED.values(), ids=BY_LENGTHS_REFUSED)
def test_a_criterion_that_masks_by_lengths_and_averages_over_padding_is_refused(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(loss, run_of(Model(forward), right, criterion, data=Varied()), 24)


@pytest.mark.parametrize("forward, loss, criterion", BY_LENGTHS_TAKEN.values(), ids=BY_LENGTHS_TAKEN)
def test_a_criterion_that_averages_over_own_places_by_lengths_is_taken(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    steps(loss, run_of(Model(forward), right, criterion, data=Varied()), 16)
