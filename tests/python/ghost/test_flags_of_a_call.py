"""Flags are True or False: a word such as "false" counts as true in Python."""

import numpy as np
import pytest
import torch
from private_run import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

FLAGS = ("poisson_sampling", "own_batches", "allow_vouched", "attribution_check", "batch_first", "wrap_model", "rand_on_empty", "accumulate")
NO_FLAGS = ("false", 0, np.bool_(False), torch.tensor(True))


@pytest.mark.parametrize("value", NO_FLAGS, ids=repr)
@pytest.mark.parametrize("flag", FLAGS)
def test_another_value_is_refused_by_name(flag, value):
    with pytest.raises(ValueError, match=rf"make_private\(\) takes for {flag} True(, False or None| or False), got "):
        Run(**{flag: value})


@pytest.mark.parametrize("flag", ["poisson_sampling", "own_batches"])
def test_before_noise_is_planned_for_it(flag):
    model = nn.Linear(6, 3)
    with pytest.raises(ValueError, match=rf"make_private_with_epsilon\(\) takes for {flag} True or False, got 'false' \(str\)"):
        PrivacyEngine(accountant="rdp").make_private_with_epsilon(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(TensorDataset(torch.zeros(8, 6)), batch_size=4),
            target_epsilon=3.0, target_delta=1e-5, epochs=1, max_grad_norm=1.0, grad_sample_mode="ghost", **{flag: "false"},
        )  # fmt: skip


def test_of_the_engine_and_of_its_report(tmp_path):
    with pytest.raises(ValueError, match=r"PrivacyEngine\(\) takes for secure_mode True or False, got 'yes'"):
        PrivacyEngine(secure_mode="yes")
    run = Run(ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match=r"report\(\) takes for every_rank True or False, got 'no'"):
        run.engine.report(tmp_path, every_rank="no")


@pytest.mark.parametrize("value", [True, 0, -1, 2.0, "2", None], ids=repr)
@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["drawn", "own batches"])
def test_in_how_many_parts_is_a_whole_number(value, options):
    with pytest.raises(ValueError, match="accumulation_steps must be a whole number >= 1, got "):
        Run(accumulation_steps=value, **options)


@pytest.mark.parametrize("value", [0, False, "seed"], ids=repr)
def test_a_seed_is_no_generator(value):
    with pytest.raises(ValueError, match="noise_generator must be a torch.Generator, or None"):
        Run(noise_generator=value)
