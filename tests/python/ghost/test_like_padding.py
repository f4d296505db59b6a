"""What looks like padding and is none is taken; padding that does not look like it is refused."""

import copy

import pytest
import torch
from padded_texts import REFUSED, H, Model, V, Varied, classes, logits, mean_of_all, next_tokens, places, right, run_of, seen_where_masked, steps
from torch import nn
from torch.nn import functional as F


class Modes(nn.Module):
    """Gives something else while it trains."""

    def __init__(self, training, evaluating):
        super().__init__()
        self.embedding, self.head, self.of = nn.Embedding(V, H), nn.Linear(H, 3), (evaluating, training)

    def forward(self, x, mask):
        h = self.head(self.embedding(x))
        pooled = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"pooled": pooled, "places": h, "both": (pooled, h), "turned": (h, pooled), "losses": pooled.sum(1)}[self.of[self.training]]


def of_modes(module, criterion, batch):
    out = module(batch["x"], batch["mask"])
    out = out[0] if isinstance(out, tuple) else out
    return criterion(out if out.dim() > 1 else out[:, None].expand(-1, 3), batch["y"])


def forgotten_dropout(self, x, mask):
    return self.head(F.dropout((self.embedding(x) * mask[..., None]), 0.1).sum(1) / mask.sum(1, keepdim=True))


def noisy(self, x, mask):
    h = self.embedding(x) + 0.1 * torch.randn(len(x), x.shape[1], H)
    return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def masked_places(self, x, mask):
    return self.head(self.embedding(x)) * mask[..., None]


def nine(self, x, mask):
    return self.tokens((self.embedding(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))[:, :9]


def centred(module, criterion, batch):
    out = module(batch["x"], batch["mask"])
    return criterion(out - out.mean(-1, keepdim=True), batch["y"])


def summed(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]).sum(1) / batch["mask"].sum(1, keepdim=True), batch["y"])


class Rough(Model):
    """Attends in bfloat16."""

    def __init__(self):
        super().__init__(seen_where_masked)

    def forward(self, x, mask):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.embedding(x)
            for _ in range(2):
                h = h + self.attention(h, h, h, key_padding_mask=~mask)[0]
        return self.head(h[:, 0].float())


class RoundingBlownUp(Rough):
    """What sums over other extents round to becomes as large as anything."""

    def forward(self, x, mask):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.rows(self.embedding(x)) * mask[..., None]
        pooled = (h / x.shape[1]).sum(1) * x.shape[1] / mask.sum(1, keepdim=True)
        return self.head(torch.sin(1000 * pooled.float()))


class DropsTokens(nn.Module):
    def forward(self, out, y):
        return F.cross_entropy(out, y, ignore_index=0, reduction="none") * (torch.rand(y.shape) > 0.1)


APART = {
    "losses in training": (Modes("losses", "places"), of_modes, None), "pooled in training": (Modes("pooled", "places"), of_modes, None),
    "in another order": (Modes("both", "turned"), of_modes, None), "dropout that is always on": (forgotten_dropout, classes, None), "noise for each place": (noisy, classes, None),
    "masked by the model": (masked_places, summed, None), "in bfloat16": (Rough(), classes, None), "rounding is blown up": (RoundingBlownUp(), classes, None), "as many classes as places": (nine, centred, None),
    "tokens are dropped": (logits, next_tokens, DropsTokens(), {"loss_reduction": "sum"}),
}  # fmt: skip


@pytest.mark.parametrize("case", APART.values(), ids=APART)
def test_what_only_looks_like_padding_is_taken(case, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    forward, loss, criterion, *options = case
    for _ in range(2):
        model = forward if isinstance(forward, nn.Module) else Model(forward)
        steps(loss, run_of(copy.deepcopy(model), right, criterion, **(options[0] if options else {})), 5)


def strided(self, x, mask):
    return F.conv1d(self.embedding(x).transpose(1, 2), torch.eye(H)[..., None].expand(-1, -1, 3) / 3, stride=2, padding=1).transpose(1, 2)


def in_pairs_of_places(self, x, mask):
    h = self.embedding(F.pad(x, (0, x.shape[1] % 2)))
    return h.unflatten(1, (-1, 2)).flatten(2)[..., :H]


def with_prompts(self, x, mask):
    h = self.embedding(x)
    return self.rows(torch.cat([torch.ones(len(x), 4, H), h], 1))


def masked_and_flat(self, x, mask):
    return (self.rows(self.embedding(x)) * mask[..., None]).flatten(1)


def mean_in_bfloat16(self, x, mask):
    with torch.autocast("cpu", torch.bfloat16):
        return self.head(self.rows(self.embedding(x)).mean(1)).float()


def mean_beside_rounding(self, x, mask):
    """Rounding moves outputs beyond the tolerance, by a thousandth of what padding does."""
    h = self.rows(self.embedding(x))
    own = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return self.head(h.mean(1) + 0.1 * torch.sin(1e4 * own))


class Without(nn.Module):
    """Minus infinity where nothing is."""

    def forward(self, scores, mask):
        return scores.masked_fill(~mask, -torch.inf)


class Lengths(nn.Module):
    def forward(self, mask):
        return mask.sum(1).float()


class Scored(Model):
    """Weighs an example's own places, and adds the mean of all. Modules give infinities and whole numbers, which no rounding changes."""

    def __init__(self):
        super().__init__(places)
        self.score, self.without, self.lengths = nn.Linear(H, 1), Without(), Lengths()

    def forward(self, x, mask):
        h = self.embedding(x)
        weights = self.without(self.score(h)[..., 0], mask).softmax(1)
        last = h[torch.arange(len(x)), self.lengths(mask).long() - 1]
        return self.head((weights[..., None] * h).sum(1) + last + h.mean(1))


def encoded(self, x, mask):
    return self.encoder(self.embedding(x), src_key_padding_mask=~mask)


class Encoder(Model):
    def __init__(self):
        super().__init__(encoded)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(H, 2, 8, batch_first=True), 2)


class GraphMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(H, 3)

    def forward(self, x, mask):
        near = (x[:, :, None] + x[:, None]).float().clamp(max=1)  # [units, T, T]
        return self.layer((near @ F.one_hot(x, V).float()[..., :H]).mean(1))


def adjacent(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]), batch["y"])


def mean_over(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[..., :3].mean(1), batch["y"])


def last_of(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[:, -1, :3], batch["y"])


def sum_by_own(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[..., :3].sum(1) / batch["mask"].sum(1, keepdim=True), batch["y"])


def flat_mean(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]).mean(1, keepdim=True) * torch.ones(3), batch["y"])


def flat_series(module, criterion, batch):
    out = module(batch["x"], batch["mask"])
    return criterion(out, (batch["x"] * batch["mask"]).float()[..., None].expand(-1, -1, H).flatten(1))


def less_one(module, criterion, batch):
    out = module(batch["x"], batch["mask"])[..., :3] * batch["mask"][..., None]
    return criterion(out.sum(1) / (batch["x"].shape[1] - 1), batch["y"])


def average_pool(module, criterion, batch):
    out = (module(batch["x"], batch["mask"]) * batch["mask"][..., None]).transpose(1, 2)
    return criterion(F.adaptive_avg_pool1d(out, 1)[:, :3, 0], batch["y"])


MOVED = {
    "mean in bfloat16": (mean_in_bfloat16, classes, None), "mean beside rounding": (mean_beside_rounding, classes, None),
    "mean beside minus infinity": (Scored(), classes, None),
    "last of strided": (strided, last_of, None), "mean of strided": (strided, mean_over, None), "mean of pairs": (in_pairs_of_places, mean_over, None),
    "mean with prompts": (with_prompts, mean_over, None), "mean of flat ones": (masked_and_flat, flat_mean, None), "flat series": (masked_and_flat, flat_series, nn.MSELoss()),
    "by one place less": (places, less_one, None), "pooled on average": (places, average_pool, None), "sum of an encoder's": (Encoder(), sum_by_own, None),
    "nodes of a graph": (GraphMean(), adjacent, None),
}  # fmt: skip


@pytest.mark.parametrize("forward, loss, criterion", MOVED.values(), ids=MOVED)
def test_what_does_not_look_like_padding_is_refused(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    model = copy.deepcopy(forward) if isinstance(forward, nn.Module) else Model(forward)
    with pytest.raises((RuntimeError, ValueError), match=f"{REFUSED}|goes with how far the batch is padded"):
        steps(loss, run_of(model, right, criterion, data=Varied()), 24)


def test_the_row_of_padding_has_no_noise():
    """So that a sum over padded places stays each example's own, as without privacy."""

    class Padded(Model):
        def __init__(self, idx):
            super().__init__(lambda self, x, mask: self.head(self.embedding(x).sum(1) / mask.sum(1, keepdim=True)))
            self.embedding = nn.Embedding(V, H, padding_idx=idx)
            self.head.requires_grad_(True)

    model = Padded(0)
    before = model.embedding.weight.detach().clone()
    steps(classes, run_of(model, right), 8)
    assert not model.embedding.weight[0].any() and bool((model.embedding.weight[1:] != before[1:]).all())


def test_a_head_of_zeros_tells_nothing(monkeypatch):
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 10**9)  # not by lot

    class Zeros(Model):
        def __init__(self):
            super().__init__(mean_of_all)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    for _ in range(3):  # a first batch that shows nothing is followed by one whose head is not zero any more
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(classes, run_of(Zeros(), right), 8)


def test_criterions_and_generators_stay_what_they_were():
    class Counts(nn.Module):
        calls = 0

        def forward(self, out, y):
            self.calls += 1
            return F.cross_entropy(out, y, ignore_index=0, reduction="none").sum(1)

    module, _, criterion, loader = run_of(Model(logits), right, Counts(), loss_reduction="sum")
    loss = next_tokens(module, criterion, next(iter(loader)))
    before = torch.get_rng_state()
    loss.backward()
    assert criterion.criterion.calls == 1 and torch.equal(torch.get_rng_state(), before)
