"""Values that reach other examples through other tensors than the first, and what only looks like that."""

import pytest
import torch
from private import Private
from torch import nn

from ghostshard.ghost.loss import PrivateLoss

# Values through other tensors than the first -------------------------------------------------------------------------


class Takes(nn.Module):
    """mix(batch) [units, 6] feeds the layers."""

    def __init__(self, mix):
        super().__init__()
        self.mix, self.first, self.out = mix, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, *args, **batch):
        return self.out(torch.tanh(self.first(self.mix(*args, **batch))))


def from_dict(batch):
    return batch["x"] - batch["x"].mean(0)


def from_keywords(index, x):
    return x / x.std(0)


def from_second(x, z):
    return x * z.mean(0, keepdim=True)


def from_a_nested_list(x, more):
    return x + more[0]["z"].amax(0)


def from_a_mask(x, mask):
    return x * mask.float().mean(0, keepdim=True)


def given(*args, **kwargs):
    return lambda model, batch: nn.functional.cross_entropy(model(*args, **kwargs), batch[1], reduction="none")


X, Z, INDEX = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)), torch.randn(5, 6), torch.arange(5) + 7
MASK = torch.tensor([1, 0, 1, 1, 0])[:, None].expand(5, 6)
THROUGH_OTHERS = {
    "index_comes_first_in_a_dict": (from_dict, given({"index": INDEX, "x": X})),
    "by_keywords_in_any_order": (from_keywords, given(index=INDEX, x=X)),
    "second_tensor": (from_second, given(X, Z)),
    "in_a_nested_list": (from_a_nested_list, given(X, [{"z": Z}])),
    "a_mask": (from_a_mask, given(X, MASK)),
}


@pytest.mark.parametrize("mix, loss", THROUGH_OTHERS.values(), ids=THROUGH_OTHERS)
def test_values_that_reach_others_through_any_tensor(mix, loss):
    torch.manual_seed(3)
    refused = 0
    for _ in range(8):  # an exchange by lot may leave a maximum where it is
        try:
            Private(Takes(mix), 1.0).backward(loss, (X, torch.zeros(5, dtype=torch.long)))
        except RuntimeError as error:
            assert "output must not depend on other examples" in str(error)
            refused += 1
    assert refused == 8 if mix is not from_a_nested_list else refused > 0


def cut_to_the_longest(x, lengths):
    return x[:, : int(lengths.max())]


class Reads(nn.Module):
    """Texts of several lengths, cut to the longest; positions that all share; places beyond a text count nothing."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, lengths, places):
        x = cut_to_the_longest(x, lengths)
        valid = (torch.arange(x.shape[1])[None] < lengths[:, None]).unsqueeze(2)
        return self.out(self.first(x + places[: x.shape[1], None]) * valid) * valid


@pytest.mark.parametrize("units", [5, 7])  # 7: as many as there are places
def test_lengths_and_places_are_no_mixing(units):
    torch.manual_seed(3)
    lengths = torch.tensor([2, 7, 3, 1, 4, 4, 1])[:units]
    for _ in range(8):
        private = Private(Reads(), 1.0)
        y = private.module(torch.randn(units, 7, 6), lengths, torch.arange(7))
        PrivateLoss(private.engine, y.square().flatten(1).sum(1)).backward()


def test_a_model_that_takes_no_other_values_is_refused_with_a_sentence():
    def picky(x):
        if not torch.equal(x, X):
            raise ValueError("never seen that")
        return x

    private = Private(Takes(picky), 0.1)
    with pytest.raises(RuntimeError, match=r"takes no other inputs.*\(ValueError: never seen that\).*attribution_check=False"):
        PrivateLoss(private.engine, given(X)(private.module, (X, torch.randint(0, 3, (5,))))).backward()
