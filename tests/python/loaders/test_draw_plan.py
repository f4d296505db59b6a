"""One object says how a loader samples: planning, drawing and charging take rate and steps from it."""

import pytest
import torch
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.loaders import GhostDataLoader, plan_of


def data(n: int) -> TensorDataset:
    return TensorDataset(torch.zeros(n, 4), torch.zeros(n, dtype=torch.long))


# name: (loader, rate, draws of a pass, expected batch)
PLANS = {
    "shuffled": (lambda: DataLoader(data(40), batch_size=8), 0.2, 5, 8),
    "one_at_a_time": (lambda: DataLoader(data(49), batch_size=1), 1 / 49, 49, 1),
    "9800_by_100": (lambda: DataLoader(data(9800), batch_size=100), 1 / 98, 98, 100),
    "not_a_divisor": (lambda: DataLoader(data(60000), batch_size=256), 1 / 235, 235, 255),
    "rounded_up": (lambda: DataLoader(data(1000), batch_size=64), 1 / 16, 16, 62),  # 62.5: to even
    "poisson_with_steps": (lambda: GhostDataLoader(data(400), sample_rate=0.05, steps=200), 0.05, 200, 20),
    "poisson": (lambda: GhostDataLoader(data(400), sample_rate=0.4), 0.4, 2, 160),
    "opacus": (lambda: DPDataLoader(data(93), sample_rate=1 / 93), 1 / 93, 93, 1),
    "cut_in_pieces": (lambda: GhostDataLoader(data(40), sample_rate=0.1, steps=7, accumulation_steps=3), 0.1, 7, 4),
}


@pytest.mark.parametrize("loader, rate, draws, batch", PLANS.values(), ids=PLANS)
def test_drawing_follows_the_plan(loader, rate, draws, batch):
    plan = plan_of(loader(), poisson=True)
    assert (plan.rate, plan.steps, plan.expected_batch, plan.charged_rate) == (rate, draws, batch, rate)
    made = GhostDataLoader.from_data_loader(loader())
    assert (made.sample_rate, made.batch_sampler.draws) == (rate, draws)
    assert len(made) == len(list(made.batch_sampler)) == draws * made.batch_sampler.accumulation_steps
    assert plan_of(loader(), poisson=False).charged_rate == 1


def test_no_divisor_is_truncated():
    wrong = []
    for batches in range(1, 400):
        for batch in (1, 10, 100):
            made = plan_of(DataLoader(range(batches * batch), batch_size=batch), poisson=True)
            if made.expected_batch != batch:
                wrong.append((batches, batch))
    assert wrong == []


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))


def test_what_has_no_length_is_named():
    for poisson in (True, False):
        with pytest.raises(ValueError, match="IterableDataset .*__getitem__ and __len__"):
            plan_of(DataLoader(Stream(), batch_size=4), poisson=poisson)


# name: (loader, epochs, further options)
TARGETS = {
    "shuffled": (lambda: DataLoader(data(40), batch_size=8), 3, {}),
    "poisson_with_steps": (lambda: GhostDataLoader(data(60), sample_rate=0.05, steps=40), 1, {}),
    "opacus": (lambda: DPDataLoader(data(40), sample_rate=0.4), 5, {}),
    "in_pieces": (lambda: DataLoader(data(40), batch_size=8), 2, {"accumulation_steps": 2}),
    "own_batches": (lambda: DataLoader(data(40), batch_size=8), 1, {"own_batches": True}),
}


@pytest.mark.filterwarnings("ignore:batches of your own")
@pytest.mark.parametrize("loader, epochs, options", TARGETS.values(), ids=TARGETS)
def test_what_is_spent_is_the_target(loader, epochs, options):
    model = nn.Linear(4, 3)
    engine = PrivacyEngine(accountant="rdp")
    module, optimizer, criterion, batches = engine.make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), data_loader=loader(), target_epsilon=2.0,
        target_delta=1e-5, epochs=epochs, max_grad_norm=1.0, grad_sample_mode="ghost", **options,
    )  # fmt: skip
    pieces = options.get("accumulation_steps", 1)
    for _ in range(epochs):
        for i, (x, y) in enumerate(batches):
            criterion(module(x), y).backward()
            if (i + 1) % pieces == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert 1.99 < engine.get_epsilon(1e-5) <= 2.0
