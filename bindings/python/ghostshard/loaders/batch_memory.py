"""Logical batches in physical pieces, as many on every rank.

Importing this makes Opacus' own BatchMemoryManager split our loaders, and only ours, in the same way.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from opacus.utils import batch_memory_manager as _opacus_manager
from torch.utils.data import DataLoader, Sampler

from ..lost_ranks import answered
from .each_pass import look_at_items
from .loader import settings_of
from .own_ranks import refuse_undealt
from .poisson import Epoch, PoissonBatchSampler
from .stamps import Pass, StampedLoader, Stamps


class AgreedSplittingSampler(Sampler[list[int]]):
    """Splits each logical batch into as many physical ones on every rank: as many as the fullest rank needs, or with a largest batch
    as many as that would need, in every step.

    Pieces are even; some are empty if a rank drew fewer examples than there are pieces. All ranks must construct it, and
    begin to iterate, together: they agree on the numbers for the whole epoch when an iteration begins.
    """

    def __init__(
        self,
        *,
        sampler: PoissonBatchSampler,
        max_batch_size: int,
        optimizer,
        process_group: dist.ProcessGroup | None = None,
    ):
        if isinstance(max_batch_size, bool) or not isinstance(max_batch_size, numbers.Integral) or max_batch_size < 1:
            raise ValueError(f"max_physical_batch_size must be a whole number >= 1, got {max_batch_size!r}")
        if sampler.accumulation_steps > 1:
            raise ValueError(
                f"this loader cuts each draw into {sampler.accumulation_steps} batches already (accumulation_steps): a "
                "BatchMemoryManager would cut it once more. Use one of them"
            )
        self.sampler = sampler
        self.max_batch_size = max_batch_size
        self.optimizer = optimizer
        self._group = sampler.own_group(process_group)
        self._length: int | None = None

    @property
    def stamps(self) -> Stamps:
        return self.sampler.stamps

    def __iter__(self) -> Iterator[list[int]]:
        _forget_unfinished(self.optimizer)
        epoch = self.sampler.draw_epoch()
        least = max(1, math.ceil(self.sampler.fixed_share / self.max_batch_size))
        pieces = self._agree(np.maximum(least, -(-epoch.sizes() // self.max_batch_size)))
        self._length = int(pieces.sum())
        return self._split(epoch, pieces, self.stamps.begin_pass(epoch.first_turn))

    def _split(self, epoch: Epoch, pieces: np.ndarray, notes: Pass) -> Iterator[list[int]]:
        for batch, count in zip(epoch.batches(), pieces.tolist(), strict=True):
            for i, part in enumerate(notes.noted(np.array_split(batch, count))):
                self.optimizer.signal_skip_step(do_skip=i + 1 < count)
                yield part.tolist()

    def _agree(self, pieces: np.ndarray) -> np.ndarray:
        if self._group is None:
            return pieces
        # Lengths first: an all-reduce of different lengths ends in a message that nobody could understand.
        lengths = torch.tensor([len(pieces), -len(pieces)])
        with answered():
            dist.all_reduce(lengths, op=dist.ReduceOp.MAX, group=self._group)
        if lengths[0] != -lengths[1]:
            raise ValueError(
                f"the ranks' loaders have from {-int(lengths[1])} to {int(lengths[0])} steps: they must be alike"
            )
        agreed = torch.from_numpy(pieces.astype(np.int64))
        with answered():
            dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=self._group)
        return agreed.numpy()

    def __len__(self) -> int:
        """Physical batches of the latest epoch begun; before one, about how many there will be."""
        if self._length is not None:
            return self._length
        expected = self.sampler.fixed_share or self.sampler.sample_rate * self.sampler.num_samples / self.sampler.world_size
        return self.sampler.draws * max(1, math.ceil(expected / self.max_batch_size))


class BatchMemoryManager(_opacus_manager.BatchMemoryManager):
    """Opacus' manager for our loaders: ranks agree, and leaving early leaves nothing behind for later steps.

    Any other loader is split as Opacus does it. process_group: default the loader's.
    """

    def __init__(
        self,
        *,
        data_loader: DataLoader,
        max_physical_batch_size: int,
        optimizer,
        process_group: dist.ProcessGroup | None = None,
    ):
        super().__init__(
            data_loader=data_loader, max_physical_batch_size=max_physical_batch_size, optimizer=optimizer
        )
        self.process_group = process_group

    def __enter__(self) -> DataLoader:
        return _wrap_data_loader(
            data_loader=self.data_loader, max_batch_size=self.max_physical_batch_size, optimizer=self.optimizer,
            process_group=self.process_group,
        )  # fmt: skip

    def __exit__(self, kind, value, traceback) -> None:
        _forget_unfinished(self.optimizer)


def _forget_unfinished(optimizer) -> None:
    """Drops the flags of batches that were fetched and never stepped, and the sum of a half-done logical batch.

    Otherwise later steps would be skipped, and the next one could hold a unit twice: once from each logical batch.
    """
    reset = getattr(optimizer, "reset_skip_queue", None)
    if reset is not None:
        reset()
        return
    half_done = optimizer._is_last_step_skipped
    optimizer._step_skip_queue.clear()
    optimizer._is_last_step_skipped = False
    if half_done:
        optimizer.zero_grad()  # Gives up the sum, now that the last step does not count as skipped.


class _PiecesLoader(StampedLoader, DataLoader):
    def __iter__(self) -> Iterator[Any]:
        """A pass, as the loader's own."""
        look_at_items(self.dataset, self.batch_sampler.sampler, self.collate_fn)
        return super().__iter__()


_opacus_wrap = _opacus_manager.wrap_data_loader
_opacus_exit = _opacus_manager.BatchMemoryManager.__exit__


def _wrap_data_loader(
    *, data_loader: DataLoader, max_batch_size: int, optimizer, process_group: dist.ProcessGroup | None = None
) -> DataLoader:
    refuse_undealt(data_loader)
    if not isinstance(data_loader.batch_sampler, PoissonBatchSampler):
        return _opacus_wrap(data_loader=data_loader, max_batch_size=max_batch_size, optimizer=optimizer)
    if not hasattr(optimizer, "signal_skip_step"):
        raise TypeError(
            f"a BatchMemoryManager tells the private optimizer which steps end a part of a draw alone: give it the optimizer that make_private() returned, got {type(optimizer).__name__}"
        )
    splitter = AgreedSplittingSampler(
        sampler=data_loader.batch_sampler, max_batch_size=max_batch_size, optimizer=optimizer,
        process_group=process_group,
    )  # fmt: skip
    # Never in_order=False: pieces of one logical batch would be added to another.
    return _PiecesLoader(
        data_loader.dataset, batch_sampler=splitter, collate_fn=data_loader.collate_fn,
        generator=data_loader.generator, **settings_of(data_loader),
    )  # fmt: skip


def _exit(self, kind, value, traceback):
    if isinstance(self.data_loader.batch_sampler, PoissonBatchSampler):
        _forget_unfinished(self.optimizer)
    return _opacus_exit(self, kind, value, traceback)


# Opacus' BatchMemoryManager looks up both when used, so this reaches code that imported the class before us as well.
# Loaders that PoissonBatchSampler does not draw are split by Opacus' own functions, as before.
_opacus_manager.wrap_data_loader = _wrap_data_loader
_opacus_manager.BatchMemoryManager.__exit__ = _exit


__all__ = ["AgreedSplittingSampler", "BatchMemoryManager"]
