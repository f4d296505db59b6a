"""Small models, each with its batches and its loss per example."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass
class Case:
    name: str
    build: Callable[[], nn.Module]
    batches: Callable[[], list[tuple[torch.Tensor, ...]]]
    loss: Callable[[nn.Module, tuple[torch.Tensor, ...]], torch.Tensor]
    clip_norm: float = 0.5  # some examples are clipped, some are not


def class_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def next_token_loss(model, batch):
    logits = model(batch[0])
    logits = getattr(logits, "logits", logits)
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), batch[0][:, 1:], reduction="none").mean(1)


def rows(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(5, *shape) * scale


def labels() -> torch.Tensor:
    return torch.randint(0, 3, (5,))


class TwoUses(nn.Module):
    """One layer called twice, one scale and one shift of its own."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


class Language(nn.Module):
    """Token and position embedding ([1, T] position ids), all three kinds of normalisation, tied or untied head."""

    def __init__(self, *, tied: bool, twice: bool = False, padding_idx: int | None = None):
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=padding_idx)
        self.positions = nn.Embedding(9, 8)
        self.inner = nn.Linear(8, 8)
        self.no_shift = nn.LayerNorm(8, bias=False)
        self.rms = nn.RMSNorm(8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.twice = twice
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)[None])
        if self.twice:
            x = x + self.tokens((ids + 1) % 11)
        x = x + self.no_shift(torch.tanh(self.inner(x)))
        return self.head(self.norm(self.rms(x)))


class Scaled(nn.Module):
    """A layer of the user's own, which has no rule."""

    def __init__(self, *, scalar: bool = False):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.power = nn.Parameter(torch.tensor(1.2 if scalar else [1.2]))

    def forward(self, x):
        return torch.sign(x) * (x.abs() + 0.1) ** self.power * self.gain


class DirectAndChildren(nn.Module):
    """Parameters of its own beside layers, as a vision transformer's class token; inside, a layer of the same kind."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 1, 6))
        self.mix = nn.Parameter(torch.randn(6, 6) * 0.4)
        self.inner = nn.Sequential(nn.Linear(6, 6), Scaled(), nn.Linear(6, 3))

    def forward(self, x):
        x = torch.cat([self.start.expand(len(x), 1, 6), x], dim=1)
        return self.inner((x @ self.mix).mean(1))


def token_ids(length: int = 7) -> list[tuple[torch.Tensor, ...]]:
    ids = torch.randint(0, 11, (5, length))
    ids[0] = 3  # one token again and again
    return [(ids,), (torch.randint(0, 11, (2, length)),)]


def pictures(channels: int, *extent: int) -> list[tuple[torch.Tensor, ...]]:
    return [(rows(channels, *extent), labels())]


def partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


def conv_partly_frozen() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 2), nn.Tanh(), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 3)
    )
    model[0].bias.requires_grad_(False)
    model[1].weight.requires_grad_(False)
    model[3].requires_grad_(False)
    return model


class ConvTwice(nn.Module):
    """One weight over few places (recorded by rows there) and over many."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 2, padding=1)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        x = torch.tanh(self.conv(x))
        return self.out(self.conv(x.repeat(1, 1, 12)).mean(2))


def gemma_norm(family: str) -> nn.Module:
    """Scales x̂ by 1 + weight."""
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    norm = getattr(modeling, f"{family.capitalize()}RMSNorm")(6)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-0.5, 0.5, 6))
    return norm


CASES = [
    Case("mlp", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
         lambda: [(rows(6), labels()), (rows(6, scale=3.0), labels())], class_loss),
    Case("linear_of_4_extents", lambda: nn.Sequential(nn.Linear(6, 4), nn.Flatten(), nn.Linear(2 * 3 * 4, 3)),
         lambda: [(rows(2, 3, 6), labels())], class_loss),
    Case("frozen_parts", partly_frozen, lambda: [(rows(6), labels())], class_loss),
    Case("layer_called_twice", TwoUses, lambda: [(rows(6), labels())], class_loss),
    Case("layer_norm_of_2_extents", lambda: nn.Sequential(nn.LayerNorm((2, 6)), nn.Flatten(), nn.Linear(12, 3)),
         lambda: [(rows(2, 6), labels())], class_loss),
    Case("layer_norm_of_3_extents", lambda: nn.Sequential(nn.LayerNorm((2, 3, 2)), nn.Flatten(), nn.Linear(12, 3)),
         lambda: [(rows(2, 3, 2), labels())], class_loss),
    Case("language_untied", lambda: Language(tied=False), token_ids, next_token_loss, 0.3),
    Case("language_tied", lambda: Language(tied=True), token_ids, next_token_loss, 0.3),
    Case("language_tied_and_embedded_twice", lambda: Language(tied=True, twice=True), token_ids, next_token_loss, 0.3),
    Case("padding_idx", lambda: Language(tied=False, padding_idx=3), token_ids, next_token_loss, 0.3),
    Case("conv1d", lambda: nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(24, 3)),
         lambda: pictures(2, 6), class_loss),
    Case("conv2d", lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)),
         lambda: pictures(2, 6, 6), class_loss),
    Case("conv3d_in_groups", lambda: nn.Sequential(nn.Conv3d(2, 4, 2, groups=2, bias=False), nn.Flatten(), nn.Linear(32, 3)),
         lambda: pictures(2, 3, 3, 3), class_loss),
    Case("conv2d_few_places", lambda: nn.Sequential(nn.Conv2d(8, 24, 3, padding="same"), nn.Flatten(), nn.Linear(96, 3)),
         lambda: pictures(8, 2, 2), class_loss),
    Case("conv2d_dilated_in_groups", lambda: nn.Sequential(
            nn.Conv2d(4, 6, (3, 2), stride=(1, 2), dilation=(2, 1), groups=2, padding=(1, 2), padding_mode="reflect"),
            nn.Flatten(), nn.Linear(6 * 4 * 5, 3)),
         lambda: [*pictures(4, 6, 6), *pictures(4, 6, 6)], class_loss),
    Case("conv1d_circular_without_bias", lambda: nn.Sequential(
            nn.Conv1d(2, 4, 4, padding="same", padding_mode="circular", bias=False), nn.Flatten(), nn.Linear(24, 3)),
         lambda: pictures(2, 6), class_loss),
    Case("conv3d_depthwise", lambda: nn.Sequential(nn.Conv3d(3, 3, 2, groups=3, padding=1), nn.Flatten(), nn.Linear(192, 3)),
         lambda: pictures(3, 3, 3, 3), class_loss),
    Case("conv1d_called_at_two_lengths", ConvTwice, lambda: pictures(16, 3), class_loss),
    Case("conv2d_partly_frozen", conv_partly_frozen, lambda: pictures(2, 6, 6), class_loss),
    *(Case(f"{family}_norm", lambda family=family: nn.Sequential(nn.Linear(6, 6), gemma_norm(family), nn.Linear(6, 3)),
           lambda: [(rows(6), labels())], class_loss) for family in ("gemma", "gemma2", "gemma3")),
    Case("layer_without_a_rule", lambda: nn.Sequential(nn.Linear(6, 6), Scaled(), nn.Linear(6, 3)),
         lambda: [(rows(6), labels())], class_loss),
    Case("parameters_beside_children", lambda: nn.Sequential(nn.Linear(6, 6), DirectAndChildren()),
         lambda: [(rows(2, 6), labels())], class_loss),
    Case("scalar_parameter", lambda: nn.Sequential(Scaled(scalar=True), nn.Linear(6, 3)),
         lambda: [(rows(6), labels())], class_loss),
    Case("instance_norm", lambda: nn.Sequential(nn.InstanceNorm1d(2, affine=True), nn.Flatten(), nn.Linear(12, 3)),
         lambda: pictures(2, 6), class_loss),
]  # fmt: skip
