"""Seeded generators, counts beside a binomial, and loaders with prescribed draws, for the tests of ghostshard.loaders."""

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager as OpacusManager
from scipy.stats import binom
from torch.utils.data import TensorDataset

from ghostshard.loaders import BatchMemoryManager

MANAGERS = {"ours": BatchMemoryManager, "opacus": OpacusManager}
TOO_RARE = 1e-9  # two-sided, of a whole test
DATA = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12))


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


def assert_binomial(counts, trials, p):
    """Each count within what Binomial(trials, p) leaves with probability TOO_RARE, shared by all counts."""
    counts = np.atleast_1d(counts)
    tail = TOO_RARE / (2 * len(counts))
    low, high = binom.ppf(tail, trials, p), binom.isf(tail, trials, p)
    assert low <= counts.min() and counts.max() <= high, (counts.min(), counts.max(), low, high)


def drawn(sampler):
    """One epoch as a table: step × the rank's units, True where drawn."""
    table = np.zeros((sampler.steps, len(range(sampler.rank, sampler.num_samples, sampler.world_size))), dtype=bool)
    for row, batch in zip(table, sampler, strict=True):
        assert len(set(batch)) == len(batch)
        row[[(unit - sampler.rank) // sampler.world_size for unit in batch]] = True
    return table


class Flags:
    """An optimizer's part in it, by Opacus' own code."""

    signal_skip_step = DPOptimizer.signal_skip_step
    _check_skip_next_step = DPOptimizer._check_skip_next_step

    def __init__(self):
        self._step_skip_queue, self._is_last_step_skipped, self.forgotten = [], False, 0

    def step(self):
        self._is_last_step_skipped = self._check_skip_next_step()
        return not self._is_last_step_skipped

    def reset_skip_queue(self):
        self.forgotten += 1
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False


def prescribe(loader, batches):
    """Lets the loader draw these batches."""

    class Prescribed:
        first_turn = 0

        def batches(self):
            return iter([np.array(batch, dtype=np.int64) for batch in batches])

        def sizes(self):
            return np.array([len(batch) for batch in batches])

    loader.batch_sampler.steps = loader.batch_sampler.draws = len(batches)
    loader.batch_sampler.draw_epoch = Prescribed
