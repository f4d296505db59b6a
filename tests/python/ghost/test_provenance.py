"""Whose rows a tensor has, function by function; loops that rest on it are in test_drawn_batches.py."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ghostshard.ghost.provenance import Drawn, plain
from ghostshard.ghost.provenance.drawn import drawn, of_rows

N = 5
PERM = torch.tensor([3, 1, 4, 0, 2])
WEIGHT, KERNEL = torch.randn(4, 6), torch.randn(2, 3, 3, 3)

@torch.library.custom_op("ghostshard_tests::normalize", mutates_args=())
def normalize_the_batch(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) / x.std(0)


# Whose rows has the result of a function? The slow twin changes one row of the input and looks. ---------------------


def rows(*shape):
    """A tensor of N rows as the loader hands it out, and as it is."""
    return torch.rand(N, *shape) + 0.5


KEPT = {
    # name: (function of the drawn x, x)
    "double": (lambda x: x.double(), rows(6)),
    "minus mean of the data": (lambda x: (x - torch.rand(3, 1, 1)) / torch.rand(3, 1, 1), rows(3, 8, 8)),
    "noise like it": (lambda x: x + 0 * torch.randn_like(x), rows(6)),
    "flip of pictures": (lambda x: x.flip(-1), rows(3, 8, 8)),
    "crop": (lambda x: x[..., 2:7, 1:6], rows(3, 8, 8)),
    "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), rows(3, 8, 8)),
    "resize": (lambda x: F.interpolate(x, size=4), rows(3, 8, 8)),
    "patches": (lambda x: x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3), rows(3, 8, 8)),
    "per picture": (lambda x: (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True), rows(3, 8, 8)),
    "time first": (lambda x: x.transpose(0, 1), rows(7, 6)),
    "permuted batch": (lambda x: x[PERM], rows(6)),
    "a slice of the batch": (lambda x: x[1:4], rows(6)),
    "shifted": (lambda x: torch.cat([torch.zeros(N, 1), x[:, :-1]], 1), rows(6)),
    "rolled in time": (lambda x: x.roll(1, 1), rows(7)),
    "repeated": (lambda x: x.repeat(2, 1), rows(6)),
    "rows apart": (lambda x: x.repeat_interleave(2, 0), rows(6)),
    "stacked views": (lambda x: torch.stack([x, x.flip(1)], 1), rows(6)),
    "two views as one": (lambda x: torch.cat([x, -x]), rows(6)),
    "flattened": (lambda x: x.view(-1, 6), rows(4, 6)),
    "unbound and joined": (lambda x: torch.stack(list(x)), rows(6)),
    "softmax": (lambda x: x.softmax(1), rows(6)),
    "sorted": (lambda x: x.sort(1).values, rows(6)),
    "norm": (lambda x: F.normalize(x), rows(6)),
    "masked": (lambda x: x.masked_fill(x > 1, 0.0), rows(6)),
    "where": (lambda x: torch.where(x > 1, x, -x), rows(6)),
    "linear": (lambda x: F.linear(x, WEIGHT), rows(6)),
    "matmul": (lambda x: x @ WEIGHT.T, rows(6)),
    "similarities in it": (lambda x: x @ x.mT, rows(4, 6)),
    "conv": (lambda x: F.conv2d(x, KERNEL), rows(3, 8, 8)),
    "gather": (lambda x: x.gather(1, x.argsort(1)), rows(6)),
    "last place": (lambda x: x[torch.arange(N), x.sum(-1).argmax(1)], rows(7, 6)),
    "table": (lambda x: torch.arange(100.0)[(10 * x).long()], rows(6)),
    "similar to a constant": (lambda x: F.cosine_similarity(x, WEIGHT[:1]), rows(6)),
    "similar to itself": (lambda x: F.pairwise_distance(x, x.flip(1)), rows(6)),
    "batch norm of constants": (lambda x: F.batch_norm(x, torch.zeros(6), torch.ones(6)), rows(6)),
    "addmm": (lambda x: torch.addmm(torch.ones(4), x, WEIGHT.T), rows(6)),
    "einsum in it": (lambda x: torch.einsum("bij,kj->bki", x, WEIGHT), rows(4, 6)),
    "einsum with itself": (lambda x: torch.einsum("bi,bj->ijb", x, x), rows(6)),
    "errors": (lambda x: F.mse_loss(x, x.flip(1), reduction="none"), rows(6)),
    "losses of classes": (lambda x: F.cross_entropy(x, x.argmin(1), reduction="none"), rows(6)),
    "one of several": (lambda x: torch.zeros(N, 6).scatter_(1, x.argmax(1, keepdim=True), 1.0), rows(6)),
    "scattered": (lambda x: x.scatter(1, x.argmin(1, keepdim=True), 0.0), rows(6)),
    "more rows of each": (lambda x: x.reshape(3 * N, 2), rows(6)),
    "one row of each": (lambda x: x.reshape(1, N, 24), rows(4, 6)),
    "in place": (lambda x: x.clone().mul_(2).clamp_(0, 1), rows(6)),
    "set": (lambda x: _set(x), rows(6)),
    "set to constants": (lambda x: _set_to(x, (slice(None), slice(2, 4)), torch.tensor([3.0, 4.0])), rows(6)),
    "set to its own": (lambda x: _set_to(x, (slice(None), 2), x[:, 1] * 2), rows(6)),
    "set at its masks": (lambda x: _set_to(x, x[:, 0] > 1, 0.0), rows(6)),
    "set at places": (lambda x: _set_to(x, (slice(None), torch.tensor([1, 3])), 0.0), rows(6)),
    "broadcast": (lambda x: torch.broadcast_tensors(x, torch.ones(6))[0], rows(6)),
    "broadcast to columns": (lambda x: torch.broadcast_tensors(x, torch.ones(N, N))[0], rows()),
    "a likelihood": (lambda x: torch.distributions.Normal(x, x + 1).log_prob(2 * x).sum(1), rows(6)),
    "a likelihood of classes": (lambda x: torch.distributions.Categorical(logits=x).log_prob(x.argmin(1)), rows(6)),
    "a divergence": (lambda x: torch.distributions.kl_divergence(torch.distributions.Gamma(x, x), torch.distributions.Gamma(1.0, 1.0)), rows(6)),
    "quantile": (lambda x: x.quantile(0.5, dim=1), rows(6)),
    "quantile kept": (lambda x: x - x.quantile(0.5, 1, keepdim=True), rows(6, 4)),
    "products": (lambda x: torch.linalg.vecdot(x, x.flip(1)), rows(6)),
    "entropies": (lambda x: torch.special.entr(x), rows(6)),
    "gumbel": (lambda x: F.gumbel_softmax(x), rows(6)),
    "gumbel along": (lambda x: F.gumbel_softmax(x, dim=1, hard=True), rows(4, 6)),
    "classes by coins": (lambda x: torch.multinomial(x, 1), rows(6)),
    "upper half": (lambda x: x.triu(), rows(6, 6)),
    "spectrogram": (lambda x: torch.stft(x, 4, 2, 4, torch.ones(4), return_complex=True).abs(), rows(16)),
    "distances to constants": (lambda x: torch.cdist(x, WEIGHT), rows(6)),
    "distances in it": (lambda x: torch.cdist(x, x), rows(4, 6)),
    "inverse": (lambda x: torch.linalg.inv(x + 9 * torch.eye(6)), rows(6, 6)),
    "determinant": (lambda x: torch.linalg.slogdet(x + 9 * torch.eye(6))[1], rows(6, 6)),
}


def _set_to(x, index, value):
    x = x.clone()
    x[index] = value
    return x


def _set(x):
    x = x.clone()
    x[:, 2] = 0.0
    x[x > 1.2] = 1.0
    return x


LOST = {
    "mean of the batch": (lambda x: x - x.mean(0), rows(6)),
    "largest of all": (lambda x: x / x.max(), rows(6)),
    "softmax over the batch": (lambda x: x.softmax(0), rows(6)),
    "implicit softmax of three": (lambda x: F.softmax(x, dim=0), rows(4, 6)),
    "sorted batch": (lambda x: x.sort(0).values, rows(6)),
    "mixup": (lambda x: 0.5 * x + 0.5 * x[PERM], rows(6)),
    "cutmix": (lambda x: torch.cat([x[:, :3], x.flip(0)[:, 3:]], 1), rows(6)),
    "similarities": (lambda x: x @ x.T, rows(6)),
    "one for all": (lambda x: x - x[:1], rows(6)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), rows(6)),
    "conv without a batch": (lambda x: F.conv2d(x, torch.randn(2, N, 3, 3)), rows(8, 8)),
    "cumulated": (lambda x: x.cumsum(0), rows(6)),
    "reshaped": (lambda x: x.reshape(6, N), rows(6)),
    "transposed in memory": (lambda x: x.t().reshape(N, 6), rows(6)),
    "sum of neighbours": (lambda x: x[1:] + x[:-1], rows(6)),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), rows(6)),
    "a table that is looked up": (lambda x: F.embedding(PERM, x), rows(6)),
    "a table of its own": (lambda x: F.embedding((10 * x[:, 0]).long() % N, x), rows(6)),
    "weights": (lambda x: F.linear(torch.ones(N, 6), x), rows(6)),
    "kernels": (lambda x: F.conv2d(torch.ones(N, 3, 8, 8), x), rows(3, 3, 3)),
    "a new tensor of a mean": (lambda x: x - x.new_tensor(x.mean(0)), rows(6)),
    "a new tensor full of a mean": (lambda x: x - x.new_full((6,), x.mean()), rows(6)),
    "norm over rows and all": (lambda x: F.rms_norm(x, x.shape), rows(6)),
    "rows of others in front": (lambda x: torch.diff(x, dim=1, prepend=torch.arange(1.0 * N).view(N, 1)), rows(6)),
    "an operator of the same name": (lambda x: torch.ops.ghostshard_tests.normalize(x), rows(6)),
    "scales of a norm": (lambda x: F.layer_norm(torch.arange(5.0 * N).view(N, 5), (5,), x), rows()),
    "beside rows of nobody's": (lambda x: torch.bmm(torch.arange(36.0 * N).view(N, 6, 6), x), rows(6, 4)),
    "places": (lambda x: torch.where(x > 1)[0], rows(6)),
    "reshaped across rows": (lambda x: x.reshape(2, N, 3), rows(6)),
    "reshaped to parts of rows": (lambda x: x.reshape(6, N), rows(2, 3)),
    "similar to others": (lambda x: F.cosine_similarity(x, x[PERM]), rows(6)),
    "similar along the batch": (lambda x: F.cosine_similarity(x, x.flip(1), dim=0), rows(6)),
    "batch norm in training": (lambda x: F.batch_norm(x, torch.zeros(6), torch.ones(6), None, None, True), rows(6)),
    "addmm of weights": (lambda x: torch.addmm(torch.ones(6), WEIGHT[:, :N], x), rows(6)),
    "addmm to strangers": (lambda x: torch.addmm(torch.arange(4.0 * N).view(N, 4), x, WEIGHT.T), rows(6)),
    "addmm of a row to columns": (lambda x: torch.addmm(x, torch.ones(N, 6), torch.ones(6, N)), rows()),
    "einsum over the batch": (lambda x: torch.einsum("bi,bj->ij", x, x), rows(6)),
    "einsum with strangers": (lambda x: torch.einsum("bi,bi->b", x, torch.arange(6.0 * N).view(N, 6)), rows(6)),
    "einsum of a diagonal": (lambda x: torch.einsum("bb->b", x), rows(N)),
    "mean error": (lambda x: F.mse_loss(x, x.flip(1)), rows(6)),
    "errors to others": (lambda x: F.mse_loss(x, x.flip(0), reduction="none"), rows(6)),
    "losses of classes of others": (lambda x: F.cross_entropy(x, x.argmin(1)[PERM], reduction="none"), rows(6)),
    "losses of classes of strangers": (lambda x: F.cross_entropy(x, PERM, reduction="none"), rows(6)),
    "losses weighted by the batch": (lambda x: F.cross_entropy(torch.ones(N, N), torch.zeros(N).long(), weight=x, reduction="none"), rows()),
    "scattered along the batch": (lambda x: x.scatter(0, x.argmin(1, keepdim=True) % N, 0.0), rows(6)),
    "scattered to strangers": (lambda x: torch.arange(6.0 * N).view(N, 6).scatter(1, x.argmin(1, keepdim=True), 0.0), rows(6)),
    "set to a column of strangers": (lambda x: _set_to(x, (slice(None), 0), torch.arange(1.0 * N)), rows(6)),
    "set to columns of others": (lambda x: _set_to(x, (slice(None), slice(0, 2)), x.flip(0)[:, :2]), rows(6)),
    "set at a mask of strangers": (lambda x: _set_to(x, torch.arange(N) > 2, 0.0), rows(6)),
    "set at rows of strangers": (lambda x: _set_to(x, torch.tensor([1, 3]), 0.0), rows(6)),
    "a row set to strangers": (lambda x: _set_to(x, 2, torch.arange(6.0)), rows(6)),
    "a row set to another": (lambda x: _set_to(x, 2, x[1]), rows(6)),
    "written over": (lambda x: _written_over(x), rows(6)),
    "quantile of the batch": (lambda x: x - x.quantile(0.5, dim=0), rows(6)),
    "quantile of all": (lambda x: x / x.quantile(0.5), rows(6)),
    "several quantiles": (lambda x: x.quantile(torch.linspace(0, 1, N), dim=0), rows(6)),
    "products along the batch": (lambda x: torch.linalg.vecdot(x, x, dim=0), rows(6)),
    "broadcast with others": (lambda x: torch.broadcast_tensors(x, x.flip(0))[0] + 0 * torch.broadcast_tensors(x, x.flip(0))[1], rows(6)),
    "gumbel over the batch": (lambda x: F.gumbel_softmax(x, dim=0), rows(6)),
    "places by coins": (lambda x: torch.multinomial(x, N, True), rows()),
    "classes by coins of the batch": (lambda x: torch.multinomial(x.mean(0), N, True), rows(6)),
    "a half of the batch": (lambda x: x.triu(), rows(6)),
    "distances": (lambda x: torch.cdist(x, x), rows(6)),
    "distances to itself": (lambda x: torch.cdist(x, x.clone()), rows(6)),
    "distances to the batch": (lambda x: torch.cdist(torch.ones(N, 6), x), rows(6)),
    "distances to strangers": (lambda x: torch.cdist(x, torch.arange(24.0 * N).view(N, 4, 6)), rows(4, 6)),
    "bags": (lambda x: F.embedding_bag((2 * x).long(), WEIGHT), rows(6)),  # a mean over padded places, too
    "bags that are offset": (lambda x: F.embedding_bag((2 * x).long(), WEIGHT, torch.arange(N)), rows()),
    "a table of bags": (lambda x: F.embedding_bag(torch.arange(N)[:, None], x), rows(6)),
    "inverse of the batch": (lambda x: torch.linalg.pinv(x).T, rows(6)),
    "a spectrogram of the batch": (lambda x: torch.stft(x, 4, 2, 4, x[:4], return_complex=True).abs(), rows()),
}


def _written_over(x):
    x = x.clone()
    view = x[:, :3]
    view.copy_(x.flip(0)[:, :3])
    return x


def followed(function, x):
    torch.manual_seed(1)
    return function(drawn(x.clone(), of_rows("piece", len(x))))


BY_COINS = {  # how many they toss follows from the values, so the twin has others
    "Poisson": torch.poisson, "binomial": lambda x: torch.binomial(torch.full_like(x, 4), x / 2), "gamma": lambda x: torch.distributions.Gamma(x, x).rsample(),
    "Dirichlet": lambda x: torch.distributions.Dirichlet(x).sample(), "several classes": lambda x: torch.multinomial(x, 3, True), "actions": lambda x: torch.distributions.Categorical(logits=x).sample(),
    "Cauchy": lambda x: x + torch.empty_like(x).cauchy_(), "log-normal": lambda x: x * torch.empty_like(x).log_normal_(),
}  # fmt: skip


@pytest.mark.parametrize("function", BY_COINS.values(), ids=BY_COINS)
def test_coins_of_each_row(function):
    found = followed(function, rows(6))
    assert not found.origin.memory.lost and found.origin.dim == 0 and found.origin.ids is None


@pytest.mark.parametrize("function, x", [*KEPT.values(), *LOST.values()], ids=[*KEPT, *LOST])
def test_a_row_says_whose_it_is(function, x):
    """If the input's row v changes, so may elements of rows of v alone."""
    found = followed(function, x)
    assert isinstance(found, Drawn)
    if found.origin.memory.lost:
        return
    ids = found.origin.numbers()
    for v in range(len(x)):
        other = x.clone()
        other[v] = torch.rand_like(other[v]) + 0.5
        changed = (plain(followed(function, other)) != plain(found)).movedim(found.origin.dim, 0).reshape(len(ids), -1).any(1)
        assert not bool((changed & (ids != v)).any()), v


@pytest.mark.parametrize("function, x", KEPT.values(), ids=KEPT)
def test_rows_that_stay_apart_are_known(function, x):
    found = followed(function, x)
    assert not found.origin.memory.lost
    assert len(found.origin.numbers()) == found.shape[found.origin.dim]


@pytest.mark.parametrize("function, x", LOST.values(), ids=LOST)
def test_rows_that_meet_are_lost(function, x):
    assert followed(function, x).origin.memory.lost


def test_views_of_large_tensors_cost_no_memory():
    x = drawn(torch.zeros(()).expand(64, 2**14, 2**14), of_rows("piece", 64))
    found = x[:, 1:].flatten(0, 1)
    assert not found.origin.memory.lost and found.origin.dim == 0
    assert torch.equal(found.origin.numbers(), torch.arange(64).repeat_interleave(2**14 - 1))
    assert not x.transpose(0, 2)[3, :, 5:].origin.memory.lost


def test_what_is_written_to_a_view_is_written_to_all():
    x = drawn(rows(6), of_rows("piece", N))
    view = x.view(N, 2, 3)[:, 0]
    view.copy_(torch.rand(N, 3))
    assert "did not hand out" in x.origin.memory.lost and not drawn(rows(6), of_rows("piece", N)).origin.memory.lost


UNSEEN = {
    "an alias": lambda x: x.as_subclass(torch.Tensor).copy_(torch.rand(N, 6)),
    "an alias that is Drawn": lambda x: plain(x).mul_(torch.rand(N, 1)),
    "another storage": lambda x: x.set_(torch.rand(N, 6)),
    "bytes": lambda x: x.untyped_storage().copy_(torch.rand(N, 6).untyped_storage()),
    "DLPack": lambda x: torch.from_dlpack(x).copy_(torch.rand(N, 6)),
    "NumPy": lambda x: np.copyto(x.numpy(), np.zeros((N, 6), np.float32)),
    "NumPy, of a part": lambda x: np.copyto(np.asarray(x[0].detach()), x[1].numpy()),
    "a list": lambda x: torch._foreach_mul_([x], [torch.rand(N, 6)]),
    "functions that are not followed": lambda x: _not_followed(x),
    "data": lambda x: setattr(x, "data", torch.rand(N, 6)),
    "what data gave": lambda x: x.data.copy_(torch.rand(N, 6)),
}


def _not_followed(x):
    with torch._C.DisableTorchFunctionSubclass():
        x.copy_(x.flip(0).clone())


@pytest.mark.parametrize("write", UNSEEN.values(), ids=UNSEEN)
def test_no_write_is_unseen(write):
    x = drawn(rows(6), of_rows("piece", N))
    write(x)
    assert x.origin.memory.lost
    assert (2 * x).origin.memory.lost and x[:, :2].origin.memory.lost


SEEN = {
    "in place": lambda x: x.mul_(2),
    "through data": lambda x: x.data.clamp_(0, 1),
    "in place without an underscore": lambda x: F.relu(x, inplace=True),
    "a part": lambda x: x[:, :2].mul_(2),
    "itself": lambda x: x.add_(x),
    "after NumPy read it": lambda x: (x.numpy().mean(), x.mul_(2)),
    "nothing": lambda x: (x.numpy(), x.untyped_storage(), x.data_ptr()),
}


@pytest.mark.parametrize("write", SEEN.values(), ids=SEEN)
def test_a_write_that_keeps_rows_apart_is_followed(write):
    x = drawn(rows(6), of_rows("piece", N))
    view = x[1:3]
    write(x)
    assert not x.origin.memory.lost and not view.origin.memory.lost
    assert (2 * x).origin.numbers().tolist() == list(range(N))
