"""A DataLoader whose batches are Poisson samples, and its making from one that shuffles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from opacus.data_loader import CollateFnWithEmpty, DPDataLoader
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler, default_collate  # fmt: skip

from ..set_once import SetOnce
from .bins import BinsBatchSampler
from .cyclic import CyclicBatchSampler
from .each_pass import look_at_items
from .empty_batch import CollateOrEmpty
from .items import refuse_mixed_or_repeated
from .plan import ITERABLE, SAMPLINGS, draws_already, plan_of
from .poisson import PoissonBatchSampler
from .stamps import StampedLoader
from .truncated import TruncatedBatchSampler
from .units import refuse_repeated


class GhostDataLoader(SetOnce, StampedLoader, DPDataLoader):
    """A DataLoader whose batches PoissonBatchSampler draws, TruncatedBatchSampler with a max_batch_size, BinsBatchSampler with
    sampling="balls_in_bins", or CyclicBatchSampler with groups; everything else is the DataLoader's.

    An empty batch has the structure of a full one with 0 rows, even the first. drop_last means nothing here. Batches come in
    the order of their draws (in_order=False means nothing either), because the engine must know which draw it trains on.
    """

    set_once = {"sample_rate": "the batch_size of the data loader that make_private() is given"}

    def __init__(
        self,
        dataset: Dataset,
        *,
        sample_rate: float,
        steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        generator: torch.Generator | None = None,
        accumulation_steps: int = 1,
        process_group: dist.ProcessGroup | None = None,
        twins: dist.ProcessGroup | None = None,
        collate_fn=None,
        drop_last: bool = False,
        rand_on_empty: bool = False,
        in_order: bool = True,
        max_batch_size: int | None = None,
        sampling: str = "poisson",
        groups: int = 1,
        **kwargs,
    ):
        if isinstance(collate_fn, CollateFnWithEmpty):
            rand_on_empty = rand_on_empty or collate_fn.rand_on_empty
            collate_fn = collate_fn.wrapped_collator_fn
        if rand_on_empty:
            raise ValueError(
                "rand_on_empty puts a random example in the place of an empty batch: adding one unit then replaces "
                "that example and moves the sum by up to 2 · max_grad_norm, twice what the noise is for. Leave it False"
            )
        if isinstance(dataset, IterableDataset):
            raise ValueError(ITERABLE)
        draws_by, more = _sampler_of(sampling, max_batch_size, groups)
        refuse_repeated(dataset)
        refuse_mixed_or_repeated(dataset)
        self.sample_rate = sample_rate
        self.distributed = world_size > 1
        # Not DPDataLoader's constructor: it makes Opacus' sampler, and needs examples that can be iterated over.
        DataLoader.__init__(
            self,
            dataset,
            batch_sampler=draws_by(
                num_samples=len(dataset), sample_rate=sample_rate, steps=steps, rank=rank, world_size=world_size,
                generator=generator, accumulation_steps=accumulation_steps, process_group=process_group, twins=twins,
                **more,
            ),
            collate_fn=default_collate if collate_fn is None else collate_fn,
            generator=generator,
            **kwargs,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        """A pass. ValueError if the data set has become another (each_pass.py)."""
        look_at_items(self.dataset, self.batch_sampler, self._collate)
        return super().__iter__()

    @property
    def collate_fn(self) -> CollateOrEmpty:
        return self._collate

    @collate_fn.setter
    def collate_fn(self, collate_fn: Any) -> None:
        """One that comes later is watched like the first."""
        watched = isinstance(collate_fn, CollateOrEmpty)
        self._collate = collate_fn if watched else CollateOrEmpty(collate_fn, self.dataset)

    @classmethod
    def from_data_loader(
        cls,
        data_loader: DataLoader,
        *,
        rank: int = 0,
        world_size: int = 1,
        generator: torch.Generator | None = None,
        accumulation_steps: int = 1,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        process_group: dist.ProcessGroup | None = None,
        twins: dist.ProcessGroup | None = None,
        max_batch_size: int | None = None,
        sampling: str | None = None,
        groups: int | None = None,
    ) -> GhostDataLoader:
        """The Poisson-sampled counterpart: sample_rate 1 / len(data_loader), len(data_loader) draws an epoch (plan.py).

        On several ranks data_loader has either the batch size of all ranks together and no DistributedSampler, or the
        batch size of one rank and a DistributedSampler over world_size ranks: its length, and so q, is the same.
        A loader that draws already keeps its sample_rate and, by default, its sampling. generator defaults to data_loader's. batch_first
        is Opacus' argument and has no effect: batches themselves show which dimension counts the rows.

        ValueError for samplers that set probabilities or counts of units: only q sets them here.
        """
        drawn_by = data_loader.batch_sampler
        drawn_already = draws_already(drawn_by)
        if not drawn_already and not isinstance(data_loader.dataset, IterableDataset):
            _check_iteration(data_loader)
            _check_sampler(data_loader, world_size)
        plan = plan_of(data_loader, poisson=True, max_batch_size=max_batch_size, sampling=sampling, groups=groups)
        if isinstance(drawn_by, PoissonBatchSampler):
            process_group, twins = process_group or drawn_by.process_group, twins or drawn_by.twins
            if accumulation_steps == 1:
                accumulation_steps = drawn_by.accumulation_steps
        return cls(
            data_loader.dataset, sample_rate=plan.rate, steps=plan.steps, rank=rank, world_size=world_size,
            generator=data_loader.generator if generator is None else generator, accumulation_steps=accumulation_steps,
            process_group=process_group, twins=twins, collate_fn=data_loader.collate_fn,
            rand_on_empty=rand_on_empty, max_batch_size=plan.cap,
            sampling="balls_in_bins" if plan.in_bins else "poisson", groups=plan.groups, **settings_of(data_loader),
        )  # fmt: skip


def _sampler_of(sampling: str, max_batch_size: int | None, groups: int) -> tuple[type[PoissonBatchSampler], dict[str, Any]]:
    if sampling not in SAMPLINGS:
        raise ValueError(f"sampling must be one of {', '.join(map(repr, SAMPLINGS))}, got {sampling!r}")
    if groups != 1:
        if sampling != "poisson" or max_batch_size is not None:
            raise ValueError("groups of units are drawn from by Poisson samples: they go neither with another sampling nor with max_batch_size")
        return CyclicBatchSampler, {"groups": groups}
    if max_batch_size is None:
        return (BinsBatchSampler if sampling == "balls_in_bins" else PoissonBatchSampler), {}
    if sampling == "balls_in_bins":
        raise ValueError("balls-in-bins sampling takes every unit of a bin: it cannot be combined with max_batch_size")
    return TruncatedBatchSampler, {"max_batch_size": max_batch_size}


# Whose loaders give the batches of a DataLoader, or bring them to a device.
_AS_TORCH = ("torch", "torchdata", "opacus", "accelerate", "ghostshard")


def _check_iteration(loader: DataLoader) -> None:
    for name in ("__iter__", "_get_iterator"):
        made_by = next((kind for kind in type(loader).__mro__ if name in vars(kind)), DataLoader)
        if made_by.__module__.partition(".")[0] not in _AS_TORCH:
            raise ValueError(
                f"{made_by.__name__}.{name} cannot be kept: the private loader draws batches of its own, and what that method does to them, or leaves out, would not be done. "
                "Move it into the data set, the collate_fn or the training loop"
            )


def _check_sampler(loader: DataLoader, world_size: int) -> None:
    if loader.batch_sampler is None:
        raise ValueError("batch_size=None leaves the batches to the data set; Poisson sampling needs a batch_size")
    if type(loader.batch_sampler) is not BatchSampler:
        raise ValueError(
            f"a batch_sampler of its own ({type(loader.batch_sampler).__name__}) cannot be kept: Poisson sampling "
            "draws every unit independently. Pass batch_size and shuffle instead"
        )
    sampler: Any = loader.sampler
    name = type(sampler).__name__
    if type(sampler) is DistributedSampler:
        if sampler.num_replicas != world_size:
            raise ValueError(
                f"the DistributedSampler is for {sampler.num_replicas} ranks, the training for {world_size}: "
                "the loader's length would give a wrong sample rate"
            )
    elif type(sampler) not in (SequentialSampler, RandomSampler):
        raise ValueError(
            f"{name} cannot be kept: Poisson sampling draws every unit with the same probability, and epsilon holds "
            "for that only. Pass shuffle=True; choose units with torch.utils.data.Subset"
        )
    elif type(sampler) is RandomSampler and (sampler.replacement or sampler.num_samples != len(loader.dataset)):
        raise ValueError(
            "a RandomSampler with replacement or num_samples cannot be kept: the loader's length would give another "
            "sample rate than the batch size. Pass shuffle=True"
        )


def settings_of(loader: DataLoader) -> dict[str, Any]:
    names = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
             "persistent_workers", "pin_memory_device")  # fmt: skip
    return {name: getattr(loader, name) for name in names}


__all__ = ["GhostDataLoader", "settings_of"]
