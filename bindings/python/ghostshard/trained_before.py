"""Weights that a private run has trained: whoever trains them on needs the charges of that run in the accountant, or epsilon leaves them out.

So every module that has parameters of a run carries a note of what was charged, in plain attributes that stay with it: when the model is taken back, copied
or saved whole. Weights that are again what they were when the run began owe nothing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import torch

from .ghost.layout import Layout
from .ghost.own_part import comparable, own_part

__all__ = ["NOTE", "charges_before", "note"]

NOTE = "ghostshard_charges"  # of a module: (what an engine charged so far, a digest of the weights when it began) of each engine
_LOOKED_AT = 64  # elements of a parameter


def note(layout: Layout, charges: dict[str, int]) -> None:
    """charges: the engine's own, which it keeps up to date."""
    for module, digest in _digests(layout).items():
        held = [pair for pair in vars(module).get(NOTE, ()) if pair[0]["charges"]]
        known = any(each is charges for each, _ in held)
        vars(module)[NOTE] = held if known else [*held, (charges, digest)]


def charges_before(layout: Layout) -> int:
    """The most that a run charged that trained any of these weights."""
    notes = [(each["charges"], began, digest) for module, digest in _digests(layout).items() for each, began in vars(module).get(NOTE, ())]
    return max((charges for charges, began, digest in notes if began != digest), default=0)


def _digests(layout: Layout) -> dict[Any, str]:
    """By module, of a sample of the parameters that it holds."""
    samples = defaultdict(list)
    with torch.no_grad():
        for entry in layout.parameters:
            values = comparable(own_part(entry.parameter)).reshape(-1)
            sample = values[:: -(-len(values) // _LOOKED_AT) or 1].double().cpu()
            for module in {id(slot.module): slot.module for slot in entry.slots}.values():
                samples[module].append(sample)
    return {module: hashlib.blake2b(torch.cat(each).numpy().tobytes(), digest_size=16).hexdigest() for module, each in samples.items()}
