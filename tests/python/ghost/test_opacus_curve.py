"""bench/opacus_curve.py, smaller: the same loss curve as Opacus' hooks at equal noise, and another one at other noise."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

_PATH = Path(__file__).resolve().parents[3] / "bench" / "opacus_curve.py"
_SPEC = importlib.util.spec_from_file_location("opacus_curve", _PATH)
curve = importlib.util.module_from_spec(_SPEC)
sys.modules["opacus_curve"] = curve  # its dataclasses look there
_SPEC.loader.exec_module(curve)

SETTING = curve.Setting(steps=12, expected_batch=6, length=24, width=24)


def texts(count: int) -> list[str]:
    words = "the phoenix is a cheap pub near the river that serves french food to families and students".split()
    generator = torch.Generator().manual_seed(1)
    return [
        " ".join(words[i] for i in torch.randint(0, len(words), (int(n),), generator=generator))
        for n in torch.randint(1, 8, (count,), generator=generator)
    ]


@pytest.mark.filterwarnings("ignore")
def test_the_loss_curve_is_that_of_opacus_hooks_at_equal_noise():
    labels = curve.encode(texts(48), SETTING.length)
    curves = curve.train(SETTING, labels[:36], labels[36:])
    within = curve.tolerance(SETTING, curves)
    assert curves.difference < within
    assert abs(curves.held_out[1] - curves.held_out[2]) < within
    assert curves.held_out[1] < curves.held_out[0]
    # The bound sees noise: other values of the same noise leave it far behind.
    other = curve.train(SETTING, labels[:36], labels[36:], noise_seed_of_opacus=10)
    assert other.difference > 10 * within
