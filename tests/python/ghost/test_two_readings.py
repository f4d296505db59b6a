"""Tables with as many rows, frames or copies as a batch has examples: what is whose follows from no extent."""

import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from test_shared_rows import Placed, difference, texts
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

K = 3  # frames of two places


def places(model, count=2):
    return model.places(torch.arange(count))


def weighted(model):
    return places(model).expand(K, 2, 8) * torch.linspace(0, 1, K)[:, None, None]


def again(part, *given):
    return checkpoint(part, *given, use_reentrant=False)


REPEATED = {
    "repeat": lambda m, x, n: x + places(m).repeat(K, 1),
    "expand_and_flatten": lambda m, x, n: x + places(m).expand(K, 2, 8).flatten(0, 1),
    "expand_and_reshape": lambda m, x, n: x + places(m)[None].expand(K, 2, 8).reshape(6, 8),
    "a_sum_of_copies": lambda m, x, n: x + places(m, 6).expand(K, 6, 8).sum(0),
    "a_mean_of_copies": lambda m, x, n: x + places(m, 6).repeat(K, 1).view(K, 6, 8).mean(0),
    "a_linear_layer": lambda m, x, n: x + m.mix(places(m).expand(K, 2, 8)).reshape(6, 8),
    "a_norm": lambda m, x, n: x + functional.layer_norm(places(m).repeat(K, 1), (8,)),
    "a_norm_over_all": lambda m, x, n: x + m.norm(places(m).expand(K, 2, 8)).reshape(6, 8),
    "two_tables": lambda m, x, n: x + (places(m)[None].expand(K, -1, -1) + places(m, K)[:, None].expand(-1, 2, -1)).reshape(6, 8),
    "beside_a_constant": lambda m, x, n: x + (places(m).expand(K, 2, 8) * torch.linspace(0, 1, K)[:, None, None]).reshape(6, 8),
    "softmax_over_copies": lambda m, x, n: x + weighted(m).softmax(0).reshape(6, 8),
    "copies_in_another_order": lambda m, x, n: x + weighted(m).flip(0).reshape(6, 8),
    "copies_less_their_mean": lambda m, x, n: x + (weighted(m) - weighted(m).mean(0)).reshape(6, 8),
    "a_layer_of_sums_of_copies": lambda m, x, n: x + m.mix(places(m).expand(K, 2, 8).cumsum(0)).reshape(6, 8),
    "in_place": lambda m, x, n: x + places(m).repeat(K, 1, 1).mul_(2).add_(1).reshape(6, 8),
    "computed_again": lambda m, x, n: again(lambda x, table: (x + m.mix(table).sum(0).repeat(K, 1)).sin(), x, weighted(m)),
    "queries_of_a_layer": lambda m, x, n: x + m.attention(places(m).expand(n, 2, 8), x, x)[0].mean(1, keepdim=True),
    "a_layer_of_queries": lambda m, x, n: x + m.attention(*[places(m).repeat(n, 1, 1)] * 3)[0].mean(1, keepdim=True),
    "of_the_batch": lambda m, x, n: x + m.mix(places(m, 6).repeat(n, 1, 1)).contiguous(),
    "of_the_batch_flattened": lambda m, x, n: (x.reshape(3 * n, 2, 8) + places(m, K).repeat(n, 1)[:, None]).view(n, 6, 8),
    "constant_ids": lambda m, x, n: x + m.places(torch.tensor([1, 0, 1])).repeat_interleave(2, 0),
    "ids_of_a_buffer": lambda m, x, n: x + m.places(m.ids).view(6, 8),
    "ids_of_each": lambda m, x, n: x + m.places(x.detach()[:, 0, 0].gt(0).long())[:, None],
}
MET = {
    "einsum": lambda m, x, n: x + torch.einsum("bid,ijd->bij", x, m.places((torch.arange(6)[:, None] - torch.arange(6)).abs())) @ x,
    "queries": lambda m, x, n: x + torch.einsum("qd,bid->bqi", places(m, K), x).mean(1)[..., None],
    "linear": lambda m, x, n: x + functional.linear(x, places(m, K)).mean(2, keepdim=True),
    "tensordot": lambda m, x, n: x + torch.tensordot(x, places(m, K), dims=([2], [1])).mean(2, keepdim=True),
    "classes": lambda m, x, n: x + (x.mean(1) @ places(m, K).T).mean(1)[:, None, None],
    "cosine": lambda m, x, n: x + (functional.normalize(x.mean(1), dim=1) @ functional.normalize(places(m, K), dim=1).t()).mean(1)[:, None, None],
    "cdist": lambda m, x, n: x + torch.cdist(x.mean(1), places(m, K)).mean(1)[:, None, None],
    "units_second": lambda m, x, n: x + torch.tensordot(places(m, 6), x, dims=([1], [2])).transpose(0, 1).mean(2, keepdim=True),
}


class Model(Placed):
    def __init__(self, join):
        super().__init__(join)
        self.mix, self.norm, self.attention = nn.Linear(8, 8), nn.LayerNorm((K, 2, 8)), nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("ids", torch.tensor([[0, 1], [2, 0], [1, 1]]))


@pytest.mark.parametrize("counts", [(5, 3, 6, 2), (3, 5, 3), (6, 3)], ids=str)
@pytest.mark.parametrize("join", [*REPEATED.values(), *MET.values()], ids=[*REPEATED, *MET])
def test_as_many_examples_as_copies(join, counts):
    torch.manual_seed(3)
    assert difference(Model(join), texts(*counts)) < SUM_TOLERANCE


def test_no_example_moves_the_sum_by_more_than_the_clip_norm():
    """Where it took the copies for the examples' own, it gave each of them the gradient of another part of the table."""
    torch.manual_seed(3)
    for count in (K - 1, K, K + 1):
        model = Placed(lambda m, x, n: (x * 0 + places(m).repeat(K, 1))[:, -2:])
        assert difference(model, texts(count, count), clip_norm=0.01) < SUM_TOLERANCE


TURNED = {
    "places_first": lambda m, x, n: (x.transpose(0, 1) + places(m, 6)[:, None]).transpose(0, 1),
}


@pytest.mark.parametrize("counts", [(6, 6), (5, 6)], ids=str)
@pytest.mark.parametrize("join", TURNED.values(), ids=TURNED)
def test_examples_in_another_place_are_refused(join, counts):
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="not known to be those of|must not depend on other examples"):
        difference(Model(join), texts(*counts))


def places_first_if_as_many(model, x, count):
    if count != 6:
        return x + places(model, 6)
    return (x.transpose(0, 1) + places(model, 6)[:, None].expand(6, 6, 8)).transpose(0, 1)


def test_a_way_that_only_a_batch_of_as_many_examples_as_places_takes_is_looked_at():
    """Its first extent is the places', as many as the examples, and no batch of others has shown that it is not theirs."""
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        difference(Model(places_first_if_as_many), texts(5, 6))


def test_another_models_backward_comes_between():
    """A generator's turn between the discriminator's forward and its backward: what is not certain there is looked at here all the same."""
    torch.manual_seed(3)
    private, other = Private(Model(places_first_if_as_many), 0.3), Private(nn.Sequential(nn.Embedding(11, 3), nn.Flatten(), nn.Linear(18, 3)), 0.3)

    def loss(model, batch):
        found = class_loss(model, batch)
        other.backward(class_loss, batch)
        return found

    few, many = texts(5, 6)
    private.backward(loss, few)
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        private.backward(loss, many)
