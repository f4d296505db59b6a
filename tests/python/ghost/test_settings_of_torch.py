"""A clipped sum is the same whatever torch's own settings are. (Those of float32 products: tests/kernels/host.)"""

import contextlib

import pytest
import torch
from launch import SUM_TOLERANCE
from test_shared_rows import difference, texts
from torch import nn


class Convolved(nn.Module):
    """Layers with rules, one by rows, one scaled embedding without; outputs wide enough to be compared by a few products."""

    def __init__(self):
        super().__init__()
        self.words, self.norm, self.out = Scaled(11, 8), nn.LayerNorm(8), nn.Linear(8, 40)
        self.near = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, ids):
        x = self.norm(self.words(ids))
        return self.out(torch.tanh(x + self.near(x.transpose(1, 2)).transpose(1, 2))).mean(1)


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 8**0.5


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def precision(name):
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "medium": lambda: precision("medium"),
    "deterministic": deterministic,
    "anomalies": torch.autograd.detect_anomaly,
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_it_changes_no_sum(setting):
    torch.manual_seed(3)
    model = Convolved()
    with setting():
        assert difference(model, texts(4, 3)) < SUM_TOLERANCE
