"""One private step of a model, without noise, beside a loop over its examples in float64: right, refused, or wrong."""

from __future__ import annotations

import copy
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python/ghost"))
import oracle
from private import Private

from ghostshard.ghost.checks.modules import refuse_unsupported

CLIP = 0.5
# Of a released sum's relative error. Norms are upper bounds: where an example's tokens cancel, theirs may be wider by a part in a
# thousand of a squared norm (docs/guarantee.md), which toy models come near to.
RIGHT = 1e-4


@dataclass(frozen=True)
class Verdict:
    kind: str  # right, refused, wrong, fault (an error that is no sentence of ours)
    error: float = 0.0
    said: str = ""


def judged(step: Callable[[], float]) -> Verdict:
    """step() gives a relative error, or raises."""
    try:
        error = step()
    except Exception as problem:  # the error is the result
        last = traceback.extract_tb(problem.__traceback__)[-1]
        ours = "/ghostshard/" in last.filename and ("raise" in (last.line or "") or "session." in (last.line or ""))
        sentence = (isinstance(problem, ValueError | RuntimeError) and ours or "checks/modules" in last.filename)
        said = " ".join(str(problem).split())
        return Verdict("refused" if sentence else "fault", said=said if sentence else f"{type(problem).__name__}: {said}")
    return Verdict("right" if error < RIGHT else "wrong", error)


def step_of(
    model: nn.Module, batch: dict[str, Any], *, prepared: Callable[[nn.Module], nn.Module] = lambda m: m, rank: int = 0, ranks: int = 1
) -> float:
    """Relative error of the sum that a private step over `batch` releases, from the model's own loss of each example. prepared: shards
    the model; each rank then has its part of the batch."""
    refuse_unsupported(model)
    names = [name for name, value in batch.items() if isinstance(value, torch.Tensor)]
    plain = {name: value for name, value in batch.items() if name not in names}

    def loss(model: nn.Module, values: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return model(**dict(zip(names, values, strict=True)), **plain).loss

    twin = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private = Private(prepared(model), CLIP)
        mine = {name: value[rank::ranks].contiguous() if name in names else value for name, value in batch.items()}
        private.module(**mine).loss.backward()
        found = private.released()
    return oracle.worst_difference(found, expected_of(twin, loss, [tuple(batch[name] for name in names)]))


def expected_of(model: nn.Module, loss: Any, batches: list[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
    """In float64; in float32 for models whose own code has constants of that."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return oracle.clipped_sum(model, loss, batches, CLIP)
        except RuntimeError:
            return oracle.clipped_sum(model, loss, batches, CLIP, wide=False)


__all__ = ["CLIP", "Verdict", "expected_of", "judged", "oracle", "step_of"]
