"""What is asked of a data set whenever a pass over it begins: what epsilon counts are its indices, so each must stay the example that it was."""

from __future__ import annotations

import hashlib
from typing import Any

from .empty_batch import CollateOrEmpty
from .items import refuse_mixed_or_repeated
from .items_digest import items_digest
from .poisson import PoissonBatchSampler
from .units import refuse_repeated


def look_at_items(dataset: Any, sampler: PoissonBatchSampler, collate: CollateOrEmpty) -> None:
    """Before each pass, through which collate goes on looking. ValueError if indices have become other examples' since the last, and some are of one example, or if they
    decide in which group an example is."""
    stamps, groups = sampler.stamps, getattr(sampler, "groups", 1)
    stay = groups > 1 or hasattr(sampler, "bins")
    if (count := len(dataset)) != sampler.num_samples:
        raise ValueError(
            f"the data set has {count} items now, and the private loader draws from {sampler.num_samples}: the data set or the loader's sampler was changed since make_private(). Items that came "
            "since would never be trained on, and items that are gone cannot be drawn. Build the whole data set first; for another one take another run: a new loader, optimizer.state_dict(), and make_private() "
            "of the same PrivacyEngine, whose epsilon counts both"
        )
    if stamps.passes:
        refuse_repeated(dataset)
        refuse_mixed_or_repeated(dataset)
    if sampler.world_size == 1 and not stay:
        return
    digest = items_digest(dataset)
    collate.begin_pass(stay=digest if stay else None)
    items = int(hashlib.sha256(digest.encode()).hexdigest()[:15], 16)
    if groups > 1 and stamps.passes and items != stamps.items:
        raise ValueError(
            f"the data set's items are not what they were in the last pass, or stand in another order, but correlated noise is derived for examples that are drawn {groups} "
            f"steps apart: example u belongs to group u mod {groups} for good. Leave the items as they are (the private loader draws them at random), let augmentations toss "
            "their coins by the generators of torch, NumPy or Python, or leave noise_bands and noise_chain out"
        )
    stamps.items = items  # ranks deal items out by number, and compare this


__all__ = ["look_at_items"]
