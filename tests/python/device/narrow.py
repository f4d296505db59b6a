"""Scenarios of one_rank_main.py under torch.autocast in bfloat16: there the kernels take 16-bit rows as they are recorded."""

from __future__ import annotations

import copy

import torch
from models import CASES, Language
from on_device import DEVICE, here, there
from private import Private
from torch.nn import functional

BY_NAME = {case.name: case for case in CASES}
# The embedding's gradients are float32 in all of them, the linear layers' rows bfloat16.
NAMES = ["mlp", "language_tied", "language_untied", "conv1d", "conv2d", "layer_norm_of_2_extents", "parameters_beside_children"]
CLIP_NORM = 1e-3


def autocast(device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16)


def summed(name: str, device: str) -> dict[str, torch.Tensor]:
    """The sum of a batch's gradients, none of them clipped."""
    torch.manual_seed(7)
    case = BY_NAME[name]
    model, batch = case.build().to(device), case.batches()[0]
    private = Private(model, 1e6)
    with autocast(device):
        losses = case.loss(private.module, tuple(value.to(device) for value in batch))
    private.engine.backward(losses.float())
    return here(private.released())


def sums_apart() -> dict[str, float]:
    """From the CPU's, in parts of the largest value."""
    apart = {}
    for name in NAMES:
        expected, found = summed(name, "cpu"), summed(name, DEVICE)
        scale = max(float(value.abs().max()) for value in expected.values())
        apart[name] = max(float((found[key] - expected[key]).abs().max()) for key in expected) / scale
    return apart


def length(private: Private) -> float:
    return float(torch.sqrt(sum(value.double().square().sum() for value in here(private.released()).values())))


def lengths() -> dict[str, list[float]]:
    """The contributions of single examples, all of them clipped, in clip norms."""
    found = {}
    for name in NAMES:
        torch.manual_seed(7)
        case = BY_NAME[name]
        model, batch = case.build().to(DEVICE), there(case.batches()[0])
        private = Private(model, CLIP_NORM)
        found[name] = []
        for i in range(len(batch[0])):
            with autocast(DEVICE):
                losses = case.loss(private.module, tuple(value[i : i + 1] for value in batch))
            private.engine.backward(losses.float())
            found[name].append(length(private) / CLIP_NORM)
    return found


def tokens_that_cancel(*, tied: bool) -> float:
    """Gradients that cancel, so that their rounding is larger than the rest."""
    torch.manual_seed(7)
    private = Private(Language(tied=tied).to(DEVICE), CLIP_NORM)
    ids = torch.full((1, 8), 3, device=DEVICE)
    with autocast(DEVICE):
        logits = private.module(ids)
        losses = functional.cross_entropy(logits[:, :-1].transpose(1, 2).float(), ids[:, 1:], reduction="none")
    private.engine.backward((losses * there(torch.tensor([1.0, -1, 1, -1, 1, -1, 1]))).sum(1))
    return length(private) / CLIP_NORM


def a_model_in_bfloat16() -> list[float]:
    """Its gradients are bfloat16 too: rounded once more, by at most 2^-9 each."""
    torch.manual_seed(7)
    case = BY_NAME["language_untied"]
    batch = there(case.batches()[0])
    private = Private(copy.deepcopy(case.build()).to(torch.bfloat16).to(DEVICE), CLIP_NORM)
    found = []
    for i in range(len(batch[0])):
        private.engine.backward(case.loss(private.module, tuple(value[i : i + 1] for value in batch)).float())
        found.append(length(private) / CLIP_NORM)
    return found


SCENARIOS = {
    "narrow": lambda: {
        "sums_apart": sums_apart(), "lengths": lengths(), "in_bfloat16": a_model_in_bfloat16(),
        "cancelling": [tokens_that_cancel(tied=tied) for tied in (False, True)],
    },
}  # fmt: skip
