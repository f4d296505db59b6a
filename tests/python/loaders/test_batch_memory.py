"""Logical batches in physical pieces on one rank."""

import warnings

import opacus
import pytest
import torch
from drawing import DATA, MANAGERS, Flags, prescribe, seeded
from opacus.utils import batch_memory_manager as opacus_manager
from opacus.utils.batch_memory_manager import BatchMemoryManager as OpacusManager
from torch.utils.data import DataLoader, TensorDataset

from ghostshard.loaders import AgreedSplittingSampler, BatchMemoryManager, GhostDataLoader


@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS.keys())
@pytest.mark.parametrize("workers", [0, 2])
def test_logical_batches_are_split_evenly(manager, workers):
    loader = GhostDataLoader(TensorDataset(torch.arange(20)), sample_rate=0.5, num_workers=workers)
    logical = [list(range(5)), [], [3], list(range(8, 16))]
    prescribe(loader, logical)
    optimizer = Flags()
    with manager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as physical:
        assert isinstance(physical.batch_sampler, AgreedSplittingSampler)
        pieces = [(batch[0].tolist(), optimizer.step()) for batch in physical]
        assert len(physical) == len(pieces) == 6
    assert pieces == [
        ([0, 1, 2], False), ([3, 4], True), ([], True), ([3], True), ([8, 9, 10, 11], False),
        ([12, 13, 14, 15], True),
    ]  # fmt: skip
    assert optimizer._step_skip_queue == []


def private(loader, **options):
    torch.manual_seed(1)
    module = torch.nn.Linear(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opacus.PrivacyEngine().make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=loader,
            poisson_sampling=False, noise_multiplier=0.0, max_grad_norm=1.0, **options,
        )  # fmt: skip


def train(module, optimizer, batch):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(module(batch[0]), batch[1] % 3).backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_split_training_is_unsplit_training():
    weights = []
    for largest in (12, 1):
        loader = GhostDataLoader(DATA, sample_rate=0.5, steps=8, generator=seeded())
        module, optimizer, loader = private(loader)
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=largest, optimizer=optimizer) as physical:
            for batch in physical:
                train(module, optimizer, batch)
        weights.append(module._module.weight.detach().clone())
    assert torch.allclose(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS.keys())
def test_leaving_early_leaves_nothing_behind(manager, workers):
    """One of three pieces done, more fetched: later steps are neither skipped nor do they hold the piece again."""
    loader = GhostDataLoader(DATA, sample_rate=0.5, num_workers=workers)
    prescribe(loader, [list(range(9))] * 4)
    module, optimizer, loader = private(loader)
    with manager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as physical:
        for batch in physical:
            train(module, optimizer, batch)
            break
    assert optimizer._step_skip_queue == [] and not optimizer._is_last_step_skipped
    assert all(parameter.summed_grad is None for parameter in optimizer.params)
    before = module._module.weight.detach().clone()
    train(module, optimizer, next(iter(loader)))
    assert not torch.equal(before, module._module.weight)


@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS.keys())
@pytest.mark.parametrize("leave", ["exception", "new_epoch"])
def test_the_optimizers_own_reset_is_used(manager, leave):
    loader = GhostDataLoader(DATA, sample_rate=0.5)
    prescribe(loader, [list(range(9))] * 4)
    optimizer = Flags()
    with manager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as physical:
        next(iter(physical))
        assert optimizer._step_skip_queue == [True]
        if leave == "new_epoch":
            assert [optimizer.step() for _ in physical] == [False, False, True] * 4
            assert optimizer.forgotten == 2
    if leave == "exception":
        with pytest.raises(KeyError):
            with manager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as physical:
                next(iter(physical))
                raise KeyError
        assert optimizer._step_skip_queue == [] and optimizer.forgotten == 4


def test_other_loaders_are_left_to_opacus():
    for manager, left in ((OpacusManager, [True]), (BatchMemoryManager, [])):
        optimizer, loader = Flags(), DataLoader(DATA, batch_size=4)
        with manager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as physical:
            assert type(physical.batch_sampler) is opacus_manager.BatchSplittingSampler
            next(iter(physical))
        assert optimizer._step_skip_queue == left


def test_a_manager_refuses():
    loader = GhostDataLoader(DATA, sample_rate=0.5)
    with pytest.raises(ValueError, match=">= 1"):
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=0, optimizer=Flags()).__enter__()
    loader = GhostDataLoader(DATA, sample_rate=0.5, rank=1, world_size=2)
    with pytest.raises(RuntimeError, match="init_process_group"):
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=Flags()).__enter__()
