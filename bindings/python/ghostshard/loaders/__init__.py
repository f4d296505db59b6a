"""Poisson-sampled data loaders and memory management for one or many ranks, with the interfaces of Opacus' own.

    from ghostshard.loaders import BatchMemoryManager, GhostDataLoader
    loader = GhostDataLoader.from_data_loader(DataLoader(data, batch_size=256), rank=rank, world_size=world_size)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=32, optimizer=optimizer) as physical:
        for batch in physical: ...

The accountant assumes that every unit is in every batch independently with probability q, and these loaders draw so. Every
rank takes the same number of steps, logical and physical: a rank that draws nothing takes part with an empty batch.

Importing this module makes Opacus' own BatchMemoryManager split our loaders, and only ours, in the same way.
"""

from .batch_memory import AgreedSplittingSampler, BatchMemoryManager
from .bins import BinsBatchSampler
from .cyclic import CyclicBatchSampler
from .items_digest import items_digest
from .loader import GhostDataLoader
from .own_ranks import refusing_shared
from .plan import SamplingPlan, plan_of
from .poisson import PoissonBatchSampler
from .truncated import TruncatedBatchSampler

__all__ = [
    "AgreedSplittingSampler", "BatchMemoryManager", "BinsBatchSampler", "CyclicBatchSampler", "GhostDataLoader", "PoissonBatchSampler", "SamplingPlan",
    "TruncatedBatchSampler", "items_digest", "plan_of", "refusing_shared",
]  # fmt: skip
