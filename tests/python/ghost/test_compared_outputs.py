"""What the check of examples compares of a model's outputs: flattened ones, those in objects, time first, beside masks; and what it does not take for a mix."""

from dataclasses import dataclass

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

MIXED = "outputs changed with the inputs of others"


@dataclass
class Output:
    logits: torch.Tensor
    name: str = "an object"


class Places(nn.Module):
    """Inputs [units, 6] as six places of one number. mixes: by what passes no gradient."""

    def __init__(self, mixes, form):
        super().__init__()
        self.layer, self.mixes, self.form = nn.Linear(1, 3), mixes, form

    def forward(self, x):
        h = self.layer(x.unsqueeze(-1))
        return self.form(h + (0.1 * h.detach().mean(0) if self.mixes else 0))


MASK = torch.tensor([0.0, -1e9, 0.0])
FORMS = {
    "as it is": (lambda h: h, lambda out: out), "flattened": (lambda h: h.flatten(0, 1), lambda out: out.unflatten(0, (-1, 6))),
    "flattened, in turn": (lambda h: h.transpose(0, 1).flatten(0, 1), lambda out: out.unflatten(0, (6, -1)).transpose(0, 1)),
    "time first": (lambda h: h.transpose(0, 1), lambda out: out.transpose(0, 1)), "in an object": (lambda h: Output(h), lambda out: out.logits),
    "beside a mask": (lambda h: h + MASK, lambda out: out[..., ::2]),
    "beside a mask of many": (lambda h: torch.cat([h] * 4, -1) + MASK.repeat(4), lambda out: out[..., ::2]),
    "beside what is no number": (lambda h: torch.cat([h, h * 0 - torch.inf], -1), lambda out: out[..., :3]),
}  # fmt: skip


@pytest.mark.parametrize("mixes", [False, True], ids=["apart", "mixed"])
@pytest.mark.parametrize("form, back", FORMS.values(), ids=FORMS)
def test_outputs_are_compared_in_every_form(form, back, mixes):
    for seed in range(3):
        run = Run(model=Places(mixes, form), criterion=nn.CrossEntropyLoss())
        torch.manual_seed(seed)
        x, y = next(iter(run.loader))
        out = back(run.module(x))
        loss = run.criterion(out.mean(1)[:, :2], y.clamp(max=1))
        if not mixes:
            loss.backward()
            continue
        with pytest.raises(RuntimeError, match=MIXED):
            loss.backward()


def test_rows_that_are_left_out_are_no_mix():
    """As many as there are examples, or a multiple, by chance."""

    class Positive(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 3)

        def forward(self, x):
            h = self.layer(x.unsqueeze(-1))
            return h, h.detach()[x > 0]

    for _ in range(12):
        run = Run(model=Positive(), criterion=nn.CrossEntropyLoss())
        x, y = next(iter(run.loader))
        run.criterion(run.module(x)[0].mean(1), y).backward()


def test_large_outputs_beside_small_ones_round():
    """Differences by rounding are no mix, wherever on the scale."""
    for scale in (1e-6, 1.0, 1e4, 1e8):
        model = Places(False, lambda h, scale=scale: torch.cat([h * scale, h], -1))
        run = Run(model=model, criterion=lambda out, y: F.cross_entropy(out[:, 3:], y, reduction="none"))
        x, y = next(iter(run.loader))
        run.criterion(run.module(x).mean(1), y).backward()


class Waves(nn.Module):
    """[units, as many values as follow from all examples], other ones in every batch. mixes: by what passes no gradient, far from the first values."""

    def __init__(self, mixes):
        super().__init__()
        self.layer, self.mixes = nn.Linear(6, 3), mixes

    def forward(self, x):
        longest = 20 + int(1000 * x.detach().abs().sum()) % 50
        h = self.layer(x)
        others = torch.arange(longest) // 12 * 0.1 * h.detach().mean() if self.mixes else torch.zeros(longest)
        return h.repeat(1, longest)[:, :longest] + others


@pytest.mark.parametrize("mixes", [False, True])
def test_outputs_whose_length_follows_from_the_examples(mixes):
    run = Run(model=Waves(mixes))
    steps = lambda: [run.criterion(run.module(x)[:, :3], y).backward() or run.optimizer.step() for x, y in run.loader]
    if mixes:
        with pytest.raises(RuntimeError, match=MIXED):
            steps()
    else:
        steps()
