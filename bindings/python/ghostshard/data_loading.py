"""Poisson-sampled data loaders and memory management for one or many ranks, with the interfaces of Opacus' own.

    from ghostshard.data_loading import BatchMemoryManager, GhostDataLoader
    loader = GhostDataLoader.from_data_loader(DataLoader(data, batch_size=256), rank=rank, world_size=world_size)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=32, optimizer=optimizer) as physical:
        for batch in physical: ...

The accountant assumes that every unit is in every batch independently with probability q. So it is here, and every rank
takes the same number of steps, logical and physical: a rank that draws nothing takes part with an empty batch.

Importing this module makes Opacus' own BatchMemoryManager split our loaders, and only ours, in the same way.
"""

import copy
import hashlib
import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from opacus.data_loader import CollateFnWithEmpty, DPDataLoader
from opacus.utils import batch_memory_manager as _opacus_manager
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import (
    BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, Sampler, SequentialSampler,
    default_collate,
)  # fmt: skip

__all__ = ["PoissonBatchSampler", "GhostDataLoader", "AgreedSplittingSampler", "BatchMemoryManager"]


class PoissonBatchSampler(UniformWithReplacementSampler):
    """The indices of rank's part of each batch: every unit with probability sample_rate, independently of all others.

    Rank r of W owns the units r, r + W, r + 2W, …, so that no unit can be drawn twice and nothing is communicated. An
    epoch has exactly `steps` batches on every rank; a batch may be []. num_samples counts the units of all ranks.

    Each iteration draws a new 256-bit key: from the operating system, or with `generator` from it, reproducibly.
    SHA-256 of the key, the rank and the epoch of set_epoch seeds this rank's coins, so they are independent of the
    other ranks' also where all ranks hold a generator of the same seed. (A torch.Generator has 64 bits of seed at most,
    and one never seeded has a seed known to everybody: for a run that is to be private, leave it out.)

    process_group: whose ranks these are, default all; used only where physical batches must be agreed on.
    twins: ranks that must draw the same, because they hold parts of the same layers (tensor parallelism): the first of
    them draws the key. A Gloo group that nothing else uses at the same time; drawing is a collective over it then.
    """

    def __init__(
        self,
        *,
        num_samples: int,
        sample_rate: float,
        steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        generator: torch.Generator | None = None,
        process_group: dist.ProcessGroup | None = None,
        twins: dist.ProcessGroup | None = None,
    ):
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate must be > 0 and <= 1, got {sample_rate}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be >= 0 and < world_size ({world_size}), got {rank}")
        if steps is None:
            # int(1 / q) would say 92 for q = 1/93. Down for other q, so that epochs · steps stay within epochs / q.
            exact = 1 / sample_rate
            steps = round(exact) if math.isclose(exact, round(exact), rel_tol=1e-12) else math.floor(exact)
        if steps < 0:
            raise ValueError(f"steps must be >= 0, got {steps}")
        super().__init__(num_samples=num_samples, sample_rate=sample_rate, generator=generator, steps=steps)
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.process_group = process_group
        self.twins = twins
        self._own_groups: dict[dist.ProcessGroup | None, dist.ProcessGroup] = {}
        self._set_apart = b""

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.draw_epoch()  # Here, not at the first batch: the order of draws from a shared generator is fixed.
        return (batch.tolist() for batch in epoch.batches())

    def set_epoch(self, epoch: int) -> None:
        """For callers that expect it, and for generators that are seeded alike before every epoch."""
        self.epoch = epoch

    def draw_anew(self) -> None:
        """From the next epoch on the same generator gives other coins than ever before: for a run that is resumed, whose
        steps must not draw what earlier ones drew."""
        self._set_apart = secrets.token_bytes(32)

    def draw_epoch(self) -> "Epoch":
        if self.generator is None:
            entropy = secrets.token_bytes(32)
        else:
            words = torch.empty(4, dtype=torch.int64, device=self.generator.device).random_(generator=self.generator)
            entropy = words.cpu().numpy().tobytes()
        place = f"ghostshard Poisson coins, epoch {self.epoch}, rank {self.rank} of {self.world_size}"
        key = hashlib.sha256(entropy + place.encode() + self._set_apart).digest()
        if self.twins is not None:
            first = [key]
            dist.broadcast_object_list(first, group=self.twins, group_src=0)
            key = first[0]
        return Epoch(
            key,
            range(self.rank, self.num_samples, self.world_size),
            self.sample_rate,
            self.steps,
        )

    def own_group(self, process_group: dist.ProcessGroup | None = None) -> dist.ProcessGroup | None:
        """A gloo group that nothing else uses; all ranks make it at the first call. None for a single rank.

        Its own, because a loader's iterator may run between any two collectives of the training loop.
        """
        if self.world_size == 1:
            return None
        if not dist.is_initialized():
            raise RuntimeError(
                f"{self.world_size} ranks must agree on their physical batches: call "
                "torch.distributed.init_process_group first"
            )
        parent = process_group or self.process_group
        if parent not in self._own_groups:
            ranks = dist.get_process_group_ranks(parent or dist.group.WORLD)
            if len(ranks) != self.world_size:
                raise ValueError(f"the data is shared by {self.world_size} ranks, but the group has {len(ranks)}")
            self._own_groups[parent] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        return self._own_groups[parent]


class Epoch:
    """One rank's batches of one epoch. They follow from the key, so sizes() can be known first without keeping them."""

    _MOST_DRAWN_AT_ONCE = 1 << 16

    def __init__(self, key: bytes, units: range, sample_rate: float, steps: int):
        self._key, self._units, self._sample_rate, self._steps = key, units, sample_rate, steps

    def sizes(self) -> np.ndarray:
        return np.fromiter((len(batch) for batch in self.batches()), dtype=np.int64, count=self._steps)

    def batches(self) -> Iterator[np.ndarray]:
        # The coins of all steps in a row: coin s·n + u is unit u's in step s. Drawing the gaps between heads costs one
        # random word per drawn unit instead of one per coin.
        here = len(self._units)
        heads, drawn = np.empty(0, dtype=np.int64), self._heads(here * self._steps)
        for step in range(self._steps):
            end = (step + 1) * here
            parts = [heads]
            while not (len(parts[-1]) and parts[-1][-1] >= end):
                parts.append(next(drawn))
            heads = np.concatenate(parts) if len(parts) > 1 else heads
            cut = np.searchsorted(heads, end)
            batch, heads = heads[:cut] - step * here, heads[cut:]
            yield self._units.start + batch * self._units.step

    def _heads(self, coins: int) -> Iterator[np.ndarray]:
        """The places of the heads, in pieces, without end: the last piece asked for reaches beyond `coins`."""
        expected = math.ceil(1.1 * len(self._units) * self._sample_rate)
        count = min(max(expected, 64), self._MOST_DRAWN_AT_ONCE, max(1, 2**62 // (coins + 1)))
        last, piece = -1, 0
        while True:
            stream = hashlib.shake_256(self._key + piece.to_bytes(8, "little")).digest(8 * count)
            gaps = _geometric(np.frombuffer(stream, dtype="<u8"), self._sample_rate, most=coins)
            heads = last + np.cumsum(gaps + 1)
            yield heads
            last, piece = int(heads[-1]), piece + 1


def _geometric(words: np.ndarray, q: float, *, most: int) -> np.ndarray:
    """How many tails before each head of probability q, at most `most`: floor(log(1 − u) / log(1 − q)), u = word/2^64.

    Within a few roundings of double precision. Opacus compares 24-bit numbers with q, up to 2^-24 too often.
    """
    # Near u = 0 log1p keeps the digits; near u = 1 they are in the integer 2^64 − word, which unsigned negation gives.
    low = words < 2**63
    near = np.where(low, words, np.negative(words)) * 2.0**-64
    with np.errstate(divide="ignore"):
        exponential = -np.where(low, np.log1p(-near), np.log(near))
    rate = math.inf if q == 1 else -math.log1p(-q)
    return np.minimum(np.floor(exponential / rate), most).astype(np.int64)


_ITERABLE = "an IterableDataset cannot be Poisson-sampled: its units have no index to draw them by"


class GhostDataLoader(DPDataLoader):
    """A DataLoader whose batches PoissonBatchSampler draws; what else it does is the DataLoader's.

    An empty batch has the structure of a full one with 0 rows, from the first on. drop_last means nothing here.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        sample_rate: float,
        steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        generator: torch.Generator | None = None,
        process_group: dist.ProcessGroup | None = None,
        twins: dist.ProcessGroup | None = None,
        collate_fn=None,
        drop_last: bool = False,
        batch_first: bool = True,
        rand_on_empty: bool = False,
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
            raise ValueError(_ITERABLE)
        self.sample_rate = sample_rate
        self.distributed = world_size > 1
        # Not DPDataLoader's constructor: it makes Opacus' sampler, and needs examples that can be iterated over.
        DataLoader.__init__(
            self,
            dataset,
            batch_sampler=PoissonBatchSampler(
                num_samples=len(dataset), sample_rate=sample_rate, steps=steps, rank=rank, world_size=world_size,
                generator=generator, process_group=process_group, twins=twins,
            ),
            collate_fn=_CollateOrEmpty(default_collate if collate_fn is None else collate_fn, dataset, batch_first),
            generator=generator,
            **kwargs,
        )  # fmt: skip

    @classmethod
    def from_data_loader(
        cls,
        data_loader: DataLoader,
        *,
        rank: int = 0,
        world_size: int = 1,
        generator: torch.Generator | None = None,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        process_group: dist.ProcessGroup | None = None,
        twins: dist.ProcessGroup | None = None,
    ) -> "GhostDataLoader":
        """The Poisson-sampled counterpart: sample_rate 1 / len(data_loader), len(data_loader) steps an epoch.

        On several ranks data_loader has either the batch size of all ranks together and no DistributedSampler, or the
        batch size of one rank and a DistributedSampler over world_size ranks: its length, and so q, is the same.
        A loader that is Poisson-sampled already keeps its sample_rate. generator defaults to data_loader's. batch_first
        is Opacus': which dimension counts the rows is found out by looking.

        ValueError for samplers that say with which probabilities or how often units shall come: q says that here.
        """
        if isinstance(data_loader.dataset, IterableDataset):
            raise ValueError(_ITERABLE)
        drawn_by = data_loader.batch_sampler
        if isinstance(drawn_by, UniformWithReplacementSampler | DistributedUniformWithReplacementSampler):
            sample_rate, steps = drawn_by.sample_rate, None
            if isinstance(drawn_by, PoissonBatchSampler):
                steps, process_group = drawn_by.steps, process_group or drawn_by.process_group
                twins = twins or drawn_by.twins
        else:
            _check_sampler(data_loader, world_size)
            if len(data_loader) == 0:
                raise ValueError("the data loader has no batches: no units, or fewer than a batch with drop_last")
            sample_rate, steps = 1 / len(data_loader), len(data_loader)
        return cls(
            data_loader.dataset, sample_rate=sample_rate, steps=steps, rank=rank, world_size=world_size,
            generator=data_loader.generator if generator is None else generator, process_group=process_group,
            twins=twins, collate_fn=data_loader.collate_fn, batch_first=batch_first, rand_on_empty=rand_on_empty,
            in_order=data_loader.in_order, **_settings(data_loader),
        )  # fmt: skip


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


def _settings(loader: DataLoader) -> dict[str, Any]:
    names = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
             "persistent_workers", "pin_memory_device")  # fmt: skip
    return {name: getattr(loader, name) for name in names}


class _CollateOrEmpty(CollateFnWithEmpty):
    """Collates, and makes the empty batch when first needed by looking at batches of one and of two of an example."""

    def __init__(self, collate_fn, dataset: Dataset, batch_first: bool):
        super().__init__(collate_fn, batch_first=batch_first)
        self._dataset = dataset
        self._empty: tuple[Any] | None = None

    def __call__(self, batch: list) -> Any:
        if len(batch) > 0:
            return self.wrapped_collator_fn(batch)
        if self._empty is None:
            fetch_many = getattr(self._dataset, "__getitems__", None)
            example = fetch_many([0])[0] if fetch_many else self._dataset[0]
            # Copies, because collators may take their examples apart.
            one, two = (self.wrapped_collator_fn([copy.deepcopy(example) for _ in range(n)]) for n in (1, 2))
            self._empty = (_without_rows(one, two),)
        return copy.deepcopy(self._empty[0])


def _without_rows(one: Any, two: Any) -> Any:
    """A batch of no example, from one of one and one of two: what grows with the examples is continued down to none.

    That a dimension counts rows cannot be told from one batch: [x, y] may be two fields or two rows.
    """
    if isinstance(one, torch.Tensor | np.ndarray):
        shape = [max(0, 2 * size - grown) for size, grown in zip(one.shape, two.shape, strict=True)]
        zeros = one.new_zeros(shape) if isinstance(one, torch.Tensor) else np.zeros(shape, one.dtype)
        if one.shape != two.shape:
            return zeros
        return (torch if isinstance(one, torch.Tensor) else np).where(one == two, one, zeros)
    if isinstance(one, Mapping):
        made = {key: _without_rows(value, two[key]) for key, value in one.items()}
        try:
            return type(one)(made)  # type: ignore[call-arg]
        except TypeError:
            return made
    if isinstance(one, list | tuple):
        same = zip(one, two, strict=True) if len(one) == len(two) else ()
        items = [_without_rows(*pair) for pair in same]
        return type(one)(*items) if hasattr(one, "_fields") else type(one)(items)
    if one is None or isinstance(one, str | bytes | int | float):
        return one if one == two else type(one)()
    raise TypeError(
        f"how a batch with a {type(one).__name__} looks without examples is unknown: let collate_fn return tensors, "
        "mappings, lists, tuples, strings or numbers"
    )


class AgreedSplittingSampler(Sampler[list[int]]):
    """Splits each logical batch into as many physical ones on every rank: as many as the fullest rank needs.

    Even pieces, some empty where a rank drew less than there are pieces. All ranks must make it, and begin to iterate,
    together: the numbers for the whole epoch are agreed on when an iteration begins.
    """

    def __init__(
        self,
        *,
        sampler: PoissonBatchSampler,
        max_batch_size: int,
        optimizer,
        process_group: dist.ProcessGroup | None = None,
    ):
        if max_batch_size < 1:
            raise ValueError(f"the largest physical batch must be >= 1, got {max_batch_size}")
        self.sampler = sampler
        self.max_batch_size = max_batch_size
        self.optimizer = optimizer
        self._group = sampler.own_group(process_group)
        self._length: int | None = None

    def __iter__(self) -> Iterator[list[int]]:
        _forget_unfinished(self.optimizer)
        epoch = self.sampler.draw_epoch()
        pieces = self._agree(np.maximum(1, -(-epoch.sizes() // self.max_batch_size)))
        self._length = int(pieces.sum())
        return self._split(epoch, pieces)

    def _split(self, epoch: Epoch, pieces: np.ndarray) -> Iterator[list[int]]:
        for batch, count in zip(epoch.batches(), pieces.tolist(), strict=True):
            for i, part in enumerate(np.array_split(batch, count)):
                self.optimizer.signal_skip_step(do_skip=i + 1 < count)
                yield part.tolist()

    def _agree(self, pieces: np.ndarray) -> np.ndarray:
        if self._group is None:
            return pieces
        # Lengths first: an all-reduce of different lengths ends in no message that anyone could understand.
        lengths = torch.tensor([len(pieces), -len(pieces)])
        dist.all_reduce(lengths, op=dist.ReduceOp.MAX, group=self._group)
        if lengths[0] != -lengths[1]:
            raise ValueError(
                f"the ranks' loaders have from {-int(lengths[1])} to {int(lengths[0])} steps: they must be alike"
            )
        agreed = torch.from_numpy(pieces.astype(np.int64))
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=self._group)
        return agreed.numpy()

    def __len__(self) -> int:
        """Physical batches of the latest epoch begun; before one, about how many there will be."""
        if self._length is not None:
            return self._length
        expected = self.sampler.sample_rate * self.sampler.num_samples / self.sampler.world_size
        return self.sampler.steps * max(1, math.ceil(expected / self.max_batch_size))


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


_opacus_wrap = _opacus_manager.wrap_data_loader
_opacus_exit = _opacus_manager.BatchMemoryManager.__exit__


def _wrap_data_loader(
    *, data_loader: DataLoader, max_batch_size: int, optimizer, process_group: dist.ProcessGroup | None = None
) -> DataLoader:
    if not isinstance(data_loader.batch_sampler, PoissonBatchSampler):
        return _opacus_wrap(data_loader=data_loader, max_batch_size=max_batch_size, optimizer=optimizer)
    splitter = AgreedSplittingSampler(
        sampler=data_loader.batch_sampler, max_batch_size=max_batch_size, optimizer=optimizer,
        process_group=process_group,
    )  # fmt: skip
    # Never in_order=False: pieces of one logical batch would be added to another.
    return DataLoader(
        data_loader.dataset, batch_sampler=splitter, collate_fn=data_loader.collate_fn,
        generator=data_loader.generator, **_settings(data_loader),
    )  # fmt: skip


def _exit(self, kind, value, traceback):
    if isinstance(self.data_loader.batch_sampler, PoissonBatchSampler):
        _forget_unfinished(self.optimizer)
    return _opacus_exit(self, kind, value, traceback)


# Opacus' BatchMemoryManager looks up both when used, so this reaches code that imported the class before us as well.
# Loaders that PoissonBatchSampler does not draw are split by Opacus' own functions, as before.
_opacus_manager.wrap_data_loader = _wrap_data_loader
_opacus_manager.BatchMemoryManager.__exit__ = _exit
