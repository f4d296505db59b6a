"""Outputs of a private forward whose session has ended: their backward is refused by a sentence, whatever layer it reaches first. (The
compiled layers hold parameters of the session, which would be gone.)"""

import gc

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

ENDED = "came between the forward of this loss and its backward"
ROWS = torch.Generator().manual_seed(5)


class Tied(nn.Module):
    """A table that is the head too."""

    def __init__(self):
        super().__init__()
        self.table, self.first = nn.Embedding(7, 4), nn.LayerNorm(4)
        self.layer = nn.Linear(4, 7, bias=False)
        self.layer.weight = self.table.weight

    def forward(self, ids):
        return self.layer(self.first(self.table(ids)))


class Looked(nn.Module):
    """Backward reaches `layer` before anything else."""

    def __init__(self):
        super().__init__()
        self.first, self.layer = nn.Embedding(7, 4), nn.Embedding(7, 4)

    def forward(self, ids):
        return self.first(ids) + self.layer(ids)


class Behind(nn.Module):
    """`layer` comes last in forward, so first in backward."""

    def __init__(self, layer: nn.Module, extents: tuple[int, ...] = (4,)):
        super().__init__()
        self.first, self.layer, self.extents = nn.Linear(4, 4), layer, extents

    def forward(self, x):
        return self.layer(self.first(x).unflatten(1, self.extents)).flatten(1)


class OwnScale(nn.Module):
    """A layer without a rule: its gradients are formed one example at a time."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x):
        return torch.tanh(x * self.scale)


FLOATS = torch.randn(24, 4, generator=ROWS)
IDS = torch.randint(0, 7, (24,), generator=ROWS)
MODELS = {
    "linear": (lambda: Behind(nn.Linear(4, 3)), FLOATS),
    "embedding": (Looked, IDS),
    "tied": (Tied, IDS),
    "layer_norm": (lambda: Behind(nn.LayerNorm(4)), FLOATS),
    "affine": (lambda: Behind(nn.RMSNorm(4)), FLOATS),
    "conv": (lambda: Behind(nn.Conv1d(2, 3, 2), (2, 2)), FLOATS),
    "any_layer": (lambda: Behind(OwnScale()), FLOATS),
}


class World:
    def __init__(self, case: str):
        torch.manual_seed(0)
        build, inputs = MODELS[case]
        self.module = build()
        self.engine = PrivacyEngine()
        self.model, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(inputs, torch.randint(0, 3, (24,))), batch_size=12),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode="ghost",
        )  # fmt: skip
        self.batches = iter(self.loader)
        self.x, self.y = next(self.batches)
        assert len(self.x) > 0

    def losses(self):
        return self.criterion(self.model(self.x), self.y)


def remove_hooks(world: World) -> None:
    world.model.remove_hooks()


def train_other_parameters(world: World) -> None:
    world.module.first.requires_grad_(False)
    world.losses()


def load_state(world: World) -> None:
    world.engine.load_state_dict(world.engine.state_dict())


@pytest.fixture(params=list(MODELS))
def world(request):
    return World(request.param)


@pytest.mark.parametrize("end", [remove_hooks, load_state])
def test_an_outputs_own_backward_after_the_sessions_end_is_a_sentence(world, end):
    outputs = world.model(world.x)
    end(world)
    gc.collect()
    with pytest.raises(RuntimeError, match=ENDED):
        outputs.sum().backward()


def test_the_loss_of_a_forward_before_a_layer_was_frozen_is_refused_by_a_sentence(world):
    loss = world.losses()
    train_other_parameters(world)
    gc.collect()
    with pytest.raises(RuntimeError, match=ENDED):
        loss.backward()


def test_training_goes_on_after_a_refused_backward(world):
    loss = world.losses()
    train_other_parameters(world)
    with pytest.raises(RuntimeError, match=ENDED):
        loss.backward()
    before = [value.detach().clone() for value in world.module.layer.parameters()]
    world.losses().backward()
    world.optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, world.module.layer.parameters(), strict=True))


def test_gradients_of_inputs_after_the_sessions_end_are_a_sentence_too():
    world = World("linear")
    x = world.x.detach().clone().requires_grad_()
    outputs = world.model(x)
    world.model.remove_hooks()
    gc.collect()
    with pytest.raises(RuntimeError, match=ENDED):
        torch.autograd.grad(outputs.sum(), x)
