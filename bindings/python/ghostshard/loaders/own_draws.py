"""Batches of the caller's own: that none holds an example twice is the caller's word. What torch's samplers and data sets say themselves is looked at."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .units import refuse_repeated

_TWICE = (
    "{} may draw an example several times into one batch: each time it would be a unit of its own, clipped for itself, and its sum of them larger than the noise is for. {}. (The private "
    "loader, which poisson_sampling=True and own_batches=False give, draws each example at most once in a step)"
)


def refuse_drawn_twice(loader: DataLoader) -> None:
    """ValueError for a loader that is known to draw an example several times for one step."""
    sampler: Any = getattr(loader.batch_sampler, "sampler", getattr(loader, "sampler", None))
    if isinstance(sampler, (RandomSampler, WeightedRandomSampler)) and sampler.replacement:
        raise ValueError(_TWICE.format(f"{type(sampler).__name__} with replacement=True", "Draw with replacement=False, or leave examples out (torch.utils.data.Subset)"))
    if isinstance(sampler, RandomSampler) and sampler.num_samples > len(sampler.data_source):
        raise ValueError(_TWICE.format(f"RandomSampler with num_samples={sampler.num_samples} of {len(sampler.data_source)} items", "Take several passes instead"))
    if isinstance(sampler, SubsetRandomSampler) and len(set(map(int, sampler.indices))) < len(sampler.indices):
        raise ValueError(_TWICE.format("SubsetRandomSampler with an index twice", "Name each once"))
    if not isinstance(loader.dataset, IterableDataset):
        refuse_repeated(loader.dataset)


__all__ = ["refuse_drawn_twice"]
