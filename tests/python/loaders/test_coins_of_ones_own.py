"""A collate_fn whose coins fall from a generator of its own is told apart like one that tosses torch's, and its generator stays as it was."""

import functools
import random

import numpy as np
import pytest
import torch

from ghostshard.loaders.coins import Coins
from ghostshard.loaders.collate_check import CollateCheck

TOSSES = {
    "torch": (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand((), generator=g)),
    "NumPy": (lambda: np.random.default_rng(1), lambda g: torch.tensor(g.random())),
    "NumPy's old ones": (lambda: np.random.RandomState(1), lambda g: torch.tensor(g.rand())),
    "Python": (lambda: random.Random(1), lambda g: torch.tensor(g.random())),
}  # fmt: skip
OF_THE_MODULE = np.random.default_rng(1)


class Masks:
    """made: its generator; None: it is made when it is tossed first, as Transformers' collators make theirs."""

    def __init__(self, kind, made=True, mixes=False):
        self.make, self.toss, self.mixes = *TOSSES[kind], mixes
        if made is not None:
            self.generator = self.make() if made else None

    def __call__(self, examples):
        if getattr(self, "generator", None) is None:
            self.generator = self.make()
        x = torch.stack([x * (self.toss(self.generator) < 0.7) for x in examples])
        return x + 0.1 * x.roll(1, 0) if self.mixes and self.toss(self.generator) < 0.5 else x


def of_surroundings(kind):
    masks = Masks(kind)
    return lambda examples: masks(examples)


def with_a_default(kind):
    generator, toss = TOSSES[kind][0](), TOSSES[kind][1]

    def collate(examples, generator=generator):
        return torch.stack([x * (toss(generator) < 0.7) for x in examples])

    return collate


def of_the_module(examples):
    return torch.stack([x * float(OF_THE_MODULE.random() < 0.7) for x in examples])


COLLATES = {
    "object": Masks, "made late": lambda kind: Masks(kind, made=False), "no attribute before": lambda kind: Masks(kind, made=None), "method": lambda kind: Masks(kind).__call__,
    "closure": of_surroundings, "default": with_a_default, "partial": lambda kind: functools.partial(lambda examples, masks: masks(examples), masks=Masks(kind)),
    "module": lambda kind: of_the_module,
}  # fmt: skip


def examples():
    return [torch.arange(1.0 + i, 4.0 + i) for i in range(8)]


@pytest.mark.parametrize("how", COLLATES)
@pytest.mark.parametrize("kind", TOSSES)
def test_coins_of_its_own_are_no_mixing(kind, how):
    collate = COLLATES[how](kind)
    before = Coins(collate)
    for _ in range(10):
        CollateCheck()(collate, examples())
    assert not before.tossed()
    one = collate(examples())
    assert before.tossed()
    before.again()
    assert torch.equal(one, collate(examples()))


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("kind", TOSSES)
def test_a_mixture_by_coins_of_its_own_is_refused(kind, made):
    with pytest.raises(ValueError, match="mixes its examples"):
        CollateCheck()(Masks(kind, made=made, mixes=True), examples())
